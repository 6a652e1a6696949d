"""Muon for matrices and AdamW for all other parameters, in the single optimiser that Lightning steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from finola.errors import InputError


class MuonAdamW(torch.optim.AdamW):
    """AdamW, with Muon updates for parameter groups that set `muon=True`.

    Muon updates a matrix along the orthogonalised momentum of its gradient. Convolution weights are treated as
    matrices (out, in · height · width), which torch.optim.Muon does not support.
    """

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
        for group in groups:
            flat = [parameter for parameter in group["params"] if parameter.ndim < 2]
            if group.get("muon") and flat:
                raise InputError(
                    f"optimiser.groups.{group['name']} sets muon=true, but {len(flat)} of its parameters have fewer "
                    "than two dimensions. Match those in a separate group listed before it."
                )
        super().__init__(groups, betas=betas, eps=eps)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        all_groups = self.param_groups
        for group in all_groups:
            if group.get("muon"):
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._muon_update(parameter, group)
        self.param_groups = [group for group in all_groups if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = all_groups
        return loss

    def _muon_update(self, parameter: Tensor, group: dict[str, Any], momentum: float = 0.95) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:  # AdamW expects these keys when a checkpoint is loaded
            state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["exp_avg"].lerp_(gradient, 1 - momentum)
        update = gradient.lerp(mean, momentum).flatten(1)  # Nesterov
        rows, columns = update.shape
        step = orthogonalised(update).reshape(parameter.shape)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(step, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """Approximately orthogonalise a matrix: quintic Newton–Schulz iterations bring all singular values close to 1.

    >>> bool((torch.linalg.svdvals(orthogonalised(torch.randn(8, 20))) - 1).abs().max() < 0.35)
    True
    """
    wide: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp_min(1e-30)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (2.0315 * gram @ gram - 4.7750 * gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T

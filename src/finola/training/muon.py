"""Muon for matrices beside AdamW for everything else, as one optimiser: Lightning steps a single one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class MuonAdamW(torch.optim.AdamW):
    """AdamW, but for groups with `muon=True`: their matrices move along the orthogonalised mean of their gradients.

    Convolutions count as matrices of (out, in · height · width); torch's own Muon takes plain matrices alone.
    """

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
        for group in groups:
            flat = [parameter for parameter in group["params"] if parameter.ndim < 2]
            if group.get("muon") and flat:
                raise ValueError(
                    f"optimiser.groups.{group['name']} has muon on, but {len(flat)} of its parameters are vectors: "
                    "give them a group of their own before it."
                )
        super().__init__(groups, betas=betas, eps=eps)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        every = self.param_groups
        for group in every:
            if group.get("muon"):
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._move(parameter, group)
        self.param_groups = [group for group in every if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = every
        return loss

    def _move(self, parameter: Tensor, group: dict[str, Any], momentum: float = 0.95) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:  # the names that AdamW looks for when a checkpoint is loaded
            state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["exp_avg"].lerp_(gradient, 1 - momentum)
        ahead = gradient.lerp(mean, momentum).flatten(1)  # Nesterov
        rows, columns = ahead.shape
        step = orthogonalised(ahead).reshape(parameter.shape)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(step, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with all its singular values pushed to about 1 (Newton–Schulz, quintic).

    >>> bool((torch.linalg.svdvals(orthogonalised(torch.randn(8, 20))) - 1).abs().max() < 0.35)
    True
    """
    wide: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp_min(1e-30)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (2.0315 * gram @ gram - 4.7750 * gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T

"""AdamW, SGD and Muon: frozen parameters, groups, the paper's batch-scaled learning rate, and its schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from finola.config import nearest
from finola.errors import InputError
from finola.recipes.recipe import Recipe
from finola.recipes.sections import GroupSection, OptimiserSection, ScheduleSection
from finola.training.devices import divide_like, gather

COMMON = "common"


def peak_lr(recipe: Recipe) -> float:
    """Peak learning rate: `optimiser.lr` if given, otherwise base_lr · batch_size / 256.

    The batch size counts all images of one optimisation step.

    >>> round(peak_lr(Recipe()), 6)
    7.5e-05
    """
    section = recipe.optimiser
    return section.lr if section.lr is not None else section.base_lr * recipe.data.batch_size / 256


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a parameter name matches one of the patterns, such as `encoder.*`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose names match a pattern."""
    for pattern in patterns:
        found = [parameter for name, parameter in model.named_parameters() if matches(name, [pattern])]
        if not found:
            raise _unmatched(model, f"model.frozen contains {pattern}, which", [pattern])
        for parameter in found:
            parameter.requires_grad_(False)


def _unmatched(model: nn.Module, subject: str, patterns: Sequence[str]) -> InputError:
    hint = nearest("".join(patterns[:1]).strip("*."), [name for name, _ in model.named_parameters()])
    return InputError(f"{subject} matches no parameter of the model: {hint}")


def parameter_groups(model: nn.Module, section: OptimiserSection, lr: float) -> list[dict[str, Any]]:
    """Build the optimiser's parameter groups.

    A parameter belongs to the first section of `section.groups` with a matching pattern, otherwise to the common
    group. Sections with `muon` take matrices only; vectors of the same layers belong to a later one, or to the common
    group. Frozen parameters are matched but not optimised. With `decay_norms_and_biases` off, vectors and scalars
    (norms, biases) go to a separate group without weight decay. With `layer_decay`, each encoder layer is a group
    whose learning rate is lower than that of the layer above it.
    """
    if COMMON in section.groups:
        raise InputError(
            f"optimiser.groups.{COMMON} is reserved for parameters that no other group matches. Choose another name."
        )
    taken: dict[str, dict[str, nn.Parameter]] = {name: {} for name in [*section.groups, COMMON]}
    layers = layer_shares(model, section.layer_decay) if section.layer_decay else {}
    for name, parameter in model.named_parameters():
        groups_of_shape = ((key, own) for key, own in section.groups.items() if parameter.ndim > 1 or not own.muon)
        group = next((key for key, own in groups_of_shape if matches(name, own.match)), COMMON)
        if group == COMMON and name in layers:
            group = layers[name][0]
        taken.setdefault(group, {})[name] = parameter
    for key, own in section.groups.items():
        if not taken[key]:
            raise _unmatched(model, f"optimiser.groups.{key} ({', '.join(own.match) or 'no pattern'})", own.match)
    multipliers = dict(layers.values())
    groups = []
    for key, parameters in taken.items():
        own = section.groups.get(key, GroupSection(lr_multiplier=multipliers.get(key, 1.0)))
        decay = section.weight_decay if own.weight_decay is None else own.weight_decay
        settings: dict[str, Any] = {"lr": own.lr if own.lr is not None else lr * own.lr_multiplier}
        if own.muon:
            settings["muon"] = True
        undecayed = set() if section.decay_norms_and_biases else {name for name, p in parameters.items() if p.ndim < 2}
        for suffix, names, weight_decay in (("", parameters.keys() - undecayed, decay), ("/no-decay", undecayed, 0.0)):
            chosen = [p for name, p in parameters.items() if name in names and p.requires_grad]
            if chosen:
                groups.append(settings | {"params": chosen, "weight_decay": weight_decay, "name": key + suffix})
    return groups


def layer_shares(model: nn.Module, decay: float) -> dict[str, tuple[str, float]]:
    """Map each encoder parameter to the group name of its layer and its learning-rate multiplier.

    The multiplier is decay^d, where d is the number of layers up to the head.

    >>> from finola.heads import Classifier
    >>> layer_shares(Classifier("mf-w720", "lin", 2, 64, frozen=False), 0.9)["encoder.last_conv.0.0.weight"]
    ('layer-13', 0.9)
    """
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "layer_of"):
        raise InputError(
            f"optimiser.layer_decay is {decay}, but this encoder does not define layers (layer_of). "
            "Use a Mobile-Former encoder or leave the setting out."
        )
    layers = {f"encoder.{name}": encoder.layer_of(name) for name, _ in encoder.named_parameters()}
    top = 1 + max(layers.values())
    return {name: (f"layer-{layer}", decay ** (top - layer)) for name, layer in layers.items()}


def build_optimiser(model: nn.Module, recipe: Recipe, *, on_gpu: bool = False) -> torch.optim.Optimizer:
    """Build AdamW, SGD or MuonAdamW over `parameter_groups`; on a GPU, AdamW with fused kernels."""
    section = recipe.optimiser
    groups = parameter_groups(model, section, peak_lr(recipe))
    if not groups:
        raise InputError(f"{recipe.model.name} has no trainable parameters. Check model.frozen and head.frozen.")
    if section.kind == "sgd":
        return torch.optim.SGD(groups, momentum=section.momentum)
    betas = (section.betas[0], section.betas[1])
    if any(group.get("muon") for group in groups):
        return MuonAdamW(groups, betas=betas, eps=section.eps)
    # Fused kernels unscale gradients themselves, after they are clipped, so they exclude the scaler of 16-mixed.
    fused = (on_gpu and recipe.trainer.precision != "16-mixed") or None
    return torch.optim.AdamW(groups, betas=betas, eps=section.eps, fused=fused)


class MuonAdamW(torch.optim.AdamW):
    """AdamW, with Muon updates for parameter groups that set `muon=True`.

    Muon updates a matrix along the orthogonalised momentum of its gradient. Convolution weights are treated as
    matrices (out, in · height · width), which torch.optim.Muon does not support. timm's Muon does, but it iterates in
    bfloat16, and updates the other parameters with NAdamW.
    """

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
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
                self._muon_update(group)
        self.param_groups = [group for group in all_groups if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = all_groups
        return loss

    def _muon_update(self, group: dict[str, Any], momentum: float = 0.95) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:  # AdamW expects these keys when a checkpoint is loaded
                state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(parameter)
            state["step"] += 1
        means = [self.state[parameter]["exp_avg"] for parameter in parameters]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, means, momentum)  # Nesterov
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for parameter, update in zip(parameters, updates, strict=True):
            matrix = gather(update).flatten(1)
            step = divide_like(orthogonalised(matrix).reshape(parameter.shape), parameter)
            parameter.add_(step, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """Approximately orthogonalise a matrix: quintic Newton–Schulz iterations bring all singular values close to 1.

    >>> bool((torch.linalg.svdvals(orthogonalised(torch.randn(8, 20))) - 1).abs().max() < 0.35)
    True
    """
    wide: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    # The squares in a norm underflow for entries below 1e-19, such as the decaying momentum of an unused layer.
    wide = wide / wide.abs().amax().clamp_min(1e-30)
    wide = wide / wide.norm().clamp_min(1e-30)
    # Every iteration multiplies by a polynomial of the Gram matrix. The product of these polynomials is computed first:
    # it takes two products with the long side instead of ten.
    gram = wide @ wide.T
    total = identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(steps):
        factor = 3.4445 * identity + 2.0315 * gram @ gram - 4.7750 * gram
        total, gram = factor @ total, factor @ gram @ factor
    wide = total @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def lr_factor(section: ScheduleSection, steps_per_epoch: int) -> Callable[..., float]:
    """Schedule: the multiplier of the peak learning rate, a function of the step, counted from 0, and share of time.

    Linear warm-up, then step decay at the milestones, or cosine decay over all steps or over the time limit, of which
    the share is used so far.

    >>> factor = lr_factor(ScheduleSection(epochs=10, warmup_epochs=4), steps_per_epoch=1)
    >>> factor(0), factor(3), round(factor(10), 6)
    (0.25, 1.0, 0.0)
    >>> factor = lr_factor(ScheduleSection(epochs=6, warmup_epochs=0, milestones=[2, 4]), steps_per_epoch=1)
    >>> [round(factor(step), 3) for step in range(5)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    total, warmup = steps_per_epoch * section.epochs, round(steps_per_epoch * section.warmup_epochs)
    milestones = [round(steps_per_epoch * epoch) for epoch in section.milestones]

    def factor(step: int, share_of_time: float = 0.0) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if milestones:
            return float(0.1 ** sum(step >= milestone for milestone in milestones))
        by_steps = (step - warmup) / max(1, total - warmup)
        progress = min(max(share_of_time if section.clock == "time" else by_steps, 0.0), 1.0)
        return section.final_lr_fraction + (1 - section.final_lr_fraction) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor

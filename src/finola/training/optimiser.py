"""AdamW with the paper's batch-scaled rate, and groups of parameters that have rates of their own."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from finola.names import nearest
from finola.training.recipe import GroupSection, OptimiserSection, Recipe

COMMON = "common"


def common_rate(recipe: Recipe) -> float:
    """base_rate · batch_size / 256, the batch being all images of one step, or the absolute rate where one is given.

    >>> round(common_rate(Recipe()), 6)
    7.5e-05
    """
    section = recipe.optimiser
    return section.rate if section.rate is not None else section.base_rate * recipe.data.batch_size / 256


def parameter_groups(model: nn.Module, section: OptimiserSection, rate: float) -> list[dict[str, Any]]:
    """AdamW's groups: the first section whose pattern matches a parameter's name takes it, the rest are `common`.

    With `decay_norms_and_biases` off, vectors and scalars (norms, biases) leave their group for one without decay.
    """
    taken: dict[str, dict[str, nn.Parameter]] = {name: {} for name in [*section.groups, COMMON]}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = next((key for key, entry in section.groups.items() if _matches(name, entry)), COMMON)
            taken[group][name] = parameter
    _check_matches(model, section, taken)
    groups = []
    for key, parameters in taken.items():
        own = section.groups.get(key, GroupSection())
        decay = section.weight_decay if own.weight_decay is None else own.weight_decay
        settings = {"lr": own.rate if own.rate is not None else rate * own.multiplier}
        spared = set() if section.decay_norms_and_biases else {name for name, p in parameters.items() if p.ndim < 2}
        for suffix, names, share in (("", parameters.keys() - spared, decay), ("/no-decay", spared, 0.0)):
            chosen = [p for name, p in parameters.items() if name in names]
            if chosen:
                groups.append(settings | {"params": chosen, "weight_decay": share, "name": key + suffix})
    return groups


def build_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`."""
    section = recipe.optimiser
    if len(section.betas) != 2:
        raise ValueError(f"optimiser.betas is {section.betas}; AdamW has two, such as [0.9, 0.999].")
    groups = parameter_groups(model, section, common_rate(recipe))
    if not groups:
        raise ValueError(f"{recipe.model.name} has no parameter that could be trained.")
    return torch.optim.AdamW(groups, betas=(section.betas[0], section.betas[1]), eps=section.eps)


def _matches(name: str, group: GroupSection) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in group.match)


def _check_matches(model: nn.Module, section: OptimiserSection, taken: dict[str, dict[str, nn.Parameter]]) -> None:
    for key, entry in section.groups.items():
        if key == COMMON:
            raise ValueError(f"optimiser.groups.{COMMON} is what no other group takes; choose another name.")
        if not taken[key]:
            names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
            patterns = ", ".join(entry.match) or "no pattern"
            hint = nearest(entry.match[0].strip("*.") if entry.match else "", names)
            raise ValueError(f"optimiser.groups.{key} ({patterns}) takes no parameter of the model: {hint}")

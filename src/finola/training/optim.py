"""AdamW or SGD with the paper's batch-scaled rate, and groups of parameters that have rates of their own."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from finola.config import nearest
from finola.training.config import GroupSection, OptimiserSection, Recipe
from finola.training.muon import MuonAdamW

COMMON = "common"


def common_rate(recipe: Recipe) -> float:
    """base_rate · batch_size / 256, the batch being all images of one step, or the absolute rate where one is given.

    >>> round(common_rate(Recipe()), 6)
    7.5e-05
    """
    section = recipe.optimiser
    return section.rate if section.rate is not None else section.base_rate * recipe.data.batch_size / 256


def parameter_groups(model: nn.Module, section: OptimiserSection, rate: float) -> list[dict[str, Any]]:
    """The optimiser's groups: the first section whose pattern matches a parameter's name takes it, the rest are common.

    What is frozen has a group and is left out of it. With `decay_norms_and_biases` off, vectors and scalars (norms,
    biases) leave their group for one without decay. With `layer_decay` the encoder's layers are groups of their own,
    each slower than the one above it.
    """
    taken: dict[str, dict[str, nn.Parameter]] = {name: {} for name in [*section.groups, COMMON]}
    shares = layer_shares(model, section.layer_decay) if section.layer_decay else {}
    for name, parameter in model.named_parameters():
        group = next((key for key, entry in section.groups.items() if _matches(name, entry)), COMMON)
        if group == COMMON and name in shares:
            group = shares[name][0]
        taken.setdefault(group, {})[name] = parameter
    _check_matches(model, section, taken)
    multipliers = dict(shares.values())
    groups = []
    for key, parameters in taken.items():
        own = section.groups.get(key, GroupSection(multiplier=multipliers.get(key, 1.0)))
        decay = section.weight_decay if own.weight_decay is None else own.weight_decay
        settings: dict[str, Any] = {"lr": own.rate if own.rate is not None else rate * own.multiplier}
        if own.muon:
            settings["muon"] = True
        spared = set() if section.decay_norms_and_biases else {name for name, p in parameters.items() if p.ndim < 2}
        for suffix, names, share in (("", parameters.keys() - spared, decay), ("/no-decay", spared, 0.0)):
            chosen = [p for name, p in parameters.items() if name in names and p.requires_grad]
            if chosen:
                groups.append(settings | {"params": chosen, "weight_decay": share, "name": key + suffix})
    return groups


def layer_shares(model: nn.Module, decay: float) -> dict[str, tuple[str, float]]:
    """By parameter of the encoder: its layer's group and share of the rate. The head above all layers learns fastest.

    >>> from finola.heads import Classifier
    >>> layer_shares(Classifier("mf-w720", "lin", 2, 64, frozen=False), 0.9)["encoder.last_conv.0.0.weight"]
    ('layer-13', 0.9)
    """
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "layer_of"):
        raise ValueError("optimiser.layer_decay needs an encoder that knows its layers, as Mobile-Former does.")
    layers = {f"encoder.{name}": encoder.layer_of(name) for name, _ in encoder.named_parameters()}
    top = 1 + max(layers.values())
    return {name: (f"layer-{layer}", decay ** (top - layer)) for name, layer in layers.items()}


def build_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW or SGD over `parameter_groups`."""
    section = recipe.optimiser
    if len(section.betas) != 2:
        raise ValueError(f"optimiser.betas is {section.betas}; AdamW has two, such as [0.9, 0.999].")
    groups = parameter_groups(model, section, common_rate(recipe))
    if not groups:
        raise ValueError(f"{recipe.model.name} has no parameter that could be trained.")
    if section.kind == "sgd":
        return torch.optim.SGD(groups, momentum=section.momentum)
    kind = MuonAdamW if any(group.get("muon") for group in groups) else torch.optim.AdamW
    return kind(groups, betas=(section.betas[0], section.betas[1]), eps=section.eps)


def _matches(name: str, group: GroupSection) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in group.match)


def _check_matches(model: nn.Module, section: OptimiserSection, taken: dict[str, dict[str, nn.Parameter]]) -> None:
    for key, entry in section.groups.items():
        if key == COMMON:
            raise ValueError(f"optimiser.groups.{COMMON} is what no other group takes; choose another name.")
        if not taken[key]:
            names = [name for name, _ in model.named_parameters()]
            patterns = ", ".join(entry.match) or "no pattern"
            hint = nearest(entry.match[0].strip("*.") if entry.match else "", names)
            raise ValueError(f"optimiser.groups.{key} ({patterns}) takes no parameter of the model: {hint}")

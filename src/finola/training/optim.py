"""AdamW or SGD with the paper's batch-scaled learning rate, and parameter groups with their own learning rates."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from finola.config import nearest
from finola.errors import InputError
from finola.training.config import GroupSection, OptimiserSection, Recipe
from finola.training.muon import MuonAdamW

COMMON = "common"


def common_rate(recipe: Recipe) -> float:
    """Peak learning rate: `optimiser.rate` if given, otherwise base_rate · batch_size / 256.

    The batch size counts all images of one optimisation step.

    >>> round(common_rate(Recipe()), 6)
    7.5e-05
    """
    section = recipe.optimiser
    return section.rate if section.rate is not None else section.base_rate * recipe.data.batch_size / 256


def parameter_groups(model: nn.Module, section: OptimiserSection, rate: float) -> list[dict[str, Any]]:
    """Build the optimiser's parameter groups.

    A parameter belongs to the first section of `section.groups` with a matching pattern, otherwise to the common
    group. Frozen parameters are matched but not optimised. With `decay_norms_and_biases` off, vectors and scalars
    (norms, biases) go to a separate group without weight decay. With `layer_decay`, each encoder layer is a group
    whose learning rate is lower than that of the layer above it.
    """
    taken: dict[str, dict[str, nn.Parameter]] = {name: {} for name in [*section.groups, COMMON]}
    layers = layer_shares(model, section.layer_decay) if section.layer_decay else {}
    for name, parameter in model.named_parameters():
        group = next((key for key, entry in section.groups.items() if _matches(name, entry)), COMMON)
        if group == COMMON and name in layers:
            group = layers[name][0]
        taken.setdefault(group, {})[name] = parameter
    _check_matches(model, section, taken)
    multipliers = dict(layers.values())
    groups = []
    for key, parameters in taken.items():
        own = section.groups.get(key, GroupSection(multiplier=multipliers.get(key, 1.0)))
        decay = section.weight_decay if own.weight_decay is None else own.weight_decay
        settings: dict[str, Any] = {"lr": own.rate if own.rate is not None else rate * own.multiplier}
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


def build_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Build AdamW, SGD or MuonAdamW over `parameter_groups`."""
    section = recipe.optimiser
    if len(section.betas) != 2:
        raise InputError(f"optimiser.betas is {section.betas}, but AdamW needs two values, such as [0.9, 0.999].")
    groups = parameter_groups(model, section, common_rate(recipe))
    if not groups:
        raise InputError(f"{recipe.model.name} has no trainable parameters. Check model.frozen and head.frozen.")
    if section.kind == "sgd":
        return torch.optim.SGD(groups, momentum=section.momentum)
    kind = MuonAdamW if any(group.get("muon") for group in groups) else torch.optim.AdamW
    return kind(groups, betas=(section.betas[0], section.betas[1]), eps=section.eps)


def _matches(name: str, group: GroupSection) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in group.match)


def _check_matches(model: nn.Module, section: OptimiserSection, taken: dict[str, dict[str, nn.Parameter]]) -> None:
    for key, entry in section.groups.items():
        if key == COMMON:
            raise InputError(
                f"optimiser.groups.{COMMON} is reserved for the parameters that no other group matches. "
                "Choose another name."
            )
        if not taken[key]:
            names = [name for name, _ in model.named_parameters()]
            patterns = ", ".join(entry.match) or "no pattern"
            hint = nearest(entry.match[0].strip("*.") if entry.match else "", names)
            raise InputError(f"optimiser.groups.{key} ({patterns}) matches no parameter of the model: {hint}")

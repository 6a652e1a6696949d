"""Cost of a training run on given devices: FLOPs, bytes, hours and memory, from the counts of `cost`."""

from __future__ import annotations

from dataclasses import dataclass

from finola.config import MOBILE_FORMERS, ModelConfig, nearest
from finola.errors import InputError, UnknownNameError
from finola.model_counts import Count, count_masked, sizes
from finola.reproduce import cost
from finola.training.recipe import MaskedRecipe, NetsRecipe, Recipe, ReconstructionRecipe
from finola.training.sections import seconds

FLOPS_PER_MULTIPLY_ADD = 2
PHOTO_BYTES = 110_000
"""Mean size of a photo of ImageNet-1K as JPEG."""
STATE_BYTES = {"adamw": 16, "sgd": 12}
"""Bytes per parameter in float32: weight, gradient, and the optimiser's one or two moments."""
PLANNED = tuple(recipe.task for recipe in (ReconstructionRecipe, NetsRecipe, MaskedRecipe))
UTILISATION = 0.673
"""Fraction of the float32 peak, calibrated on the paper: `3072x1@16`, 100 epochs of ImageNet, 8 days on 8 V100."""


@dataclass(frozen=True)
class Device:
    """Float32 peak in FLOP/s without tensor cores, memory in bytes, and the assumed fraction of the peak."""

    peak: float
    memory: float | None  # None: that of the machine, which is not known
    utilisation: float


DEVICES = {
    "v100": Device(15.7e12, 32e9, UTILISATION),
    "a100": Device(19.5e12, 80e9, UTILISATION),
    "h100": Device(66.9e12, 80e9, UTILISATION),
    "cpu": Device(FLOPS_PER_MULTIPLY_ADD * cost.RATE, None, 1.0),  # one core; a measured rate instead of a peak
}


@dataclass(frozen=True)
class Plan:
    """Cost of a run. Activations are not part of `state_bytes`: they depend on kernels and on the batch per device."""

    model: str
    device: str
    count: int
    images: int  # of the run, all epochs
    flops_per_image: int  # forward and backward
    flops: int
    bytes_read: int
    state_bytes: int  # weights, gradients and optimiser state on each device, with DDP
    sharded_state_bytes: int  # optimiser state divided by FSDP
    device_memory: float | None  # None if it is not known
    fits: bool | None  # whether state_bytes are at most device_memory
    sharded_fits: bool | None  # the same of sharded_state_bytes
    hours: float  # of all epochs
    device_days: float
    time_limit: float | None  # hours after which the recipe ends the run (trainer.max_time)


def plan(recipe: Recipe, images: int, device: str = "v100", count: int = 1) -> Plan:
    """Estimate the cost of training a recipe of the tasks `PLANNED` on a data set of `images` photos.

    >>> from finola.training import load_recipe
    >>> round(plan(load_recipe("paper/resolution/3072x1@16"), 1_281_167, "v100", 8).hours / 24, 1)  # paper: 8 days
    8.0
    """
    if device not in DEVICES:
        raise UnknownNameError(f"Unknown device {device!r}: {nearest(device, DEVICES)}")
    if images < 1 or count < 1:
        raise InputError(f"The numbers of images ({images}) and devices ({count}) must be at least 1.")
    recipe.check()
    unit, parts = DEVICES[device], forward_counts(recipe)
    height, width = recipe.image_size
    side = getattr(recipe.data, "size", None)
    crops = cost.TRAINING_FACTOR * cost.images_seen(recipe, images) * (side**2 / (height * width) if side else 1.0)
    flops = round(FLOPS_PER_MULTIPLY_ADD * crops * sum(part.multiply_adds for part in parts.values()))
    time = flops / (unit.peak * unit.utilisation * count)
    if device == "cpu":
        slow = ModelConfig.parse(recipe.model.name).encoder in MOBILE_FORMERS
        rates = {"encoder": cost.SLOW_RATE if slow else cost.RATE}
        time = crops * sum(part.multiply_adds / rates.get(name, cost.RATE) for name, part in parts.items()) / count
    parameters = sum(part.parameters for part in parts.values())
    state = STATE_BYTES[recipe.optimiser.kind] * parameters
    moments = state - 8 * parameters
    sharded = 8 * parameters + moments // count
    seen, limit = cost.images_seen(recipe, images), recipe.trainer.max_time
    return Plan(
        model=recipe.model.name,
        device=device,
        count=count,
        images=seen,
        flops_per_image=flops // seen,
        flops=flops,
        bytes_read=seen // getattr(recipe.data, "crops_per_image", 1) * PHOTO_BYTES,
        state_bytes=state,
        sharded_state_bytes=sharded,
        device_memory=unit.memory,
        fits=None if unit.memory is None else state <= unit.memory,
        sharded_fits=None if unit.memory is None else sharded <= unit.memory,
        hours=time / 3600,
        device_days=time * count / 86400,
        time_limit=None if limit is None else seconds(limit) / 3600,
    )


def forward_counts(recipe: Recipe) -> dict[str, Count]:
    """Parameters and multiply–adds of a forward pass of training on one image of the model's size, by part.

    The task `nets` trains without the recurrence: waves are exact, so pixels follow from q in one product.
    """
    if isinstance(recipe, MaskedRecipe):
        return count_masked(recipe.model.name, recipe.mask.variant)
    if not isinstance(recipe, ReconstructionRecipe | NetsRecipe):
        raise InputError(
            f"{recipe.name} has the task {recipe.task}, whose cost depends on its head and data; "
            f"finola plan knows the tasks {', '.join(PLANNED)}."
        )
    parts = sizes(recipe.model.name)
    if isinstance(recipe, NetsRecipe):
        parts["propagation"] = Count(parts["propagation"].parameters, 0)
    return parts

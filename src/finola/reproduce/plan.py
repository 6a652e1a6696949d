"""Cost of a training run on given devices: FLOPs, bytes, hours and memory, from the counts of `cost`."""

from __future__ import annotations

from dataclasses import dataclass

from finola.config import nearest
from finola.errors import InputError, UnknownNameError
from finola.reproduce import cost
from finola.training.config import Recipe, ReconstructionRecipe

FLOPS_PER_MULTIPLY_ADD = 2
PHOTO_BYTES = 110_000
"""Mean size of a photo of ImageNet-1K as JPEG."""
STATE_BYTES = {"adamw": 16, "sgd": 12}
"""Bytes per parameter in float32: weight, gradient, and the optimiser's one or two moments."""
UTILISATION = 0.673
"""Fraction of the float32 peak, calibrated on the paper: `3072x1@16`, 100 epochs of ImageNet, 8 days on 8 V100."""


@dataclass(frozen=True)
class Device:
    """Float32 peak in FLOP/s without tensor cores, memory in bytes, and the assumed fraction of the peak."""

    peak: float
    memory: float
    utilisation: float


DEVICES = {
    "v100": Device(15.7e12, 32e9, UTILISATION),
    "a100": Device(19.5e12, 80e9, UTILISATION),
    "h100": Device(66.9e12, 80e9, UTILISATION),
    "cpu": Device(FLOPS_PER_MULTIPLY_ADD * cost.RATE, 0, 1.0),  # one core; a measured rate instead of a peak
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
    device_memory: float
    hours: float
    device_days: float


def plan(recipe: Recipe, images: int, device: str = "v100", count: int = 1) -> Plan:
    """Estimate the cost of training a reconstruction recipe on a data set of `images` photos.

    >>> from finola.training import load_recipe
    >>> round(plan(load_recipe("paper/resolution/3072x1@16"), 1_281_167, "v100", 8).hours / 24, 1)  # paper: 8 days
    8.0
    """
    from finola.model_counts import sizes

    if device not in DEVICES:
        raise UnknownNameError(f"Unknown device {device!r}: {nearest(device, DEVICES)}")
    if images < 1 or count < 1:
        raise InputError(f"The numbers of images ({images}) and devices ({count}) must be at least 1.")
    if not isinstance(recipe, ReconstructionRecipe) or recipe.stages:
        raise InputError(f"{recipe.name} has the task {recipe.task}, but only reconstruction in one stage is planned.")
    unit = DEVICES[device]
    height, width = recipe.image_size
    tiles = (recipe.data.size**2 / (height * width)) if recipe.data.size else 1.0
    seen = cost.images_seen(recipe, images)
    flops = round(FLOPS_PER_MULTIPLY_ADD * tiles * cost.multiply_adds(recipe, images))
    seconds = flops / (unit.peak * unit.utilisation * count)
    if device == "cpu":
        seconds = tiles * cost.estimated_seconds(recipe, images) / count
    parameters = sum(part.parameters for part in sizes(recipe.model.name).values())
    state = STATE_BYTES[recipe.optimiser.kind] * parameters
    moments = state - 8 * parameters
    return Plan(
        model=recipe.model.name,
        device=device,
        count=count,
        images=seen,
        flops_per_image=flops // seen,
        flops=flops,
        bytes_read=seen // recipe.data.crops_per_image * PHOTO_BYTES,
        state_bytes=state,
        sharded_state_bytes=8 * parameters + moments // count,
        device_memory=unit.memory,
        hours=seconds / 3600,
        device_days=seconds * count / 86400,
    )

"""Cost of a training run before it is started: images, FLOPs, bytes, memory, and hours on given devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from finola.config import MOBILE_FORMERS, nearest
from finola.errors import InputError, UnknownNameError
from finola.model_counts import Count, count_classifier, count_masked, sizes
from finola.recipes.recipe import ClassifyRecipe, MaskedRecipe, MocoRecipe, NetsRecipe, Recipe, ReconstructionRecipe
from finola.recipes.sections import seconds

TRAINING_FACTOR = 3
"""Multiply–adds of a training step relative to a forward pass: the backward pass costs twice as much."""
FLOPS_PER_MULTIPLY_ADD = 2
RATE, SLOW_RATE = 3e10, 4e9
"""Multiply–adds per second of training on one core, measured on an Intel Xeon with AVX-512: dense matrix products and
convolutions, and Mobile-Former, whose depthwise convolutions and attention are bound by memory."""
PHOTO_BYTES = 110_000
"""Mean size of a photo of ImageNet-1K as JPEG."""
STATE_BYTES = {"adamw": 16, "sgd": 12}
"""Bytes per parameter in float32: weight, gradient, and the optimiser's one or two moments."""
UTILISATION, TENSOR_CORE_UTILISATION = 0.673, 0.35
"""Fractions of the peak. That of float32 is calibrated on the paper: `3072x1@16`, 100 epochs of ImageNet, 8 days on 8
V100. That of 16-bit tensor cores is an assumption."""
PLANNED = tuple(kind.task for kind in (ReconstructionRecipe, NetsRecipe, MaskedRecipe, ClassifyRecipe, MocoRecipe))


@dataclass(frozen=True)
class Device:
    """Peaks in FLOP/s of float32 without tensor cores and of 16-bit numbers with them, and memory in bytes."""

    float32: float
    memory: float | None = None  # None: that of the machine, which is not known
    bfloat16: float | None = None  # None: computed as float32
    float16: float | None = None

    def rate(self, precision: str) -> float:
        """FLOP/s that training is assumed to reach. `auto` is bf16-mixed on a GPU and 32-true on a CPU."""
        if self.memory is None:
            return self.float32
        kind = "bf16" if precision == "auto" else precision.partition("-")[0]
        peak = {"bf16": self.bfloat16, "16": self.float16}.get(kind)
        return UTILISATION * self.float32 if peak is None else TENSOR_CORE_UTILISATION * peak


DEVICES = {
    "v100": Device(15.7e12, 32e9, None, 125e12),
    "a100": Device(19.5e12, 80e9, 312e12, 312e12),
    "h100": Device(66.9e12, 80e9, 989e12, 989e12),
    "cpu": Device(FLOPS_PER_MULTIPLY_ADD * RATE),  # one core; a measured rate instead of a peak
}


@dataclass(frozen=True)
class Plan:
    """Cost of a run. Activations are not part of `state_bytes`: they depend on kernels and on the batch per device."""

    model: str
    device: str
    count: int
    precision: str
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


def images_seen(recipe: Recipe, photos: int) -> int:
    """Number of images in a training run on a data set with this number of photos."""
    data = recipe.data
    photos = min(photos, data.limit or photos) * getattr(data, "crops_per_image", 1)
    images = recipe.schedule.epochs * photos
    steps = recipe.trainer.max_steps
    return images if steps is None else min(images, steps * data.batch_size)


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
    unit, parts, seen = DEVICES[device], forward_counts(recipe), images_seen(recipe, images)
    height, width = recipe.image_size
    side = getattr(recipe.data, "size", None)
    crops = seen * (side**2 / (height * width) if side else 1.0)
    factors = {"encoder": 1 if isinstance(recipe, ClassifyRecipe) and recipe.head.frozen else TRAINING_FACTOR}
    work = {name: crops * factors.get(name, TRAINING_FACTOR) * part.multiply_adds for name, part in parts.items()}
    flops = round(FLOPS_PER_MULTIPLY_ADD * sum(work.values()))
    # Mixed precision leaves the recurrence in float32.
    rates = {"propagation": unit.rate("32-true")}
    rate = unit.rate(recipe.trainer.precision)
    time = sum(FLOPS_PER_MULTIPLY_ADD * number / rates.get(name, rate) for name, number in work.items()) / count
    if device == "cpu" and recipe.model.name.partition("/")[0] in MOBILE_FORMERS:
        time += work["encoder"] * (1 / SLOW_RATE - 1 / RATE) / count
    parameters = sum(part.parameters for part in parts.values())
    state = STATE_BYTES[recipe.optimiser.kind] * parameters
    moments = state - 8 * parameters
    sharded = 8 * parameters + moments // count
    limit = recipe.trainer.max_time
    return Plan(
        model=recipe.model.name,
        device=device,
        count=count,
        precision=recipe.trainer.precision,
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
        return _count_masked(recipe.model.name, recipe.mask.variant)
    if isinstance(recipe, ClassifyRecipe | MocoRecipe):
        head = recipe.head.kind if isinstance(recipe, ClassifyRecipe) else "lin"
        return _count_classifier(recipe.model.name, head, 1000, recipe.image_size[0])
    if not isinstance(recipe, ReconstructionRecipe | NetsRecipe):
        raise InputError(
            f"{recipe.name} has the task {recipe.task}, whose cost depends on its head and data; "
            f"finola plan knows the tasks {', '.join(PLANNED)}."
        )
    parts = dict(_sizes(recipe.model.name))
    if isinstance(recipe, NetsRecipe):
        parts["propagation"] = Count(parts["propagation"].parameters, 0)
    return parts


_sizes, _count_masked, _count_classifier = cache(sizes), cache(count_masked), cache(count_classifier)

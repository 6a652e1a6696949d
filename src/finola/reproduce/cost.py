"""Cost of a run: the images that it sees, and an estimate of its time on one CPU core."""

from __future__ import annotations

from functools import cache

from finola.config import MOBILE_FORMERS, ModelConfig
from finola.training.recipe import Recipe

TRAINING_FACTOR = 3
"""Multiply–adds of a training step relative to a forward pass: the backward pass costs twice as much."""
RATE = 3e10
SLOW_RATE = 4e9
"""Multiply–adds per second of training on one core, measured on an Intel Xeon with AVX-512: dense matrix products and
convolutions, and Mobile-Former, whose depthwise convolutions and attention are bound by memory."""


def images_seen(recipe: Recipe, photos: int) -> int:
    """Number of images in a training run on a data set with this number of photos."""
    data = recipe.data
    photos = min(photos, data.limit or photos) * getattr(data, "crops_per_image", 1)
    images = recipe.schedule.epochs * photos
    steps = recipe.trainer.max_steps
    return images if steps is None else min(images, steps * data.batch_size)


@cache
def _multiply_adds(model: str) -> dict[str, int]:
    from finola.model_counts import sizes

    return {part: count.multiply_adds for part, count in sizes(model).items()}


def estimated_seconds(recipe: Recipe, photos: int) -> float:
    """Estimated time of a training run on one core."""
    slow = ModelConfig.parse(recipe.model.name).encoder in MOBILE_FORMERS
    parts = _multiply_adds(recipe.model.name)
    per_image = sum(count / (SLOW_RATE if slow and part == "encoder" else RATE) for part, count in parts.items())
    return TRAINING_FACTOR * images_seen(recipe, photos) * per_image

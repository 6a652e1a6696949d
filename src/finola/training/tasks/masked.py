"""Masked FINOLA (appendix B): L2 on the pixels that no encoder has seen."""

from __future__ import annotations

import torch
from torch import Tensor

from finola.data import Batch
from finola.masked import MaskedFinola, Prediction, masked_loss, random_places
from finola.training.config import Recipe
from finola.training.initial_weights import begin_masked
from finola.training.tasks.base import Task


class Masked(Task):
    """A `MaskedFinola` trained on masked pixels; validated by their PSNR, always with the same places."""

    model: MaskedFinola

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, figures=("psnr",))
        mask = recipe.mask
        self.model = MaskedFinola(recipe.model.name, mask.variant, one_jump=mask.one_jump)
        if recipe.model.weights is not None:
            begin_masked(self.model, recipe.model.weights)
        self.samples: Tensor | None = None

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        distinct = self.recipe.mask.places or len(images)
        places = random_places(distinct, self.model.map_size)[torch.arange(len(images)) % distinct]
        loss = masked_loss(self.model(images, places.to(images.device)), images)
        # Blocks that all lie to one side walk one way only; several processes need a gradient of every matrix.
        unused = sum((matrix.sum() for matrix in self.model.transition.parameters()), torch.zeros_like(loss))
        return {"l2": loss + 0 * unused}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        images = batch.images
        drawn, masked = self.predict(images, seed=batch_idx)
        squares = ((drawn.clamp(0, 1) - images).square() * masked).flatten(1).sum(1)
        figures = -10 * (squares / (3 * masked.flatten(1).sum(1))).log10()
        self.log_figure("psnr", figures[~batch.replaced])
        if batch_idx == 0:
            self.samples = images[: self.recipe.logging.samples]

    def predict(self, images: Tensor, seed: int = 0) -> Prediction:
        """With places that depend on `seed` alone."""
        places = random_places(len(images), self.model.map_size, torch.Generator().manual_seed(seed))
        prediction: Prediction = self.model(images, places.to(images.device))
        return prediction

    def draw(self, images: Tensor) -> Tensor:
        """What was seen, and around it what was predicted."""
        drawn, masked = self.predict(images)
        return torch.where(masked, drawn, images)

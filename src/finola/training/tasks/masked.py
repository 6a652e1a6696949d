"""Masked FINOLA (appendix B): L2 loss on the masked pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from finola.data import Batch
from finola.hub import WEIGHTS
from finola.masked import MaskedFinola, Prediction, masked_loss, random_places
from finola.recipes.recipe import MaskedRecipe
from finola.serialization import load_weights, read_weights
from finola.training.init import find_weights_folder
from finola.training.tasks.base import Task


class Masked(Task):
    """Train a `MaskedFinola` on masked pixels; validate by their PSNR, with the same mask positions each time."""

    model: MaskedFinola
    recipe: MaskedRecipe

    @staticmethod
    def build(recipe: MaskedRecipe, initialise: bool = True) -> MaskedFinola:
        model = MaskedFinola(recipe.model.name, recipe.mask.variant, one_jump=recipe.mask.one_jump)
        if not initialise:
            return model
        model.transition.scale_steps(recipe.model.transition_scale)  # type: ignore[operator]
        if recipe.model.weights is not None:
            file = find_weights_folder(recipe.model.weights) / WEIGHTS
            load_weights(model, read_weights(file), file)  # of any image size, since no weight depends on it
        return model

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        places = random_places(len(images), self.model.map_size)  # on the CPU, where they are drawn
        loss = masked_loss(self.model(images, places), images)
        # If all blocks lie on one side, some matrices are unused, but DDP needs a gradient for every parameter.
        unused = sum((matrix.sum() for matrix in self.model.transition.parameters()), torch.zeros_like(loss))
        return {"l2": loss + 0 * unused}

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        seed = int(batch.indices[0])  # the same positions in every validation
        predicted, masked = self.predict(batch.images, seed)
        squares = ((predicted.float().clamp(0, 1) - batch.images.float()).square() * masked).flatten(1).sum(1)
        psnrs = -10 * (squares / (3 * masked.flatten(1).sum(1))).log10()
        return {"psnr": psnrs[~batch.replaced]}

    def predict(self, images: Tensor, seed: int = 0) -> Prediction:
        """Predict with mask positions that depend only on `seed`."""
        places = random_places(len(images), self.model.map_size, torch.Generator().manual_seed(seed))
        prediction: Prediction = self.model(images, places)
        return prediction

    def sample_images(self, images: Tensor) -> Tensor:
        """Combine the visible pixels with the predicted masked pixels."""
        predicted, masked = self.predict(images)
        return torch.where(masked, predicted, images)

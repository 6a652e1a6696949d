"""Reconstruction (§4): L2 or PSNR loss between photos and their reconstructions from q."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.data import Batch, PhotoDataset
from finola.errors import InputError
from finola.model_zoo import create
from finola.recipes.recipe import ReconstructionRecipe
from finola.recipes.sections import AutoencoderSection
from finola.training.init import initialise_autoencoder
from finola.training.tasks.base import Task, measure_images
from finola.transitions import Transition
from finola.wave.residuals import health, order_difference

HEALTH_IMAGES = 8
MSE_FLOOR = 1e-4  # 40 dB: limits the weight of easily reconstructed (flat) images in the PSNR loss


class Reconstruction(Task):
    """Train an `Autoencoder` on the L2 or PSNR loss; validate by PSNR, SSIM and MS-SSIM per image."""

    model: Autoencoder
    recipe: ReconstructionRecipe

    def __init__(self, recipe: ReconstructionRecipe, initialise: bool = True) -> None:
        super().__init__(recipe, initialise)
        self.reconstruct = torch.compile(self._reconstruct) if recipe.model.compile else self._reconstruct

    @staticmethod
    def build(recipe: ReconstructionRecipe, initialise: bool = True) -> Autoencoder:
        return build_model(recipe.model, initialise)

    def _reconstruct(self, images: Tensor) -> Tensor:
        out: Tensor = self.model(images)
        return out

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        weight = self.recipe.loss.order_difference
        if not weight:
            return self._image_loss(self.reconstruct(images), images)
        q = self.model.encode(images)
        horizontal, vertical = (self.model.propagate(q, order) for order in ("horizontal", "vertical"))
        out = self.model.decode((horizontal + vertical) / 2)
        difference = weight * order_difference(horizontal, vertical)
        return {**self._image_loss(out, images), "order_difference": difference}

    def _image_loss(self, out: Tensor, images: Tensor) -> dict[str, Tensor]:
        if self.recipe.loss.kind == "l2":
            return {"l2": F.mse_loss(out, images)}
        errors = (out - images).square().flatten(1).mean(1)
        return {"minus_psnr": 10 * (errors + MSE_FLOOR).log10().mean()}

    def describe_loss(self, loss: float) -> str:
        return f"{-loss:.2f} dB" if self.recipe.loss.kind == "psnr" else super().describe_loss(loss)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        return measure_images(self._reconstruct(batch.images), batch)

    def validate(self, batches: Iterator[Any], dataset: PhotoDataset) -> dict[str, float]:
        metrics = super().validate(batches, dataset)
        if self.samples is None:
            return metrics
        found = health(self.model, self.samples[:HEALTH_IMAGES])
        return metrics | {f"health/{name}": float(value) for name, value in found.items()}

    def sample_images(self, images: Tensor) -> Tensor:
        return self._reconstruct(images)


def build_model(section: AutoencoderSection, initialise: bool = True) -> Autoencoder:
    """Build the model of a recipe and initialise it from `spectrum` and `weights`."""
    model = create(section.name, section.init)
    if not initialise:
        return model
    if (factor := section.transition_scale) != 1:
        transition = model._modules.get("transition")
        if model.config.is_waves or not isinstance(transition, Transition):
            raise InputError(f"model.transition_scale is {factor}, but {model.config} has no random matrices to scale.")
        # Every step adds A ẑ to z, so that with the default matrices the map varies several times as much as q, and the
        # first hundred steps of training only undo this.
        transition.scale_steps(factor)
    if section.spectrum is not None:
        from finola.wave.initialisation import initialise_waves
        from finola.wave.spectrum import Spectrum

        initialise_waves(model, Spectrum.read(Path(section.spectrum), model.config.image_size))
    if section.weights is not None:
        initialise_autoencoder(model, section.weights)
    return model

"""Reconstruction (§4): L2 or PSNR loss between photos and their reconstructions from q."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.codec.calibration import FILE, Calibration, to_latents, to_q
from finola.data import Batch
from finola.errors import InputError
from finola.hub import resolve
from finola.metrics import MS_SSIM_SIDE, ms_ssim, psnr, ssim
from finola.model_zoo import create
from finola.training.config import ReconstructionRecipe
from finola.training.initial_weights import initialise_autoencoder
from finola.training.sections import AutoencoderSection
from finola.training.tasks.base import Task
from finola.wave.spectrum import Spectrum

HEALTH_IMAGES = 8
MSE_FLOOR = 1e-4  # 40 dB: limits the weight of easily reconstructed (flat) images in the PSNR loss


class Reconstruction(Task):
    """Train an `Autoencoder` on the L2 or PSNR loss; validate by PSNR, SSIM and MS-SSIM per image."""

    metric_names: ClassVar[tuple[str, ...]] = ("psnr", "ssim", "ms_ssim")
    model: Autoencoder
    recipe: ReconstructionRecipe

    def __init__(self, recipe: ReconstructionRecipe, initialise: bool = True) -> None:
        super().__init__(recipe, initialise)
        self.calibration = load_calibration(recipe, self.model) if recipe.loss.quantised_fraction else None
        self.reconstruct = torch.compile(self._reconstruct) if recipe.model.compile else self._reconstruct

    @staticmethod
    def build(recipe: ReconstructionRecipe, initialise: bool = True) -> Autoencoder:
        return build_model(recipe.model, initialise)

    def _reconstruct(self, images: Tensor) -> Tensor:
        out: Tensor = self.model(images)
        return out

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        if self.calibration is not None:
            return self._pixel_loss(self.model(images, self._quantise), images)
        return self._pixel_loss(self.reconstruct(images), images)

    def describe_loss(self, loss: float) -> str:
        return f"{-loss:.2f} dB" if self.recipe.loss.kind == "psnr" else super().describe_loss(loss)

    def _pixel_loss(self, out: Tensor, images: Tensor) -> dict[str, Tensor]:
        if self.recipe.loss.kind == "l2":
            return {"l2": F.mse_loss(out, images)}
        errors = (out - images).square().flatten(1).mean(1)
        return {"minus_psnr": 10 * (errors + MSE_FLOOR).log10().mean()}

    def _quantise(self, q: Tensor) -> Tensor:
        """Quantise part of the batch with a random step; gradients pass straight through."""
        assert self.calibration is not None
        finest, coarsest = self.recipe.loss.quantisation_steps
        step = int(torch.randint(finest, coarsest + 1, ()))
        # Random rounding of the count makes the expected fraction exact for any batch size.
        count = int(self.recipe.loss.quantised_fraction * len(q) + torch.rand(()))
        original = q[:count].detach()
        quantised = to_q(self.model, self.calibration.quantised(to_latents(self.model, original), step))
        return torch.cat([q[:count] + (quantised - original), q[count:]])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        images, readable = batch.images, ~batch.replaced  # exclude photos that replace unreadable ones
        out = self._reconstruct(images)
        self.log_metric("psnr", psnr(out, images)[readable])
        if min(images.shape[-2:]) >= 11:  # size of SSIM's window
            self.log_metric("ssim", ssim(out, images)[readable])
        if min(images.shape[-2:]) >= MS_SSIM_SIDE:
            self.log_metric("ms_ssim", ms_ssim(out, images)[readable])
        if batch_idx == 0:
            self.samples = images[: max(self.recipe.logging.samples, HEALTH_IMAGES)]

    def sample_images(self, images: Tensor) -> Tensor:
        """Reconstruct as in validation."""
        return self._reconstruct(images)

    def on_validation_epoch_end(self) -> None:
        if self.samples is None:
            return
        from finola.wave.residuals import health

        for name, value in health(self.model, self.samples[:HEALTH_IMAGES]).items():
            self.log(f"health/{name}", float(value), rank_zero_only=True)


def load_calibration(recipe: ReconstructionRecipe, model: Autoencoder) -> Calibration:
    """Load the calibration stored with `model.weights`, for quantisation during training."""
    folder = resolve(recipe.model.weights) if recipe.model.weights else None
    if folder is None or not (folder / FILE).is_file():
        raise InputError(
            f"loss.quantised_fraction is {recipe.loss.quantised_fraction}, but model.weights={recipe.model.weights} "
            "has no calibration. Set model.weights to a trained model and run finola calibrate on it first."
        )
    calibration = Calibration.load(folder / FILE)
    size = to_latents(model, torch.zeros(1, model.config.paths, model.config.channels)).shape[1]
    if len(calibration.mean) != size:
        raise InputError(
            f"The calibration in {folder} is for {len(calibration.mean)} latents, but {model.config} has {size}. "
            "Run finola calibrate on a model of this configuration."
        )
    return calibration


def build_model(section: AutoencoderSection, initialise: bool = True) -> Autoencoder:
    """Build the model of a recipe and initialise it from `spectrum` and `weights`."""
    model = create(section.name, section.init)
    if not initialise:
        return model
    if section.transition_scale != 1:
        scale_transition(model, section.transition_scale)
    if section.spectrum is not None:
        from finola.wave.initialisation import initialise_waves

        initialise_waves(model, read_spectrum(Path(section.spectrum), model.config.image_size))
    if section.weights is not None:
        initialise_autoencoder(model, section.weights)
    return model


def scale_transition(model: Autoencoder, factor: float) -> None:
    """Multiply the random matrices of the transition by `factor`.

    Every step adds A ẑ to z, so that with the default matrices the map varies several times as much as q, and the first
    hundred steps of training only undo this.
    """
    if not factor > 0:
        raise InputError(f"model.transition_scale is {factor}, but must be positive.")
    if model.config.is_waves or "transition" not in model._modules:
        raise InputError(f"model.transition_scale is {factor}, but {model.config} has no random matrices to scale.")
    with torch.no_grad():
        for parameter in model.transition.parameters():
            parameter.mul_(factor)


def read_spectrum(path: Path, image_size: tuple[int, int]) -> Spectrum:
    """Read the spectrum from a `finola spectrum` file whose side is nearest to the image size of the model."""
    try:
        spectra = [
            Spectrum.from_json(entry) for entry in json.loads(path.expanduser().read_text(encoding="utf-8"))["spectra"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"model.spectrum is {path}, which is not a file written by finola spectrum: {error}."
        ) from error
    side = math.sqrt(image_size[0] * image_size[1])
    return min(spectra, key=lambda spectrum: abs(math.log(spectrum.side / side)))

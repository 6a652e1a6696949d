"""Reconstruction (§4): L2, or PSNR, between the photo and what its vectors regrow."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.codec.calibration import FILE, Calibration, to_latents, to_q
from finola.data import Batch
from finola.decoders.waves import WaveDecoder
from finola.metrics import MS_SSIM_SIDE, ms_ssim, psnr, ssim
from finola.training.config import ModelSection, Recipe
from finola.training.initial_weights import begin
from finola.training.tasks.base import Task
from finola.wave.spectrum import Spectrum
from finola.zoo import create, find_trained

HEALTH_IMAGES = 8
EASY = 1e-4  # squared error, 40 dB, below which an image is good enough: a flat one would outweigh all others


class Reconstruction(Task):
    """An `Autoencoder` trained on L2 or PSNR; validated by PSNR, SSIM and MS-SSIM per image."""

    model: Autoencoder

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, figures=("psnr", "ssim", "ms_ssim"))
        self.model = build_model(recipe.model)
        if recipe.loss.fit_q and not hasattr(self.model, "wave_encoder"):
            raise ValueError(
                f"loss.fit_q is {recipe.loss.fit_q}, but {recipe.model.name} has no wave encoder to fit q to; "
                "set model.init=waves on a model with another encoder."
            )
        side = recipe.model.encoder_size
        if side is not None and self.model.config.is_waves:
            raise ValueError(
                f"model.encoder_size is {side}, but the encoder of {recipe.model.name} has one size: leave it out."
            )
        self.tables = tables_of(recipe, self.model) if recipe.loss.rounded else None
        self.reconstruct = torch.compile(self._reconstruct) if recipe.trainer.compile else self._reconstruct
        self.samples: Tensor | None = None  # the first validation photos, for pictures and health

    def _reconstruct(self, images: Tensor) -> Tensor:
        side = self.recipe.model.encoder_size
        out: Tensor = self.model(images) if side is None else draw_coarsely(self.model, images, side)
        return out

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        weight = self.recipe.loss.fit_q
        if self.tables is not None:
            return self._on_pixels(self.model(images, self._round), images)
        if not weight:
            return self._on_pixels(self.reconstruct(images), images)
        q = self.model.encode(images)
        with torch.no_grad():
            target: Tensor = self.model.wave_encoder(images)  # type: ignore[operator]
        out = self.model.decode(self.model.propagate(q))
        return self._on_pixels(out, images) | {"fit_q": weight * F.mse_loss(q, target)}

    def _on_pixels(self, out: Tensor, images: Tensor) -> dict[str, Tensor]:
        if self.recipe.loss.kind == "l2":
            return {"l2": F.mse_loss(out, images)}
        errors = (out - images).square().flatten(1).mean(1)
        return {"minus_psnr": 10 * (errors + EASY).log10().mean()}

    def _round(self, q: Tensor) -> Tensor:
        """The first part of q as a file of a random step gives them back; gradients pass as if it had not."""
        assert self.tables is not None
        finest, coarsest = self.recipe.loss.steps
        step = int(torch.randint(finest, coarsest + 1, ()))
        count = int(self.recipe.loss.rounded * len(q) + torch.rand(()))  # the share on average, of one q as well
        some = q[:count].detach()
        given_back = to_q(self.model, self.tables.rounded(to_latents(self.model, some), step))
        return torch.cat([q[:count] + (given_back - some), q[count:]])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        images, read = batch.images, ~batch.replaced  # no figure for a photo that stands in for an unreadable one
        out = self._reconstruct(images)
        self.log_figure("psnr", psnr(out, images)[read])
        if min(images.shape[-2:]) >= 11:  # the side of SSIM's window
            self.log_figure("ssim", ssim(out, images)[read])
        if min(images.shape[-2:]) >= MS_SSIM_SIDE:
            self.log_figure("ms_ssim", ms_ssim(out, images)[read])
        if batch_idx == 0:
            self.samples = images[: max(self.recipe.logging.samples, HEALTH_IMAGES)]

    def draw(self, images: Tensor) -> Tensor:
        """What is measured is shown."""
        return self._reconstruct(images)

    def on_validation_epoch_end(self) -> None:
        if self.samples is None or not self.recipe.logging.health:
            return
        from finola.wave.residuals import health

        for name, value in health(self.model, self.samples[:HEALTH_IMAGES]).items():
            self.log(f"health/{name}", float(value), rank_zero_only=True)


def draw_coarsely(model: Autoencoder, images: Tensor, side: int) -> Tensor:
    """Images as the model draws them when its encoder sees them shrunk, and before its refinement.

    Several times as fast for an encoder that must learn from nothing: where things are comes before their detail.
    """
    height, width = images.shape[-2:]
    size = (round(side * height / min(height, width)), round(side * width / min(height, width)))
    q = model.pool(model.encoder(F.interpolate(images, size=size, mode="area")))
    z, decoder = model.propagate(q), model.decoder
    out: Tensor = decoder.read_out(z) if isinstance(decoder, WaveDecoder) else decoder(z)
    return out


def tables_of(recipe: Recipe, model: Autoencoder) -> Calibration:
    """The codec tables beside the weights that a run begins with."""
    folder = find_trained(recipe.model.weights) if recipe.model.weights else None
    if folder is None or not (folder / FILE).is_file():
        raise ValueError(
            f"loss.rounded is {recipe.loss.rounded}, which takes a codec's tables: set model.weights to a trained "
            f"model's folder after finola calibrate, not to {recipe.model.weights}."
        )
    tables = Calibration.load(folder / FILE)
    size = to_latents(model, torch.zeros(1, model.config.paths, model.config.channels)).shape[1]
    if len(tables.mean) != size:
        raise ValueError(f"the tables in {folder} are for {len(tables.mean)} latents, and {model.config} has {size}.")
    return tables


def build_model(section: ModelSection) -> Autoencoder:
    """The model of a recipe before its first step."""
    model = create(section.name, section.init)
    if section.spectrum is not None:
        from finola.wave.initialisation import initialise_waves

        initialise_waves(model, read_spectrum(Path(section.spectrum), model.config.image_size))
    if section.weights is not None:
        begin(model, section.weights)
    return model


def read_spectrum(path: Path, image_size: tuple[int, int]) -> Spectrum:
    """The spectrum of a `finola spectrum` file whose side is nearest to the model's image."""
    try:
        spectra = [
            Spectrum.from_json(entry) for entry in json.loads(path.expanduser().read_text(encoding="utf-8"))["spectra"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"model.spectrum is {path}, which is no file of finola spectrum: {error}.") from error
    side = math.sqrt(image_size[0] * image_size[1])
    return min(spectra, key=lambda spectrum: abs(math.log(spectrum.side / side)))

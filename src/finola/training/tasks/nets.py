"""Networks on pixels around the exact waves of a model, at random rates if it is elastic.

Propagation and read-out of exact waves are linear and fixed, so a training step maps images to images: the network
before the analysis, the projection onto the waves, for an elastic model onto the chosen components of every tile, and
the network after the read-out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.codec.elastic_coder import ROUNDING, approximate_costs
from finola.data import Batch, CentreCrop, PhotoDataset
from finola.data.sources import evenly
from finola.encoders.elastic import elastic_encoder
from finola.encoders.waves import WaveEncoder
from finola.model_zoo import create
from finola.photos import decode, encode
from finola.recipes.recipe import NetsRecipe
from finola.tiling import cut, join
from finola.training.data import Photos
from finola.training.devices import print_on_rank_zero
from finola.training.init import initialise_autoencoder
from finola.training.tasks.base import Task, measure_images
from finola.wave.codebook_fit import fit_codebook

ERROR_FLOOR = 2e-4  # of the linear error, 37 dB: limits the weight of flat images
PHOTO_SIDE = 256  # centre crops of photos for the codebook; latents are counted for this size


class Nets(Task):
    """Train the networks of a model with exact waves; an elastic one validates with 4096 latents per 256×256 pixels."""

    model: Autoencoder
    recipe: NetsRecipe

    @staticmethod
    def build(recipe: NetsRecipe, initialise: bool = True) -> Autoencoder:
        model = create(recipe.model.name)
        if initialise and recipe.model.weights is not None:
            initialise_autoencoder(model, recipe.model.weights)
        return model

    def prepare(self, photos: Photos) -> None:
        """Fit the codebook of an elastic model to training photos, unless it starts from trained weights."""
        if self.recipe.model.weights is not None or not self.model.config.elastic:
            return
        codebook, tile = elastic_encoder(self.model).codebook, self.model.config.image_size
        source = photos.train.source
        dataset = PhotoDataset(evenly(source, self.recipe.codebook.photos), CentreCrop((PHOTO_SIDE, PHOTO_SIDE)))
        parts = []
        for index in range(len(dataset)):
            image = dataset.sample(index)[0][None].float() / 255
            parts.append(codebook.coordinates(cut(image, tile)[0]))
        print_on_rank_zero(f"Fitting {len(codebook.bases)} bases to the tiles of {len(dataset)} photos")
        fit_codebook(codebook, torch.cat(parts), len(parts[0]), steps=self.recipe.codebook.steps)

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        linear = self.project_tiles(images) if self.model.config.elastic else self.project(images)
        linear = linear.to(images.dtype)  # the analysis keeps its precision
        out: Tensor = self.model.decoder.refinement(linear)  # type: ignore[operator]
        errors, linear_errors = ((x - images).square().flatten(1).mean(1) for x in (out, linear))
        return {"relative_error": (errors / (linear_errors.detach() + ERROR_FLOOR)).mean()}

    def describe_loss(self, loss: float) -> str:
        return f"{-10 * math.log10(max(loss, 1e-12)):+.2f} dB"

    def project(self, images: Tensor) -> Tensor:
        """Linear reconstructions of images of the model's size, filtered before the analysis."""
        encoder = self.model.encoder
        assert isinstance(encoder, WaveEncoder) and encoder.prefilter is not None
        return encoder.synthesise(encoder.analyse(encoder.prefilter(images)))

    def project_tiles(self, images: Tensor) -> Tensor:
        """Linear reconstructions of images whose sides are multiples of the tile, each at a random rate.

        Bases, lengths and quantised values are those of the images before the filter: otherwise the filter could lower
        the error by raising the rate. So gradients reach it through the images that are not quantised.
        """
        encoder, tile, loss = elastic_encoder(self.model), self.model.config.image_size, self.recipe.loss
        codebook = encoder.codebook
        tiles, grid = cut(images, tile)
        p, n, per_image = codebook.coordinates(tiles), len(images), grid[0] * grid[1]
        rotated = codebook.rotated(p)
        lagrangian = _log_uniform(n, loss.lagrangian).to(p).repeat_interleave(per_image)
        step = _log_uniform(n, loss.quantiser_step).to(p).repeat_interleave(per_image)
        quantised = (torch.rand(n) < loss.quantised_fraction).to(p.device).repeat_interleave(per_image)
        lengths = codebook.lengths.repeat(len(codebook.bases))
        choice = (codebook.errors(rotated).flatten(1) + lagrangian[:, None] * lengths).argmin(1)
        cheapest = approximate_costs(rotated, step[:, None, None]).argmin(1)
        index = torch.where(quantised, cheapest, choice // len(codebook.lengths))
        filtered = codebook.coordinates(cut(encoder.prefilter(images), tile)[0])
        values = codebook.encode(filtered, index, lengths[choice])
        own = codebook.components(p, index)
        levels = (own.abs() / step[:, None] + ROUNDING).floor() * own.sign()
        values = torch.where(quantised[:, None], levels * step[:, None], values)
        return join(codebook.superpose(codebook.decode(values, index), tile), grid)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        return measure_images(self.sample_images(batch.images), batch)

    def sample_images(self, images: Tensor) -> Tensor:
        return decode(self.model, encode(self.model, images))


def _log_uniform(count: int, limits: list[float]) -> Tensor:
    """Random numbers (count,) between two limits, uniform in the logarithm."""
    low, high = (math.log(limit) for limit in limits)
    return (low + (high - low) * torch.rand(count)).exp()

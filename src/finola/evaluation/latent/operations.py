"""Operations on q: mean, mirror, interpolation, sampling, projection and nearest neighbours (appendix A.6).

The q of a wave model lies on a sphere, ‖q‖² = C: wave coordinates and one slack channel that completes the norm. Means,
interpolations and samples of such q are not on the sphere. The operations are linear, as in the paper; `decode` fits
coordinates outside the sphere into it and recomputes the slack channel, as the codec does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from finola.errors import InputError
from finola.tiling import Size, cut, join
from finola.wave.basis import WaveBasis
from finola.wave.initialisation import wave_basis

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.evaluation.latent.statistics import Statistics


class Encoded(NamedTuple):
    """q of the tiles of images, with the arguments of `decode`."""

    q: Tensor  # (N·rows·columns, M, C)
    grid: Size  # (rows, columns) of tiles
    size: Size  # (height, width) of the images


@torch.no_grad()
def encode(model: Autoencoder, images: Tensor) -> Encoded:
    """Encode images (N, 3, H, W) of any size, float in [0, 1] or uint8, tile by tile.

    >>> import finola
    >>> model, images = finola.load("waves/64x1@8:32"), torch.rand(1, 3, 40, 70)
    >>> encoded = encode(model, images); encoded.q.shape, encoded.grid
    (torch.Size([6, 1, 64]), (2, 3))
    >>> torch.allclose(decode(model, *encoded), model(images).clamp(0, 1), atol=1e-5)
    True
    """
    tiles, grid = cut(_floats(model, images), model.config.image_size)
    return Encoded(model.encode(tiles), grid, (images.shape[-2], images.shape[-1]))


@torch.no_grad()
def decode(model: Autoencoder, q: Tensor, grid: Size = (1, 1), size: Size | None = None) -> Tensor:
    """Decode any q (N, M, C) to images in [0, 1]; with a `grid`, tiles are joined and cropped to `size`."""
    own = model.config.image_size
    whole = size or (grid[0] * own[0], grid[1] * own[1])
    z = model.propagate(on_sphere(model, q))
    return model.decode(join(z, grid))[..., : whole[0], : whole[1]].clamp(0, 1)


def fade(q: Tensor, statistics: Statistics, t: float) -> Tensor:
    """Point on the line through q and the mean q̄: q at t = 0, the mean at 1, the mirror at 2."""
    return interpolate(q, statistics.mean.to(q), t)


def mirror(q: Tensor, statistics: Statistics) -> Tensor:
    """Reflect q about the mean: 2q̄ − q, which reverses colours (see docs/readings.md)."""
    return fade(q, statistics, 2.0)


def interpolate(q1: Tensor, q2: Tensor, t: float) -> Tensor:
    """Linear interpolation (1 − t)·q₁ + t·q₂.

    >>> interpolate(torch.zeros(1), torch.ones(1), 0.25)
    tensor([0.2500])
    """
    return torch.lerp(q1, q2, t)


def sample(statistics: Statistics, count: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Sample q (count, M, C) from the Gaussian with this mean and covariance."""
    noise = torch.randn(count, len(statistics.variances), generator=generator)
    spread = (noise * statistics.variances.sqrt()) @ statistics.components
    return statistics.mean + spread.reshape(count, *statistics.mean.shape)


def coordinates(q: Tensor, statistics: Statistics, k: int | None = None) -> Tensor:
    """Coordinates (N, k) of q (N, M, C) in the first k principal components."""
    known = len(statistics.components)
    if k is not None and not 0 <= k <= known:
        raise InputError(f"The statistics have {known} components, but k is {k}. Use 0 to {known}.")
    return (q - statistics.mean.to(q)).flatten(1) @ statistics.components[:k].to(q).T


def project(q: Tensor, statistics: Statistics, k: int) -> Tensor:
    """Project q (N, M, C) onto the first k principal components; k = 0 gives the mean."""
    centred = coordinates(q, statistics, k) @ statistics.components[:k].to(q)
    return statistics.mean.to(q) + centred.reshape(q.shape)


@torch.no_grad()
def neighbours(
    q: Tensor, others: Iterable[Tensor], statistics: Statistics, count: int = 5, k: int | None = None
) -> list[tuple[int, float]]:
    """Nearest neighbours of q among `others`: (number, similarity), most similar first.

    Each is the q (T, M, C) of one image with T tiles. Similarity is the cosine of the vectors from the mean, in the
    first k components. `others` is consumed one at a time.
    """
    wanted = coordinates(q, statistics, k).flatten()
    best: list[tuple[int, float]] = []
    for number, other in enumerate(others):
        found = coordinates(other, statistics, k).flatten()
        if found.shape != wanted.shape:
            raise InputError(f"Image {number} has {len(other)} tiles, but the query has {len(q)}. Crop both alike.")
        cosine = float(torch.cosine_similarity(wanted, found, dim=0))
        best = sorted([*best, (number, cosine)], key=lambda one: -one[1])[:count]
    return best


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Cosine similarity of images (N, 3, H, W) as vectors: (N,).

    >>> round(float(correlation(torch.ones(1, 3, 2, 2), -torch.ones(1, 3, 2, 2))), 4)
    -1.0
    """
    return torch.cosine_similarity(first.flatten(1), second.flatten(1))


def contrast(images: Tensor) -> Tensor:
    """Spatial standard deviation of every image (N, 3, H, W), root mean square over colours: (N,)."""
    return images.var((-2, -1), correction=0).mean(1).sqrt()


def on_sphere(model: Autoencoder, q: Tensor) -> Tensor:
    """Map q (N, M, C) of a wave model to its sphere; the q of other models is unchanged."""
    basis = _sphere(model)
    if basis is None:
        return q
    waves = basis.coordinates(q)
    outside = waves[:, 0].norm(dim=-1) > 0.9995 * math.sqrt(model.config.channels)  # the encoder stops at 0.999
    if model.config.paths == 1 and bool(outside.any()):
        waves = waves.clone()
        waves[outside, 0] = model.encoder.fit_into_sphere(waves[outside, 0])  # type: ignore[operator]
    return basis.complete(waves)


def without_slack(model: Autoencoder, q: Tensor) -> Tensor:
    """Set the slack channel of a wave model's q (N, M, C) to zero; the q of other models is unchanged."""
    basis = _sphere(model)
    if basis is None:
        return q
    waves = basis.coordinates(q)
    return basis.reflect(torch.nn.functional.pad(waves, (0, q.shape[-1] - basis.size)))


def _sphere(model: Autoencoder) -> WaveBasis | None:
    return wave_basis(model) if model.config.is_waves else None


def _floats(model: Autoencoder, images: Tensor) -> Tensor:
    like = next(model.parameters())
    return images.to(like) / 255 if images.dtype == torch.uint8 else images.to(like)

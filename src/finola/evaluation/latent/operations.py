"""Moves in the space of q (appendix, "Inspecting the Image Distribution in q Space"), and the pictures they draw.

A wave model's q lies on a sphere, ‖q‖² = C: the picture's coordinates, and one slack channel that tops them up. A mean,
a mix or a sample of such q lies off it. Every move here is plain linear algebra, as in the paper; `draw` then keeps the
picture's coordinates, fits those that lie outside the sphere into it, and computes the slack again, as the codec does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from finola.tiling import Size, cut, join, pad_to_multiple
from finola.wave.basis import WaveBasis
from finola.wave.initialisation import wave_basis

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.evaluation.latent.statistics import Statistics


class Encoded(NamedTuple):
    """What `draw(model, *encoded)` needs to give images back."""

    q: Tensor  # (N·rows·columns, M, C)
    grid: Size  # (rows, columns) of tiles
    size: Size  # (height, width) of the images


@torch.no_grad()
def encode(model: Autoencoder, images: Tensor) -> Encoded:
    """q of images (N, 3, H, W) of any size, float in [0, 1] or uint8, tile by tile.

    >>> import finola
    >>> model, images = finola.load("waves/64x1@8:32"), torch.rand(1, 3, 40, 70)
    >>> encoded = encode(model, images); encoded.q.shape, encoded.grid
    (torch.Size([6, 1, 64]), (2, 3))
    >>> torch.allclose(draw(model, *encoded), model(images).clamp(0, 1), atol=1e-5)
    True
    """
    tiles, grid = cut(pad_to_multiple(_floats(model, images), model.config.image_size), model.config.image_size)
    return Encoded(model.encode(tiles), grid, (images.shape[-2], images.shape[-1]))


@torch.no_grad()
def draw(model: Autoencoder, q: Tensor, grid: Size | None = None, size: Size | None = None) -> Tensor:
    """The images that q (N, M, C) stands for, in [0, 1]; with a `grid`, tiles joined and cropped to `size`."""
    z = model.propagate(on_sphere(model, q))
    images = model.decode(z if grid is None else join(z, grid)).clamp(0, 1)
    return images if size is None else images[..., : size[0], : size[1]]


def fade(q: Tensor, statistics: Statistics, t: float) -> Tensor:
    """On the line through q and the mean q̄: t = 0 is q, 1 the mean, 2 the mirror."""
    return mix(q, statistics.mean.to(q), t)


def mirror(q: Tensor, statistics: Statistics) -> Tensor:
    """2q̄ − q, which reverses colours. (The paper prints 2q − q̄, which would raise the contrast.)"""
    return fade(q, statistics, 2.0)


def mix(q1: Tensor, q2: Tensor, t: float) -> Tensor:
    """(1 − t)·q₁ + t·q₂.

    >>> mix(torch.zeros(1), torch.ones(1), 0.25)
    tensor([0.2500])
    """
    return q1 + t * (q2 - q1)


def sample(statistics: Statistics, count: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """q (count, M, C) from the Gaussian with this mean and covariance."""
    noise = torch.randn(count, len(statistics.variances), generator=generator)
    spread = (noise * statistics.variances.sqrt()) @ statistics.components
    return statistics.mean + spread.reshape(count, *statistics.mean.shape)


def coordinates(q: Tensor, statistics: Statistics, k: int | None = None) -> Tensor:
    """q (N, M, C) in the first k components, around the mean: (N, k)."""
    known = len(statistics.components)
    if k is not None and not 0 <= k <= known:
        raise ValueError(f"{k} components were asked for, and these statistics know {known}: use 0 to {known}.")
    return (q - statistics.mean.to(q)).flatten(1) @ statistics.components[:k].to(q).T


def project(q: Tensor, statistics: Statistics, k: int) -> Tensor:
    """What the first k principal components keep of q (N, M, C); k = 0 is the mean."""
    kept = coordinates(q, statistics, k) @ statistics.components[:k].to(q)
    return statistics.mean.to(q) + kept.reshape(q.shape)


@torch.no_grad()
def neighbours(
    q: Tensor, others: Iterable[Tensor], statistics: Statistics, count: int = 5, k: int | None = None
) -> list[tuple[int, float]]:
    """The images most like q among `others`: (number, similarity), best first.

    Each is the q (T, M, C) of one image, its T tiles in order. Similarity is the cosine of the angle at the mean, in
    the first k components. `others` are looked at one after the other and not kept.
    """
    wanted = coordinates(q, statistics, k).flatten()
    best: list[tuple[int, float]] = []
    for number, other in enumerate(others):
        found = coordinates(other, statistics, k).flatten()
        if found.shape != wanted.shape:
            raise ValueError(
                f"image {number} has {len(other)} tiles, and the one searched for {len(q)}: crop them alike."
            )
        cosine = float(torch.cosine_similarity(wanted, found, dim=0))
        best = sorted([*best, (number, cosine)], key=lambda one: -one[1])[:count]
    return best


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """The cosine between images (N, 3, H, W) as vectors: (N,).

    >>> round(float(correlation(torch.ones(1, 3, 2, 2), -torch.ones(1, 3, 2, 2))), 4)
    -1.0
    """
    return torch.cosine_similarity(first.flatten(1), second.flatten(1))


def contrast(images: Tensor) -> Tensor:
    """The standard deviation over space of every image (N, 3, H, W), root mean square over colours: (N,)."""
    return images.var((-2, -1), correction=0).mean(1).sqrt()


def on_sphere(model: Autoencoder, q: Tensor) -> Tensor:
    """Any q (N, M, C) as one this model can grow: for a wave model, on its sphere; for any other, unchanged."""
    basis = _sphere(model)
    if basis is None:
        return q
    picture = basis.coordinates(q)
    outside = picture[:, 0].norm(dim=-1) > 0.9995 * math.sqrt(model.config.channels)  # the encoder stops at 0.999
    if model.config.paths == 1 and bool(outside.any()):
        picture = picture.clone()
        picture[outside, 0] = model.encoder.fit_into_sphere(picture[outside, 0])  # type: ignore[operator]
    return basis.complete(picture)


def without_slack(model: Autoencoder, q: Tensor) -> Tensor:
    """q (N, M, C) with a wave model's slack set to zero; of any other model, unchanged."""
    basis = _sphere(model)
    if basis is None:
        return q
    picture = basis.coordinates(q)
    return basis.reflect(torch.nn.functional.pad(picture, (0, q.shape[-1] - basis.size)))


def _sphere(model: Autoencoder) -> WaveBasis | None:
    return wave_basis(model) if model.config.is_waves else None


def _floats(model: Autoencoder, images: Tensor) -> Tensor:
    like = next(model.parameters())
    return images.to(like) / 255 if images.dtype == torch.uint8 else images.to(like)

"""Reconstruction of photos with a budget and an effort, and its metrics on a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from finola.config import DEFAULT_BUDGET, show_size
from finola.errors import InputError
from finola.latents import Count
from finola.metrics import quality_metrics
from finola.photos import decode, encode, refine
from finola.tiling import equal_sized, grid_of
from finola.wave.codebook import REFERENCE_PIXELS

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset

METRICS = {"psnr": 4, "ssim": 5, "ms_ssim": 5}
"""Metrics and the number of digits that they are rounded to."""
COUNTS = ("latents_per_256", "side_per_256")
"""Numbers used per 256×256 pixels: all of them, and those that are side information."""


class Reconstruction(NamedTuple):
    """A photo decoded from amortised q, from refined q if an effort was given, and the numbers that describe it."""

    amortised: Tensor  # (3, H, W)
    refined: Tensor | None
    used: Count
    lengths: Tensor  # (rows, columns): latents of each tile

    @property
    def best(self) -> Tensor:
        """The refined image if there is one."""
        return self.amortised if self.refined is None else self.refined

    def per_256(self) -> dict[str, float]:
        """Numbers used per 256×256 pixels."""
        scale = REFERENCE_PIXELS / (self.amortised.shape[1] * self.amortised.shape[2])
        return dict(zip(COUNTS, (round(scale * n, 1) for n in (self.used.total, self.used.side)), strict=True))


def reconstruct(
    model: Autoencoder, images: Tensor, *, budget: int | None = None, per_tile: int | None = None, effort: int = 0
) -> list[Reconstruction]:
    """Reconstruct images (N, 3, H, W) of equal size; see `finola.encode` for the options.

    >>> import finola
    >>> (found,) = reconstruct(finola.load("waves/64x1@8:32"), torch.rand(1, 3, 32, 64), effort=1)
    >>> found.used.total, found.refined.shape
    (128, torch.Size([3, 32, 64]))
    """
    latents = encode(model, images, budget=budget, per_tile=per_tile)
    amortised = decode(model, latents)
    refined = decode(model, refine(model, images, latents, effort)) if effort else [None] * len(images)
    lengths = latents.length.unflatten(1, grid_of(latents.size, model.space.tile)).cpu()
    used = [latents[index].count(model.space.side_bits) for index in range(len(images))]
    return [Reconstruction(*one) for one in zip(amortised, refined, used, lengths, strict=True)]


def allocation(model: Autoencoder, budget: int | None = None, per_tile: int | None = None) -> tuple[str, str]:
    """How the latents are distributed over tiles: "elastic" or "fixed", and a description.

    >>> import finola
    >>> allocation(finola.load("waves/64x1@8:32"))
    ('fixed', 'fixed, 64 latents per tile of 32×32 pixels')
    """
    config = model.config
    if config.elastic and per_tile is None:
        return "elastic", f"elastic, at most {budget or DEFAULT_BUDGET:,} latents per 256×256 pixels"
    number = config.channels * config.paths if per_tile is None else per_tile
    return "fixed", f"fixed, {number:,} latents per tile of {show_size(config.image_size)} pixels"


def evaluate(
    model: Autoencoder,
    dataset: PhotoDataset,
    batch: int = 8,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    *,
    budget: int | None = None,
    per_tile: int | None = None,
    effort: int = 0,
) -> list[dict[str, Any]]:
    """Return one row per readable photo: index, name, metrics (None if the photo is too small), and numbers used.

    Successive photos of equal size are reconstructed in batches of at most `batch`. With an effort, `psnr`, `ssim` and
    `ms_ssim` are those of amortised q, and `refined_psnr` and so on those of refined q.

    >>> import finola
    >>> from finola.data import CentreCrop, open_data
    >>> data = open_data("smoke", "val", transform=CentreCrop(32))
    >>> rows = evaluate(finola.load("waves/64x1@8:32"), data)
    >>> len(rows), sorted(rows[0])
    (32, ['index', 'latents_per_256', 'ms_ssim', 'photo', 'psnr', 'side_per_256', 'ssim'])
    """
    parameter = next(model.parameters())

    def photos() -> Iterator[tuple[int, Tensor]]:
        for index in progress(range(len(dataset))):
            item = dataset[(0, index)]
            if not item.replaced:
                yield index, item.images[0].float() / 255

    rows = []
    for group in equal_sized(photos(), batch):
        originals = torch.stack([image for _, image in group])
        found = reconstruct(model, originals.to(parameter), budget=budget, per_tile=per_tile, effort=effort)
        columns = [_measured([one.amortised for one in found], originals)]
        if effort:
            columns.append(_measured([one.best for one in found], originals, "refined_"))
        for number, (index, _) in enumerate(group):
            row: dict[str, Any] = {"index": index, "photo": dataset.name(index)}
            for column in columns:
                row |= column[number]
            rows.append(row | found[number].per_256())
    if not rows:
        raise InputError(f"{dataset.source.where} has no readable photo.")
    return rows


def _measured(images: list[Tensor], originals: Tensor, prefix: str = "") -> list[dict[str, float | None]]:
    """Rounded metrics of each image."""
    found = quality_metrics(torch.stack(images).to(originals), originals)
    return [
        {f"{prefix}{k}": None if value is None else round(value, METRICS[k]) for k, value in metrics.items()}
        for metrics in found
    ]


def summarise(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Mean of each metric, and of the numbers used, over the photos that have it.

    >>> summarise([{"psnr": 20.0, "ssim": None, "ms_ssim": None}, {"psnr": 30.0, "ssim": 0.5, "ms_ssim": None}])
    {'psnr': 25.0, 'ssim': 0.5, 'ms_ssim': None}
    """
    keys = [key for key in (*METRICS, *(f"refined_{metric}" for metric in METRICS), *COUNTS) if key in rows[0]]
    values = {key: [row[key] for row in rows if row[key] is not None] for key in keys}
    return {key: round(sum(found) / len(found), 4) if found else None for key, found in values.items()}

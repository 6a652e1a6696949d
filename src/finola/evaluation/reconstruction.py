"""Reconstruction metrics of an autoencoder on a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finola.errors import InputError
from finola.metrics import quality_metrics
from finola.tiling import equal_sized

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset

METRICS = {"psnr": 4, "ssim": 5, "ms_ssim": 5}
"""Metrics and the number of digits that they are rounded to."""


@torch.inference_mode()
def evaluate(
    model: Autoencoder,
    dataset: PhotoDataset,
    batch: int = 8,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> list[dict[str, Any]]:
    """Return one row per readable photo: index, name and metrics (None if the photo is too small).

    Successive photos of equal size are reconstructed in batches of at most `batch`.

    >>> import finola
    >>> from finola.data import CentreCrop, open_data
    >>> data = open_data("smoke", "val", transform=CentreCrop(32))
    >>> rows = evaluate(finola.load("waves/64x1@8:32"), data)
    >>> len(rows), sorted(rows[0])
    (32, ['index', 'ms_ssim', 'name', 'psnr', 'ssim'])
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
        found = quality_metrics(model(originals.to(parameter)).to(originals), originals)
        for (index, _), metrics in zip(group, found, strict=True):
            rounded = {k: None if value is None else round(value, METRICS[k]) for k, value in metrics.items()}
            rows.append({"index": index, "name": dataset.name(index)} | rounded)
    if not rows:
        raise InputError(f"{dataset.source.where} has no readable photo.")
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Mean of each metric over the photos that have it.

    >>> summarise([{"psnr": 20.0, "ssim": None, "ms_ssim": None}, {"psnr": 30.0, "ssim": 0.5, "ms_ssim": None}])
    {'psnr': 25.0, 'ssim': 0.5, 'ms_ssim': None}
    """
    values = {metric: [row[metric] for row in rows if row[metric] is not None] for metric in METRICS}
    return {metric: round(sum(found) / len(found), 4) if found else None for metric, found in values.items()}

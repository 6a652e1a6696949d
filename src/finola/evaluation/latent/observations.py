"""Measure the paper's observations about q on an image set (appendix A.6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finola.errors import InputError
from finola.evaluation.latent.operations import (
    contrast,
    correlation,
    decode,
    encode,
    interpolate,
    mirror,
    project,
    sample,
)
from finola.evaluation.latent.statistics import Statistics
from finola.metrics import psnr

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

SAMPLES = 64
MIXES = (0.25, 0.5, 0.75)


@torch.no_grad()
def observe(model: Autoencoder, statistics: Statistics, images: Iterable[Tensor]) -> dict[str, Any]:
    """Measure the observations of the appendix over images (3, H, W) of one size, float in [0, 1] or uint8.

    - `mean`: spatial standard deviation of the image decoded from q̄, relative to that of reconstructions;
    - `mirror`: correlation of the images decoded from 2q̄ − q and from q, both relative to the one of q̄;
    - `interpolation`: PSNR of the image decoded from an interpolation of two q with respect to the interpolated
      reconstructions, for consecutive images;
    - `components`: PSNR of the image decoded from the first K components, and whether it increases with K;
    - `samples`: median kurtosis of differences of neighbouring pixels, for Gaussian samples of q and for
      reconstructions. It is 3 for Gaussian noise and much larger for photos.
    """
    known = len(statistics.components)
    counts = sorted({*(2**power for power in range(known.bit_length())), known})
    values: dict[str, list[float]] = defaultdict(list)
    before: tuple[Tensor, Tensor] | None = None  # q of the previous image, and its reconstruction
    for image in images:
        original = image[None].float() / (255 if image.dtype == torch.uint8 else 1)
        q, grid, size = encode(model, original)
        points = [q, statistics.mean.expand_as(q), mirror(q, statistics)]
        points += [project(q, statistics, k) for k in counts]
        points += [interpolate(before[0], q, t) for t in MIXES] if before else []
        decoded = decode(model, torch.cat(points), grid, size)
        rebuilt, flat, mirrored = decoded[:1], decoded[1:2], decoded[2:3]
        by_count, mixed = decoded[3 : 3 + len(counts)], decoded[3 + len(counts) :]
        values["psnr"] += psnr(rebuilt, original).tolist()
        values["mirror"] += correlation(mirrored - flat, rebuilt - flat).tolist()
        for k, value in zip(counts, psnr(by_count, original.expand_as(by_count)).tolist(), strict=True):
            values[f"first {k}"].append(value)
        if before:
            for t, one in zip(MIXES, mixed, strict=True):
                values[f"mix {t}"] += psnr(one[None], interpolate(before[1], rebuilt, t)).tolist()
        tiles = rebuilt if grid == (1, 1) else decode(model, q)
        values["std"] += contrast(tiles).tolist()
        values["kurtosis"] += kurtosis(tiles).tolist()
        before = q, rebuilt
    if len(values["psnr"]) < 2:
        raise InputError(f"Observations need at least 2 photos, got {len(values['psnr'])}.")
    mean = decode(model, statistics.mean[None])
    std = float(contrast(mean))
    samples = kurtosis(decode(model, sample(statistics, SAMPLES, torch.Generator().manual_seed(0)))).tolist()
    psnr_by_count = [fmean(values[f"first {k}"]) for k in counts]
    explained = statistics.explained()
    return {
        "model": statistics.model,
        "weights": statistics.weights,
        "fitted_on": statistics.count,
        "images": len(values["psnr"]),
        "psnr": round(fmean(values["psnr"]), 3),
        "mean": {
            "std": round(std, 5),
            "share_of_an_image": round(std / fmean(values["std"]), 5),
            "colour": [round(float(value), 4) for value in mean.mean((0, 2, 3))],
        },
        "mirror": {
            "correlation": round(fmean(values["mirror"]), 4),
            "worst": round(max(values["mirror"]), 4),
            "share_negative": sum(value < 0 for value in values["mirror"]) / len(values["mirror"]),
        },
        "interpolation": {"psnr_to_pixel_mix": {str(t): round(fmean(values[f"mix {t}"]), 3) for t in MIXES}},
        "components": {
            "k": counts,
            "psnr": [round(value, 3) for value in psnr_by_count],
            "variance_held": [round(float(explained[k - 1]), 5) for k in counts],
            "rises_with_k": all(low <= high for low, high in pairwise(psnr_by_count)),
        },
        "samples": {
            "kurtosis": round(median(samples), 3),
            "kurtosis_of_images": round(median(values["kurtosis"]), 3),
        },
    }


def kurtosis(images: Tensor) -> Tensor:
    """Kurtosis of the differences of horizontal neighbours in every image (N, 3, H, W): (N,), about 3 for noise.

    >>> round(float(kurtosis(torch.randn(1, 3, 256, 256))), 0)
    3.0
    """
    squares = images.diff(dim=-1).flatten(1).double().square()
    return (squares.square().mean(1) / squares.mean(1).square().clamp_min(1e-24)).float()

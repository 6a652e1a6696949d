"""The paper's observations about q, measured on an image set instead of shown on a few pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finola.evaluation.latent.operations import contrast, correlation, draw, encode, mirror, mix, project, sample
from finola.evaluation.latent.statistics import Statistics
from finola.metrics import psnr

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

SAMPLES = 64
MIXES = (0.25, 0.5, 0.75)


@torch.no_grad()
def observe(model: Autoencoder, statistics: Statistics, images: Iterable[Tensor]) -> dict[str, Any]:
    """What the appendix says of q, in figures, over images (3, H, W) of one size, float in [0, 1] or uint8.

    - `mean`: the standard deviation over space of what q̄ draws, as a share of that of what an image's q draws;
    - `mirror`: the correlation of what 2q̄ − q and q draw, around what q̄ draws;
    - `interpolation`: PSNR of what a mix of two q draws to the mix of what both draw, each image with the one before;
    - `components`: PSNR of what the first K components draw to the image, and whether it rises with every K;
    - `samples`: the kurtosis of differences between neighbouring pixels, for Gaussian samples of q and for the images'
      own q, by the median. Gaussian noise has 3; a photo, flat but for a few edges, far more.
    """
    known = len(statistics.components)
    counts = sorted({*(2**power for power in range(known.bit_length())), known})
    found: dict[str, list[float]] = defaultdict(list)
    before: tuple[Tensor, Tensor] | None = None  # q, and what it draws
    for image in images:
        original = image[None].float() / (255 if image.dtype == torch.uint8 else 1)
        q, grid, size = encode(model, original)
        moved = [q, statistics.mean.expand_as(q), mirror(q, statistics)]
        moved += [project(q, statistics, k) for k in counts]
        moved += [mix(before[0], q, t) for t in MIXES] if before else []
        drawn = draw(model, torch.cat(moved), grid, size)
        rebuilt, flat, mirrored = drawn[:1], drawn[1:2], drawn[2:3]
        by_count, mixed = drawn[3 : 3 + len(counts)], drawn[3 + len(counts) :]
        found["psnr"] += psnr(rebuilt, original).tolist()
        found["mirror"] += correlation(mirrored - flat, rebuilt - flat).tolist()
        for k, value in zip(counts, psnr(by_count, original.expand_as(by_count)).tolist(), strict=True):
            found[f"first {k}"].append(value)
        if before:
            for t, one in zip(MIXES, mixed, strict=True):
                found[f"mix {t}"] += psnr(one[None], mix(before[1], rebuilt, t)).tolist()
        tiles = rebuilt if grid == (1, 1) else draw(model, q)
        found["std"] += contrast(tiles).tolist()
        found["kurtosis"] += kurtosis(tiles).tolist()
        before = q, rebuilt
    if len(found["psnr"]) < 2:
        raise ValueError(f"observations need at least 2 photos, and there are {len(found['psnr'])}: give more.")
    mean = draw(model, statistics.mean[None])
    std = float(contrast(mean))
    samples = kurtosis(draw(model, sample(statistics, SAMPLES, torch.Generator().manual_seed(0)))).tolist()
    rising = [fmean(found[f"first {k}"]) for k in counts]
    explained = statistics.explained()
    return {
        "model": statistics.model,
        "weights": statistics.weights,
        "fitted_on": statistics.count,
        "images": len(found["psnr"]),
        "psnr": round(fmean(found["psnr"]), 3),
        "mean": {
            "std": round(std, 5),
            "share_of_an_image": round(std / fmean(found["std"]), 5),
            "colour": [round(float(value), 4) for value in mean.mean((0, 2, 3))],
        },
        "mirror": {
            "correlation": round(fmean(found["mirror"]), 4),
            "worst": round(max(found["mirror"]), 4),
            "share_negative": sum(value < 0 for value in found["mirror"]) / len(found["mirror"]),
        },
        "interpolation": {"psnr_to_pixel_mix": {str(t): round(fmean(found[f"mix {t}"]), 3) for t in MIXES}},
        "components": {
            "k": counts,
            "psnr": [round(value, 3) for value in rising],
            "variance_held": [round(float(explained[k - 1]), 5) for k in counts],
            "rises_with_k": all(low <= high for low, high in pairwise(rising)),
        },
        "samples": {
            "kurtosis": round(median(samples), 3),
            "kurtosis_of_images": round(median(found["kurtosis"]), 3),
        },
    }


def kurtosis(images: Tensor) -> Tensor:
    """Of the differences between horizontal neighbours in every image (N, 3, H, W): (N,), about 3 for noise.

    >>> round(float(kurtosis(torch.randn(1, 3, 256, 256))), 0)
    3.0
    """
    squares = images.diff(dim=-1).flatten(1).double().square()
    return (squares.square().mean(1) / squares.mean(1).square().clamp_min(1e-24)).float()

"""The wave start against the KLT, with no gradient step, on photos256 val; and what its encoding costs.

    FINOLA_DATA=folder/with/photos256 python benchmarks/wave_start.py

The KLTs are fitted on the train split; the waves were ranked on it too (finola spectrum photos256). Figures are means
of per-image PSNR over whole 256×256 images.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import finola
from finola.baselines.klt import fit_klt
from finola.data import CentreCrop, open_data
from finola.metrics import psnr
from finola.tiling import cut, join


def photos(split: str, limit: int | None) -> Tensor:
    """All photos of a split as bytes (N, 3, 256, 256)."""
    data = open_data("photos256", split, transform=CentreCrop(256))
    return torch.stack([data.sample(index)[0] for index in range(min(len(data), limit or len(data)))])


@torch.inference_mode()
def mean_psnr(originals: Tensor, reconstruct: Callable[[Tensor], Tensor]) -> float:
    """Mean of per-image PSNR, ten photos at a time."""
    values = [psnr(reconstruct(batch / 255), batch / 255) for batch in originals.split(10)]
    return round(float(torch.cat(values).mean()), 3)


def seconds(run: Callable[[], object], repeats: int = 9) -> float:
    """Median time of one call, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="photos per split, to try it out")
    parser.add_argument("--out", default="results/wave_start.json")
    args = parser.parse_args()
    if not os.environ.get("FINOLA_DATA"):
        sys.exit("wave_start: skipped, for FINOLA_DATA names no folder that holds photos256.")
    train, val = photos("train", args.limit), photos("val", args.limit)
    rows = []

    def report(what: str, latents: int, figure: float) -> None:
        rows.append({"what": what, "latents_per_photo": latents, "psnr": figure})
        print(f"{what:58s} {latents:6d} latents  {figure:.2f} dB", flush=True)

    for channels in (256, 512):
        model = finola.create(f"waves/{channels}x1@16:64").eval()
        report(f"{model.config}, no training", 16 * channels, mean_psnr(val, model))
    tiles = cut(train, (64, 64))[0]
    widest = fit_klt(tiles, min(512, len(tiles)))
    for components in (256, 512):
        klt = type(widest)(widest.mean, widest.components[:components], widest.shape)
        figure = mean_psnr(val, lambda batch, klt=klt: join(klt.decode(klt.encode(cut(batch, (64, 64))[0])), (4, 4)))
        report(f"KLT on 64x64 tiles, {components} components", 16 * components, figure)
    del tiles, widest
    for channels in (1024, 3072):
        model = finola.create(f"waves/{channels}x1@16").eval()
        report(f"{model.config}, no training", channels, mean_psnr(val, model))
    for components in (1024, 3072):
        klt = fit_klt(train, min(components, len(train)))
        report(
            f"KLT on whole photos, {components} components",
            components,
            mean_psnr(val, lambda b, klt=klt: klt.decode(klt.encode(b))),
        )

    model = finola.create("waves/3072x1@16").eval()
    image = val[:1] / 255
    with torch.inference_mode():
        q = model.encode(image)
        encode, grow = seconds(lambda: model.encode(image)), seconds(lambda: model.propagate(q))
    print(f"C = 3072, one 256x256 image: encoding takes {encode / grow:.4f} of propagating", end=" ")
    print(f"({1e3 * encode:.1f} against {1e3 * grow:.0f} ms)")
    result = {
        "command": "python benchmarks/wave_start.py",
        "photos": {"train": len(train), "val": len(val)},
        "rows": rows,
        "encode_over_propagate": round(encode / grow, 5),
        "bars": {"tiles, C = 256": "KLT − 0.15 dB", "whole, C = 3072": 22.5, "encode_over_propagate": 0.1},
    }
    Path(args.out).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

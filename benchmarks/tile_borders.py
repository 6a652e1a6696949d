"""How far tiles show: steps between pixels across tile borders, over steps elsewhere, in decoded photos.

    python benchmarks/tile_borders.py kodak --models waves512 --out results/tile-borders.json

In a photo itself the ratio is 1 but for chance. JPEG's blocks of 8 pixels at the same rate stand beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finola.baselines.image_codecs import file_at_rate
from finola.codec.calibration import load_codec
from finola.codec.codec import compress, decompress
from finola.data import Whole, open_data
from finola.files import write_text
from finola.metrics import psnr


def border_ratio(image: Tensor, period: int) -> float:
    """Mean step across borders every `period` pixels, over the mean step elsewhere, in a photo (3, H, W)."""
    across, elsewhere = [], []
    for steps in (image.float().diff(dim=2).abs().mean((0, 1)), image.float().diff(dim=1).abs().mean((0, 2))):
        border = torch.arange(1, len(steps) + 1) % period == 0
        across.append(steps[border])
        elsewhere.append(steps[~border])
    return float(torch.cat(across).mean() / torch.cat(elsewhere).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="photos (default: FINOLA_DATA)")
    parser.add_argument("--bpp", type=float, default=0.19, help="the most bits per pixel (default: 0.19)")
    parser.add_argument("--models", nargs="+", default=["tile32"])
    parser.add_argument("--effort", type=int, default=0, help="of finola compress")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    photos = open_data(args.data, "all", transform=Whole())
    jpeg = file_at_rate("jpeg", args.bpp)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for index in range(len(photos)):
        original = photos.sample(index)[0]
        drawn = {"the photos themselves, 64 pixels": (original, 64, 0.0)}
        for model in args.models:
            file = compress(original, bpp=args.bpp, model=model, effort=args.effort)
            side = load_codec(model).model.config.image_size[0]
            drawn[f"{model}, {side} pixels"] = decompress(file.data, model=model), side, file.bits_per_pixel
        code = jpeg.encode(original / 255)
        drawn["JPEG, 8 pixels"] = 255 * jpeg.decode(code), 8, code.bits / original[0].numel()
        for name, (image, period, bpp) in drawn.items():
            figure = float(psnr(image[None] / 255, original[None] / 255)) if bpp else float("inf")
            rows.setdefault(name, []).append((border_ratio(image, period), bpp, figure))
    found: dict[str, Any] = {}
    for name, figures in rows.items():
        ratio, bpp, figure = (statistics.mean(column) for column in zip(*figures, strict=True))
        found[name] = {"border_ratio": round(ratio, 3), "worst": round(max(row[0] for row in figures), 3)}
        if bpp:
            found[name] |= {"bpp": round(bpp, 4), "psnr": round(figure, 3)}
        print(f"{name:36s} {found[name]}")
    if args.out:
        models = " ".join(args.models)
        command = (
            f"python benchmarks/tile_borders.py {args.data} --bpp {args.bpp} --models {models} --effort {args.effort}"
        )
        write_text(Path(args.out), json.dumps({"command": command, "photos": len(photos)} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()

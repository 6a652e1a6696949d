"""finola reconstruct: photos → q → photos, at any size, with the figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from finola.names import DEFAULT_MODEL

HELP = "reconstruct photos of any size from their vectors and save them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", nargs="+", help="files, folders, or skimage:NAME")
    parser.add_argument("-o", "--out", default="reconstructed", help="folder to write to (default: %(default)s)")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_MODEL, help="a folder, a name, or a hub id (default: %(default)s)"
    )
    parser.add_argument("--side-by-side", action="store_true", help="also save original and result in one picture")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    import sys

    import torch

    from finola.commands._output import print_json, print_table, progress
    from finola.images import named_photos, read_photo, save_photo, side_by_side
    from finola.metrics import psnr, ssim
    from finola.zoo import load

    photos = [photo for given in args.photos for photo in named_photos(given)]
    model = load(args.model)
    config = model.config
    out, taken = Path(args.out), set[str]()
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    failed = 0
    for photo in progress(photos, len(photos), "reconstructing", quiet=args.json or len(photos) == 1):
        try:
            original = read_photo(photo)[None]
            with torch.inference_mode():
                rebuilt = model(original).clamp(0, 1)
        except (ValueError, OSError) as error:
            print(f"finola reconstruct: {error}", file=sys.stderr)
            failed = 2
            continue
        height, width = original.shape[-2:]
        tiles = -(-height // config.image_size[0]) * -(-width // config.image_size[1])
        name = free_name(photo, taken)
        path = save_photo(rebuilt[0], out / f"{name}.png")
        if args.side_by_side:
            save_photo(side_by_side([original[0], rebuilt[0]]), out / f"{name}-beside-original.png")
        rows.append(
            {
                "photo": str(photo),
                "written": str(path),
                "size": [height, width],
                "latents": tiles * config.channels * config.paths,
                "psnr": round(float(psnr(rebuilt, original)), 3),
                "ssim": round(float(ssim(rebuilt, original)), 4) if min(height, width) >= 11 else None,
            }
        )
    if args.json:
        print_json({"model": str(config), "photos": rows})
        return failed
    if not rows:
        return failed
    body = [
        (r["photo"], "x".join(map(str, r["size"])), f"{r['latents']:,}", f"{r['psnr']:.2f} dB", r["ssim"]) for r in rows
    ]
    print_table(str(config), ["photo", "size", "latents", "PSNR", "SSIM"], body)
    print(f"written to {out}")
    return failed


def free_name(photo: str | Path, taken: set[str]) -> str:
    """The photo's own name; two photos of one name in different folders do not overwrite each other."""
    stem = Path(str(photo).removeprefix("skimage:")).stem
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    taken.add(name)
    return name

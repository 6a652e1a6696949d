"""finola reconstruct: encode photos of any size to q, decode them, and report PSNR and SSIM."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finola.cli.output import add_force
from finola.config import DEFAULT_MODEL

HELP = "reconstruct photos of any size from their latent vectors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", nargs="+", help="files, folders, or skimage:NAME")
    parser.add_argument("-o", "--out", default="reconstructed", help="folder to write to (default: %(default)s)")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_MODEL, help="model folder, name or hub id (default: %(default)s)"
    )
    parser.add_argument(
        "--side-by-side", action="store_true", help="also save original and reconstruction in one image"
    )
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    import torch

    from finola.cli.output import (
        describe_error,
        input_files,
        is_bad_input,
        output_folder,
        print_error,
        print_json,
        print_table,
        progress,
    )
    from finola.files import naming, output_paths
    from finola.image_io import named_photos, read_photo, save_photo, side_by_side
    from finola.metrics import psnr, ssim
    from finola.model_zoo import load

    photos = [photo for given in args.photos for photo in named_photos(given)]
    out = output_folder(args.out)
    kinds = ("", "-beside-original") if args.side_by_side else ("",)
    files = {name: [out / f"{name}{kind}.png" for kind in kinds] for name in unique_names(photos)}
    inputs = input_files(map(str, photos), models=[args.model])
    output_paths([path for paths in files.values() for path in paths], inputs, args.force, create=True)
    model = load(args.model)
    config = model.config
    rows: list[dict[str, Any]] = []
    failed = 0
    work = zip(photos, files.values(), strict=True)
    for photo, paths in progress(work, len(photos), "reconstructing", quiet=args.json or len(photos) == 1):
        try:
            original = read_photo(photo)[None]
            with torch.inference_mode():
                rebuilt = model(original).clamp(0, 1)
        except Exception as error:  # any class, because libraries define their own; defects are re-raised
            if not is_bad_input(error):
                raise
            print_error(args.verb, describe_error(error))
            failed = 2
            continue
        height, width = original.shape[-2:]
        tiles = -(-height // config.image_size[0]) * -(-width // config.image_size[1])
        images = [rebuilt[0], side_by_side([original[0], rebuilt[0]])] if args.side_by_side else [rebuilt[0]]
        for path, image in zip(paths, images, strict=True):
            with naming(path):
                save_photo(image, path)
        rows.append(
            {
                "photo": str(photo),
                "written": str(paths[0]),
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


def unique_names(photos: Sequence[str | Path]) -> list[str]:
    """Names of photos without suffix, numbered if several are equal.

    Names are compared case-insensitively, as on some file systems.

    >>> unique_names(["a/photo.png", "b/Photo.jpg", "skimage:cat"])
    ['photo', 'Photo-2', 'cat']
    """
    taken: dict[str, str] = {}
    for photo in photos:
        stem = Path(str(photo).removeprefix("skimage:")).stem
        name, number = stem, 2
        while name.casefold() in taken:
            name, number = f"{stem}-{number}", number + 1
        taken[name.casefold()] = name
    return list(taken.values())

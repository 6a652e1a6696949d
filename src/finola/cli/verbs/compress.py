"""finola compress: encode photos as .finola files, with one latent vector per tile."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from finola.cli.output import add_force
from finola.config import DEFAULT_CODEC
from finola.errors import InputError

HELP = "compress photos to .finola files"
STRIP_PIXELS = 2**22  # size of the strips for computing PSNR, which limits memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", nargs="+", help="photo files, folders of photos, or skimage:NAME")
    parser.add_argument("-o", "--out", help="output file for one photo, else a folder (default: next to each photo)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--quality", type=int, metavar="1-100", help="quality (default: 50)")
    rate.add_argument("--bpp", type=float, metavar="X", help="maximum bits per pixel")
    parser.add_argument("--latents", type=int, metavar="K", help="maximum number of latents per tile")
    parser.add_argument(
        "--model", default=DEFAULT_CODEC, help="bundled codec, or folder of a calibrated model (default: %(default)s)"
    )
    parser.add_argument(
        "--mode", choices=["coded", "paper"], default="coded", help="paper: four bits per latent without entropy coding"
    )
    parser.add_argument(
        "--effort",
        type=int,
        default=0,
        metavar="0-9",
        help="rate-distortion optimisation with the decoder (default: 0, off)",
    )
    parser.add_argument("--exif", action="store_true", help="keep the EXIF metadata")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: %(default)s)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from finola.cli.output import print_error, print_json, print_table
    from finola.cli.verbs._workers import work_through
    from finola.codec.calibration import load_codec
    from finola.codec.codec import check_options
    from finola.files import output_paths

    options = {key: getattr(args, key) for key in ("quality", "bpp", "latents", "mode", "effort")}
    check_options(**options)  # options, outputs and model are checked before any photo is read
    pairs = targets(args.photos, args.out, ".finola", (".finola",))
    written = output_paths([target for _, target in pairs], [source for source, _ in pairs], args.force, create=True)
    load_codec(args.model)
    options |= {"model": args.model, "keep_exif": args.exif}
    tasks = [(source, str(target), options) for (source, _), target in zip(pairs, written, strict=True)]
    rows, failed = work_through(compress_one, tasks, args, "compressing")
    for row in rows:
        if not row.get("bpp_reached", True):
            text = f"{row['file']} has {row['bpp']:.4g} bits per pixel, the minimum of this model"
            print_error(args.verb, f"{text}; --bpp {args.bpp:g} cannot be reached.")
    if args.json:
        print_json(rows)
        return failed
    if not rows:
        return failed
    body = [
        (
            Path(row["file"]).name,
            f"{row['bytes']:,}",
            f"{row['bpp']:.3f}",
            f"{row['psnr']:.2f}",
            f"{row['seconds']:.2f}",
        )
        for row in rows
    ]
    if len(rows) > 1:
        mean = [sum(row[key] for row in rows) / len(rows) for key in ("bytes", "bpp", "psnr", "seconds")]
        body.append(("mean", f"{mean[0]:,.0f}", f"{mean[1]:.3f}", f"{mean[2]:.2f}", f"{mean[3]:.2f}"))
    print_table(f"compressed with {args.model}", ["file", "bytes", "bpp", "PSNR, dB", "seconds"], body)
    return failed


def targets(words: list[str], out: str | None, suffix: str, suffixes: Collection[str]) -> list[tuple[str, Path]]:
    """Return pairs of a source and its output file.

    `out` is a file for a single source, with one of `suffixes`, or else a folder, in which names end with `suffix`.
    It is treated as a folder if it is one, ends with a slash or has no suffix.
    """
    import glob

    from finola.image_io import find_photos

    sources: list[str] = []
    for word in words:
        folder = Path(word).expanduser()
        if glob.has_magic(word) and not folder.exists():  # not expanded by the shell
            sources += sorted(glob.glob(str(folder), recursive=True))
        elif folder.is_dir():
            found = sorted(folder.rglob("*.finola")) if suffix != ".finola" else find_photos(folder)
            sources += [str(path) for path in found]
        else:
            sources.append(word)
    if not sources:
        raise InputError(f"No input files found in {', '.join(words)}.")
    if out is None:
        return [(source, _default_target(source, suffix)) for source in sources]
    place = Path(out).expanduser()
    if not (place.is_dir() or out.endswith(("/", os.sep)) or place.suffix == ""):
        if len(sources) > 1:
            raise InputError(f"-o {out} is one file, but there are {len(sources)} inputs. Give a folder.")
        if place.suffix.lower() not in suffixes:
            raise InputError(f"-o {out} must end with {' or '.join(suffixes)}, or be a folder.")
        return [(sources[0], place)]
    return [(source, place / (Path(source.removeprefix("skimage:")).stem + suffix)) for source in sources]


def _default_target(source: str, suffix: str) -> Path:
    """Path next to the source, or in the working directory for scikit-image photos.

    If photo.png exists, photo.finola is decompressed to photo.finola.png, since photo.png may be the original.
    """
    if source.startswith("skimage:"):
        return Path(source.removeprefix("skimage:") + suffix)
    path = Path(source).expanduser()
    target = path.with_suffix(suffix)
    alternative = path.with_name(path.name + suffix)
    return alternative if suffix != ".finola" and os.path.lexists(target) else target


def compress_one(source: str, target: str, options: dict[str, Any]) -> dict[str, Any]:
    """Compress one photo to a file and return its size, PSNR and compression time."""
    import time

    from finola.codec.codec import compress, decompress
    from finola.files import write_bytes
    from finola.image_io import Regions, open_photo
    from finola.metrics import psnr_by_strips

    start = time.perf_counter()
    made = compress(source, **options)
    seconds = time.perf_counter() - start
    write_bytes(Path(target), made.data)
    rebuilt = decompress(made.data, model=options["model"])
    original = Regions(open_photo(source), source, srgb=True)
    height, width = original.size
    rows = max(1, STRIP_PIXELS // width)
    strips = ((top, min(height, top + rows)) for top in range(0, height, rows))
    quality = psnr_by_strips((rebuilt[:, top:end], original.read(top, end, 0, width)) for top, end in strips)
    row = {"photo": source, "file": target, "bytes": len(made.data), "bpp": round(made.bits_per_pixel, 5)}
    if options.get("bpp") is not None:
        row["bpp_reached"] = 8 * len(made.data) <= options["bpp"] * width * height
    return row | {"psnr": round(min(quality, 100.0), 4), "seconds": round(seconds, 4)}

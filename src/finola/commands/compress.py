"""finola compress: photos as .finola files, each tile one vector from which its picture is regrown."""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from finola.names import DEFAULT_CODEC

HELP = "compress photos to .finola files"
ROWS = 256  # of a photo that are compared with the original at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", nargs="+", help="photo files, folders of photos, or skimage:NAME")
    parser.add_argument("-o", "--out", help="a file for one photo, else a folder (default: beside each photo)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--quality", type=int, metavar="1-100", help="default: 50")
    rate.add_argument("--bpp", type=float, metavar="X", help="at most so many bits per pixel")
    parser.add_argument("--latents", type=int, metavar="K", help="keep at most so many numbers of every tile")
    parser.add_argument(
        "--model", default=DEFAULT_CODEC, help="a bundled codec or a calibrated model's folder (default: %(default)s)"
    )
    parser.add_argument("--mode", choices=["coded", "paper"], default="coded", help="paper: four plain bits per latent")
    parser.add_argument("--effort", type=int, default=0, metavar="0-9", help="let the decoder correct the encoder")
    parser.add_argument("--exif", action="store_true", help="keep the camera's EXIF block")
    parser.add_argument("--workers", type=int, default=1, help="processes, for many photos")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from finola.codec.calibration import load_codec
    from finola.codec.photo import check_options
    from finola.commands._output import print_json, print_table

    options = {key: getattr(args, key) for key in ("quality", "bpp", "latents", "mode", "effort")}
    check_options(**options)  # this and the next are said before any photo is read
    load_codec(args.model)
    options |= {"model": args.model, "keep_exif": args.exif}
    tasks = [(source, str(target), options) for source, target in targets(args.photos, args.out, ".finola")]
    rows, failed = work_through(compress_one, tasks, args, "compressing")
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


def targets(words: list[str], out: str | None, suffix: str) -> list[tuple[str, Path]]:
    """Where each source's result goes; no two to the same place."""
    import glob

    from finola.images import find_photos

    sources: list[str] = []
    for word in words:
        folder = Path(word).expanduser()
        if glob.has_magic(word) and not folder.exists():  # where no shell has expanded it
            sources += sorted(glob.glob(str(folder), recursive=True))
        elif folder.is_dir():
            found = sorted(folder.rglob("*.finola")) if suffix != ".finola" else find_photos(folder)
            sources += [str(path) for path in found]
        else:
            sources.append(word)
    if not sources:
        raise ValueError(f"there is nothing to do in {', '.join(words)}.")
    one = out is not None and len(sources) == 1 and not Path(out).expanduser().is_dir() and Path(out).suffix != ""
    result = []
    for source in sources:
        name = Path(source.removeprefix("skimage:")).stem + suffix
        if one and out is not None:
            target = Path(out).expanduser()
        elif out is not None:
            target = Path(out).expanduser() / name
        else:
            target = Path(name) if source.startswith("skimage:") else Path(source).expanduser().with_suffix(suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        result.append((source, target))
    twice = [place for place, count in Counter(target for _, target in result).items() if count > 1]
    if twice:
        raise ValueError(f"two photos would both become {twice[0]}: compress them to different folders.")
    return result


def work_through(work: Any, tasks: list[Any], args: argparse.Namespace, what: str) -> tuple[list[Any], int]:
    """What became of each, and the exit code: one that fails is said, and the others go on."""
    import sys

    from finola.commands._output import progress

    results = list(progress(_each(work, tasks, args.workers), len(tasks), what, quiet=args.json))
    failures = [result for result in results if isinstance(result, Exception)]
    for failure in failures:
        print(f"finola {args.verb}: {failure}", file=sys.stderr)
    return [result for result in results if not isinstance(result, Exception)], 2 if failures else 0


def _tried(work: Any, *task: Any) -> Any:
    try:
        return work(*task)
    except (ValueError, OSError) as error:
        return error


def _each(work: Any, tasks: list[Any], workers: int) -> Any:
    """The results in order, by one process or several of one thread each."""
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield _tried(work, *task)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    import torch

    with ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(partial(_tried, work), *zip(*tasks, strict=True))


def compress_one(source: str, target: str, options: dict[str, Any]) -> dict[str, Any]:
    """Write one file and say what it cost."""
    import time

    from finola.codec.photo import compress, decompress
    from finola.files import write_bytes
    from finola.images import open_photo, pixels, to_rgb
    from finola.metrics import psnr_by_strips

    begin = time.perf_counter()
    made = compress(source, **options)
    seconds = time.perf_counter() - begin
    write_bytes(Path(target), made.data)
    rebuilt = decompress(made.data, model=options["model"])
    original = to_rgb(open_photo(source), source)
    width, height = original.size
    tops = range(0, height, ROWS)
    strips = ((rebuilt[:, top : top + ROWS], original.crop((0, top, width, min(height, top + ROWS)))) for top in tops)
    quality = psnr_by_strips((ours, pixels(theirs)) for ours, theirs in strips)
    row = {"photo": source, "file": target, "bytes": len(made.data), "bpp": round(made.bits_per_pixel, 5)}
    return row | {"psnr": round(min(quality, 100.0), 4), "seconds": round(seconds, 4)}

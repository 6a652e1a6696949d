"""finola decompress: decode .finola files to photos."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from finola.cli.output import add_force

HELP = "decompress .finola files to photos"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", help=".finola files, or folders of them")
    parser.add_argument(
        "-o",
        "--out",
        help="file for one input, else a folder (default: PNG next to each, photo.finola.png if photo.png exists)",
    )
    parser.add_argument("--model", help="folder of the model used for compression, if it is not bundled")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: %(default)s)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from finola.cli.output import print_json, print_table
    from finola.cli.verbs._workers import work_through
    from finola.cli.verbs.compress import targets
    from finola.files import output_paths
    from finola.image_io import WRITE

    pairs = targets(args.files, args.out, ".png", tuple(WRITE))
    written = output_paths([target for _, target in pairs], [source for source, _ in pairs], args.force, create=True)
    tasks = [(source, str(target), args.model) for (source, _), target in zip(pairs, written, strict=True)]
    rows, failed = work_through(decompress_one, tasks, args, "decompressing")
    if args.json:
        print_json(rows)
        return failed
    if not rows:
        return failed
    body = [(row["photo"], f"{row['width']}x{row['height']}", f"{row['seconds']:.2f}") for row in rows]
    print_table("decompressed", ["photo", "size", "seconds"], body)
    return failed


def decompress_one(source: str, target: str, model: str | None) -> dict[str, Any]:
    """Decode one file, write the photo, and return its size and the decoding time."""
    import time

    from finola.codec.codec import decode, write_photo
    from finola.codec.container import read_container
    from finola.files import naming

    start = time.perf_counter()
    container = read_container(source)
    image = decode(container, model)
    seconds = time.perf_counter() - start
    with naming(Path(target)):
        write_photo(image, container, Path(target))
    row = {"file": source, "photo": target, "width": container.width, "height": container.height}
    return row | {"seconds": round(seconds, 4)}

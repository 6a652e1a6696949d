"""finola info: print the header of a .finola file without decoding it."""

from __future__ import annotations

import argparse

HELP = "print size, model and settings of a .finola file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a .finola file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json, print_table
    from finola.codec.container import read_container

    container = read_container(args.file)
    size = container.overhead() + len(container.payload)
    fields = {
        "width": container.width,
        "height": container.height,
        "grey": container.grey,
        "bytes": size,
        "bits_per_pixel": round(8 * size / (container.width * container.height), 5),
        "overhead_bytes": container.overhead(),
        "model": container.model,
        "model_hash": container.model_hash.hex(),
        "mode": "paper" if container.mode else "coded",
        "step": container.step,
        "exif_bytes": len(container.exif or b""),
        "icc_bytes": len(container.icc or b""),
    }
    if args.json:
        print_json(fields)
    else:
        print_table(args.file, ["", ""], [(key.replace("_", " "), value) for key, value in fields.items()])

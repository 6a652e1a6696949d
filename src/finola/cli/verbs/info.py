"""finola info: print the header of a .finola file without decoding it, or versions of the installation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import finola
from finola.config import ModelConfig
from finola.hub import UNTRAINED, bundled_models, full_name

if TYPE_CHECKING:
    from finola.codec.container import Container

HELP = "print size, model and settings of a .finola file, or the installed versions"
MODES = ("coded", "paper", "elastic")  # by number in the header
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "lightning", "gradio")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a .finola file; without one, print the installed versions")
    parser.add_argument("--json", action="store_true", help="print JSON")


def tiles(container: Container) -> int | None:
    """Number of tiles of a photo; None if the model of the file is not bundled."""
    if container.model not in (*bundled_models(), *UNTRAINED):  # untrusted input: must not be interpreted as a path
        return None
    height, width = ModelConfig.parse(full_name(container.model)).image_size
    return -(-container.height // height) * -(-container.width // width)


def installation() -> dict[str, object]:
    """Versions to quote in a report of an error: finola, Python, the system and the installed libraries."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, object] = {
        "finola": finola.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    return found | {"models": bundled_models()}


def header(path: str) -> dict[str, object]:
    """Fields of the header of a .finola file."""
    from finola.codec.container import read_container

    container = read_container(path)
    size = container.overhead() + len(container.payload)
    return {
        "width": container.width,
        "height": container.height,
        "grey": container.grey,
        "bytes": size,
        "bpp": round(8 * size / (container.width * container.height), 5),
        "overhead_bytes": container.overhead(),
        "model": container.model,
        "model_hash": container.model_hash.hex(),
        "version": container.version,
        "mode": MODES[container.mode],
        "step": container.step,
        "tiles": tiles(container),
        "exif_bytes": len(container.exif or b""),
        "icc_bytes": len(container.icc or b""),
    }


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json, print_table

    fields = installation() if args.file is None else header(args.file)
    if args.json:
        print_json(fields)
    else:
        shown = {key.replace("_", " "): "–" if value is None else value for key, value in fields.items()}
        if args.file is None:
            shown["models"] = ", ".join(bundled_models())
        print_table("installation" if args.file is None else args.file, ["", ""], list(shown.items()))

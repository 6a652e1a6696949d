"""finola spectrum: rank plane waves by their energy on photos, for the initialisation of wave models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from finola.cli.output import add_force
from finola.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

HELP = "rank plane waves by their energy on photos, to initialise wave models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="?", help="photos in any format that finola train reads (default: FINOLA_DATA)")
    parser.add_argument(
        "--sides",
        type=int,
        nargs="+",
        default=[32, 64, 128, 256],
        help="image sides in pixels (default: 32 64 128 256)",
    )
    parser.add_argument("--waves", type=int, default=2048, help="number of waves per side (default: 2048)")
    parser.add_argument("--limit", type=int, help="maximum number of photos")
    parser.add_argument("-o", "--out", required=True, help="file to write")
    add_force(parser)


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import input_files, progress
    from finola.data import open_data
    from finola.files import output_paths, write_text
    from finola.wave.initialisation import measure_radius
    from finola.wave.spectrum import measure_spectrum

    for name, number in (("--waves", args.waves), ("--limit", args.limit)):
        if number is not None and number < 1:
            raise InputError(f"{name} is {number}, but must be at least 1.")
    [out] = output_paths([args.out], input_files(data=[args.data]), args.force, create=True)
    count = min(len(open_data(args.data, "train")), args.limit or 10**9)
    spectra = []
    for side in args.sides:
        if side < 2:
            raise InputError(f"--sides contains {side}, but sides must be at least 2 pixels.")
        batches = progress(_batches(args.data, side, count), -(-count // BATCH), f"side {side}: ranking")
        spectrum = measure_spectrum(batches, side, keep=args.waves)
        few = min(count, 1000)
        batches = progress(_batches(args.data, side, few), -(-few // BATCH), f"side {side}: amplitudes")
        spectra.append(measure_radius(spectrum, batches).to_json())
    text = json.dumps({"photos": count, "spectra": spectra}, indent=1)
    write_text(out, text + "\n")
    print(f"{out}: {', '.join(str(side) for side in args.sides)} px from {count} photos")


BATCH = 50


def _batches(data: str | None, side: int, count: int) -> Iterator[Tensor]:
    """Yield all tiles of `side` pixels of photos at 256 pixels, since models are applied to crops, not thumbnails."""
    import torch

    from finola.data import CentreCrop, open_data
    from finola.tiling import cut

    whole = 256 if 256 % side == 0 else side
    dataset = open_data(data, "train", transform=CentreCrop(whole))
    for first in range(0, count, BATCH):
        images = torch.stack([dataset.sample(index)[0] for index in range(first, min(first + BATCH, count))])
        yield cut(images.float() / 255, (side, side))[0]

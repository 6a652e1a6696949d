"""finola calibrate: compute the quantiser and entropy model that a model needs as a codec."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from finola.cli.output import add_force
from finola.errors import InputError

HELP = "compute the quantiser and entropy model of a codec"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="model folder, or the name of an untrained wave model")
    parser.add_argument("data", nargs="?", help="photos whose train split is used (default: FINOLA_DATA)")
    parser.add_argument("--tiles", type=int, default=9600, help="number of tiles (default: 9600)")
    parser.add_argument("-o", "--out", help="file to write (default: codec.safetensors in the model folder)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import input_files, print_json
    from finola.codec.calibration import FILE, calibrate
    from finola.files import output_path
    from finola.hub import bundled_models, local_folder
    from finola.model_zoo import load

    folder = None if args.model in bundled_models() else local_folder(args.model)
    target = args.out or (folder and folder / FILE)
    if target is None:
        raise InputError(f"{args.model} is not a folder, so the output file is unknown. Give it with -o FILE.")
    inputs = input_files(data=[args.data], models=[args.model])
    target = output_path(target, inputs, args.force)
    model = load(args.model)
    calibration = calibrate(model, tiles(args.data, model.config.image_size, args.tiles, quiet=args.json))
    calibration.save(target)
    facts = {"file": str(target), "latents": len(calibration.mean), "bytes": target.stat().st_size}
    if args.json:
        print_json(facts)
    else:
        print(f"{target}: calibration of {facts['latents']} latents, {facts['bytes']:,} bytes")


def tiles(data: str | None, size: tuple[int, int], count: int, quiet: bool) -> Iterator[Any]:
    """Yield random tiles of the train split in batches of up to 64, (N, 3, H, W) in [0, 1]."""
    import torch

    from finola.cli.output import progress
    from finola.data import RandomCrop, open_data

    if size[0] != size[1]:
        raise InputError(
            f"Calibration supports square tiles only, but the tiles of this model are {size[0]}x{size[1]}."
        )
    dataset = open_data(data, "train", transform=RandomCrop(size[0]), crops_per_image=2)
    batch: list[Any] = []
    for number in progress(range(-(-count // 2)), -(-count // 2), "reading tiles", quiet=quiet):
        batch.append(dataset[number // len(dataset), number % len(dataset)].images)
        if len(batch) == 32:
            yield torch.cat(batch).float() / 255
            batch = []
    if batch:
        yield torch.cat(batch).float() / 255

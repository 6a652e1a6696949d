"""Photos as the verbs that look inside a model want them: a square of whole tiles, from data or from files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from finola.config import ModelConfig
    from finola.data import PhotoDataset


def add_crop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--crop", type=int, help="cut photos to this square first (default: 256, or the model's size if not in it)"
    )


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument("data", nargs="?", help="photos in any form that finola train takes (default: FINOLA_DATA)")
    parser.add_argument("--split", default=split, help="train, val, test or all (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="use this many photos only, from all over the data")


def cropped_size(args: argparse.Namespace, config: ModelConfig) -> tuple[int, int]:
    """The (height, width) that photos are resized and cut to: whole tiles of the model."""
    own = config.image_size
    if args.crop is not None:
        if args.crop < 1 or any(args.crop % side for side in own):
            raise ValueError(f"--crop {args.crop} holds no whole tiles: {config} takes multiples of {max(own)}.")
        return args.crop, args.crop
    return own if any(256 % side for side in own) else (256, 256)


def open_cropped(args: argparse.Namespace, config: ModelConfig, split: str) -> PhotoDataset:
    """The data that `add_data` asked for, every photo cut to one size; with --limit, photos from all over it."""
    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly

    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit {args.limit} leaves no photo: use 1 or more.")
    data = open_data(args.data, split, transform=CentreCrop(cropped_size(args, config)))
    data.source = evenly(data.source, args.limit)
    return data


def readable(args: argparse.Namespace, data: PhotoDataset, what: str) -> Iterator[tuple[int, Tensor]]:
    """Number and pixels, uint8 (3, H, W), of every photo that can be read, with a progress bar."""
    from finola.cli.output import progress

    for index in progress(range(len(data)), len(data), what, quiet=args.json):
        item = data[0, index]
        if not item.replaced:
            yield index, item.images[0]


def read_cropped(names: Sequence[str], size: tuple[int, int]) -> Tensor:
    """Photos by name, cut like those of a data set: (N, 3, *size) in [0, 1]."""
    import numpy as np
    import torch

    from finola.data import CentreCrop
    from finola.data.transforms import draw
    from finola.image_io import open_photo, shown_size

    images = []
    for name in names:
        photo = open_photo(name)
        view = CentreCrop(size).view(shown_size(photo, name), np.random.default_rng(0))
        images.append(draw(photo, [view], name))
    return torch.cat(images) / 255

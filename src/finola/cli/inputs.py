"""Arguments and readers for photos that are cropped to whole tiles of a model, from data sets or files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from finola.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from finola.config import ModelConfig
    from finola.data import PhotoDataset


def add_crop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--crop",
        type=int,
        help="side of the centre crop in pixels (default: 256, or the model's size if 256 is not a multiple)",
    )


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument("data", nargs="?", help="photos in any format that finola train reads (default: FINOLA_DATA)")
    parser.add_argument("--split", default=split, help="train, val, test or all (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="maximum number of photos, evenly spread over the data")


def cropped_size(args: argparse.Namespace, config: ModelConfig) -> tuple[int, int]:
    """Size (height, width) of the crops, a multiple of the model's image size."""
    own = config.image_size
    if args.crop is not None:
        if args.crop < 1 or any(args.crop % side for side in own):
            raise InputError(
                f"--crop {args.crop} is not a multiple of the tile size of {config}. Use a multiple of {max(own)}."
            )
        return args.crop, args.crop
    return own if any(256 % side for side in own) else (256, 256)


def open_cropped(args: argparse.Namespace, config: ModelConfig, split: str) -> PhotoDataset:
    """Open the data set of the arguments of `add_data`, with all photos cropped to one size."""
    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly

    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit is {args.limit}, but must be at least 1.")
    data = open_data(args.data, split, transform=CentreCrop(cropped_size(args, config)))
    data.source = evenly(data.source, args.limit)
    return data


def readable(args: argparse.Namespace, data: PhotoDataset, what: str) -> Iterator[tuple[int, Tensor]]:
    """Yield index and pixels, uint8 (3, H, W), of every readable photo, with a progress bar."""
    from finola.cli.output import progress

    for index in progress(range(len(data)), len(data), what, quiet=args.json):
        item = data[0, index]
        if not item.replaced:
            yield index, item.images[0]


def read_cropped(names: Sequence[str], size: tuple[int, int]) -> Tensor:
    """Read photos by name, cropped like those of a data set: (N, 3, *size) in [0, 1]."""
    import numpy as np
    import torch

    from finola.data import CentreCrop
    from finola.data.transforms import render_views
    from finola.image_io import open_photo, shown_size

    images = []
    for name in names:
        photo = open_photo(name)
        view = CentreCrop(size).view(shown_size(photo, name), np.random.default_rng(0))
        images.append(render_views(photo, [view], name))
    return torch.cat(images) / 255

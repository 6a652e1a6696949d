"""Inputs shared by the commands: photos, data sets, models, `--limit`, `--device` and crops."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finola.config import DEFAULT_BUDGET, ModelConfig, show_size
from finola.errors import InputError, MissingFileError
from finola.locations import SKIMAGE, evenly_spaced, is_photo, is_special, locate, photos_below

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset
    from finola.data.sources import Source
    from finola.data.transforms import Transform

PHOTOS = "files, folders, patterns such as '*.jpg', names of data in FINOLA_DATA, or skimage:NAME"
PHOTO = "a file, or skimage:NAME"
MODEL = "model folder, bundled name or hub id"
TABLES = (".parquet", ".tar")
"""Suffixes of files that hold many photos."""


class Photo(NamedTuple):
    """A photo that a command works on: a file, `skimage:NAME`, or an entry of a data set."""

    name: str
    data: str | None = None  # the data set, if the photo is not a file
    number: int = 0
    split: str = "all"  # of the data set

    def open(self) -> Image.Image:
        from finola.image_io import open_photo

        return open_photo(self.name) if self.data is None else _source(self.data, self.split).open(self.number)

    def read(self) -> Tensor:
        """Pixels (3, H, W) in [0, 1]."""
        from finola.image_io import read_photo

        return read_photo(self.open(), self.name)

    def read_cropped(self, size: tuple[int, int], crop_pct: float = 1.0) -> Tensor:
        """Centre crop (3, *size) in [0, 1], as evaluation on data sets takes it."""
        from finola.data.transforms import centre_crop

        return centre_crop(self.open(), size, self.name, crop_pct) / 255

    @property
    def stem(self) -> str:
        """Name for output files, without folder and suffix."""
        if self.data is not None:
            return re.sub(r"\W+", "-", self.name).strip("-")
        return Path(self.name.removeprefix(SKIMAGE)).stem


def find_photos(words: Sequence[str], limit: int | None = None, split: str | None = None) -> list[Photo]:
    """Photos that the arguments of a command mean, at most `limit`, evenly spread over them.

    With a `split`, folders, patterns and names are opened as data sets, and only the photos of that split are returned.

    >>> find_photos(["skimage:astronaut", "skimage:coffee"], limit=1)
    [Photo(name='skimage:astronaut', data=None, number=0, split='all')]
    """
    _source.cache_clear()  # files may have changed since an earlier command of this process
    found: list[Photo] = []
    for word in words:
        if split is None:
            found += _every_photo(word)
        elif word.startswith(SKIMAGE) or (is_photo(word) and Path(word).is_file()):
            found.append(Photo(word))
        else:
            found += _photos_of_data(word, split)
    return [found[index] for index in evenly_spaced(len(found), limit)]


def _every_photo(word: str) -> list[Photo]:
    paths = locate(word)
    if paths[0].suffix in TABLES and paths[0].is_file():
        return _photos_of_data(word)
    found: list[Photo] = []
    for path in paths:
        if path.is_dir():
            below = [Photo(str(path / name)) for name in photos_below(path)]
            if not below and not any(any(path.rglob(f"*{suffix}")) for suffix in TABLES):
                raise MissingFileError(f"There is no photo in {path}. Name image files or a folder that contains some.")
            found += below or _photos_of_data(str(path))
        else:
            found.append(Photo(word if word.startswith(SKIMAGE) else str(path)))
    return found


def find_files(words: Sequence[str], suffix: str, limit: int | None = None) -> list[Photo]:
    """Files with a suffix below folders, and all files that are named or match a pattern, as `find_photos`."""
    found: list[Photo] = []
    for word in words:
        for path in locate(word):
            files = sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path]
            found += [Photo(str(file)) for file in files if file == path or not is_special(file)]
    if not found:
        raise MissingFileError(f"There is no {suffix} file in {', '.join(words)}.")
    return [found[index] for index in evenly_spaced(len(found), limit)]


def _photos_of_data(word: str, split: str = "all") -> list[Photo]:
    source = _source(word, split)
    return [Photo(source.name(index), word, index, split) for index in range(len(source))]


@lru_cache(maxsize=8)
def _source(word: str, split: str) -> Source:
    from finola.data.discovery import find_source

    return find_source(word, split)


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Argument type: an integer from `low` to `high`.

    >>> integer(1, 100)("50")
    50
    """

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if number < low or (high is not None and number > high):
            wanted = f"at least {low}" if high is None else f"{low} to {high}"
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {number}")
        return number

    return parse


positive = integer(1)
"""Argument type: an integer of at least 1."""


def positive_number(text: str) -> float:
    """Argument type: a finite number greater than 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return number


def add_photos(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help=PHOTOS)
    add_limit(parser)


def add_limit(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    shown = "" if default is None else " (default: %(default)s)"
    parser.add_argument(
        "--limit",
        type=positive,
        default=default,
        metavar="N",
        help=f"maximum number of photos, evenly spread over the data{shown}",
    )


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument(
        "data",
        nargs="?",
        metavar="DATA",
        help="photos in any format that finola train reads, or a name in FINOLA_DATA (default: FINOLA_DATA itself)",
    )
    parser.add_argument("--split", default=split, help="train, val, test or all (default: %(default)s)")
    add_limit(parser)


def add_model(parser: argparse.ArgumentParser, default: str | None = None, help: str = MODEL) -> None:
    """Add -m/--model and --device; a model without default is required."""
    shown = "" if default is None else " (default: %(default)s)"
    parser.add_argument("-m", "--model", required=default is None, default=default, help=f"{help}{shown}")
    add_device(parser)


def add_leading_model(parser: argparse.ArgumentParser, help: str = MODEL) -> None:
    """Add the model as first positional argument, or as -m/--model; `take_leading_model` reads it."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help)
    parser.add_argument("-m", "--model", dest="chosen", metavar="MODEL", help="the same as an option")
    add_device(parser)


def take_leading_model(args: argparse.Namespace) -> None:
    """Set `args.model`. With -m, the first positional argument is the data, as in `finola evaluate -m tile32 kodak`."""
    if args.chosen is not None:
        if args.model is not None:
            if getattr(args, "data", "") is not None:
                raise InputError(f"The model is given twice: {args.chosen} and {args.model}. Remove one.")
            args.data = args.model
        args.model = args.chosen
    if args.model is None:
        raise InputError("No model given. Name one, such as tile32; finola models lists those that are bundled.")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="where the model runs (default: auto, a GPU if there is one)",
    )


def add_batch(parser: argparse.ArgumentParser, default: int = 8) -> None:
    parser.add_argument(
        "--batch",
        type=positive,
        default=default,
        metavar="N",
        help="maximum number of photos of equal size processed together (default: %(default)s)",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add --budget and --per-tile."""
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--budget",
        type=positive,
        metavar="N",
        help=f"elastic models: numbers per 256×256 pixels, shared out by need over the tiles, side information "
        f"included (default: {DEFAULT_BUDGET})",
    )
    number.add_argument(
        "--per-tile", type=positive, metavar="K", help="elastic models: the same number of latents in every tile"
    )


def add_effort(
    parser: argparse.ArgumentParser, help: str = "refine q by gradient descent through the decoder (default: 0, off)"
) -> None:
    parser.add_argument("--effort", type=integer(0, 9), default=0, metavar="0-9", help=help)


def budget_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of `add_budget` and `add_effort` as arguments of `finola.evaluation.reconstruction.reconstruct`."""
    return {"budget": args.budget, "per_tile": args.per_tile, "effort": args.effort}


def device_of(args: argparse.Namespace) -> torch.device:
    """Device that --device means."""
    from finola.model_zoo import choose_device

    return choose_device(args.device)


def load_model(args: argparse.Namespace) -> Autoencoder:
    """Load the autoencoder of -m/--model onto --device."""
    from finola.model_zoo import load

    model = load(args.model)  # raises for an unknown name before torch is imported
    return model.to(device_of(args))


def add_whole_crop(parser: argparse.ArgumentParser) -> None:
    """Add --crop for commands that otherwise process whole photos."""
    parser.add_argument(
        "--crop",
        type=positive,
        metavar="SIDE",
        help="resize the short side of every photo to SIDE pixels and crop the centre (default: whole photos)",
    )


def add_crop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--crop",
        type=positive,
        help="side of the centre crop in pixels (default: 256, or the model's size if 256 is not a multiple)",
    )


def cropped_size(args: argparse.Namespace, config: ModelConfig) -> tuple[int, int]:
    """Size (height, width) of the crops, a multiple of the model's image size."""
    own = config.image_size
    if args.crop is not None:
        if any(args.crop % side for side in own):
            raise InputError(f"--crop {args.crop} is not a multiple of the tiles of {args.model}, {show_size(own)}.")
        return args.crop, args.crop
    return own if any(256 % side for side in own) else (256, 256)


def open_dataset(
    args: argparse.Namespace, transform: Transform, split: str | None = None, crops_per_image: int = 1
) -> PhotoDataset:
    """Open the data set of the arguments of `add_data`, restricted by --limit."""
    from finola.data import open_data
    from finola.data.sources import evenly

    data = open_data(args.data, split or args.split, transform=transform, crops_per_image=crops_per_image)
    data.source = evenly(data.source, args.limit)
    return data


def open_cropped(args: argparse.Namespace, config: ModelConfig, split: str | None = None) -> PhotoDataset:
    """Open the data set of the arguments of `add_data`, with all photos cropped to one size."""
    from finola.data import CentreCrop

    return open_dataset(args, CentreCrop(cropped_size(args, config)), split)


def readable(data: PhotoDataset, what: str) -> Iterator[tuple[int, Tensor]]:
    """Yield index and pixels, uint8 (3, H, W), of every readable photo, and report progress."""
    from finola.cli.output import progress

    for index in progress(range(len(data)), len(data), what):
        item = data[0, index]
        if not item.replaced:
            yield index, item.images[0]


def read_cropped(names: Sequence[str], size: tuple[int, int]) -> Tensor:
    """Read photos by name, cropped like those of a data set: (N, 3, *size) in [0, 1]."""
    import torch

    return torch.stack([photo.read_cropped(size) for photo in find_photos(names)])

"""The models on the page: those that can write files first, each loaded once and shared by all visitors, read only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from finola import zoo
from finola.codec.calibration import BUNDLED as UNTRAINED
from finola.codec.calibration import FILE, load_codec
from finola.config import DEFAULT_CODEC, ModelConfig
from finola.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.codec.calibration import CodecModel
    from finola.evaluation.latent import Statistics

WHOLE = "waves/1024x1@16"  # one vector for a whole photo of 256×256, with nothing trained
ENOUGH = 2048  # tiles that statistics are measured on where a model brings none
CROP = 256
PIXELS = 2_000_000
"""The most that a model is given. On two cores the slowest bundled model, tile64-512, takes 3 to 6 seconds per million
pixels, including the JPEG and the metrics: a comparison takes about ten seconds, and memory stays below 1.5 GB."""


@dataclass(frozen=True)
class Opened:
    """A model of the page, and its codec where it has tables."""

    name: str
    model: Autoencoder
    codec: CodecModel | None


def names() -> list[str]:
    """Every model of the page; the one that `finola compress` takes comes first.

    >>> names()[0] == DEFAULT_CODEC
    True
    """
    bundled = zoo.bundled_names()
    coding = [name for name in bundled if (zoo.BUNDLED / name / FILE).is_file()]
    return list(dict.fromkeys([DEFAULT_CODEC, *coding, *UNTRAINED, *bundled, WHOLE]))


def label(name: str) -> str:
    """What the list of models calls one.

    >>> label("waves512")
    'waves512, not trained'
    """
    return f"{name}, {'trained' if name in zoo.bundled_names() else 'not trained'}"


def describe(name: str) -> str:
    """What a model keeps of a photo, in a sentence.

    >>> describe("waves512")
    'waves512 keeps 512 numbers for every 64 × 64 pixels, and nothing in it was trained.'
    """
    config = ModelConfig.parse(UNTRAINED.get(name) or zoo.full_name(name))
    height, width = config.image_size
    numbers = f"{name} keeps {config.channels * config.paths:,} numbers for every {width} × {height} pixels"
    return f"{numbers}." if name in zoo.bundled_names() else f"{numbers}, and nothing in it was trained."


@cache
def open_model(name: str) -> Opened:
    """A model of the page by its name, and no other: what a visitor sends is no path."""
    if name not in names():
        raise UnknownNameError(f"There is no model {name!r} on this page. Choose one of {', '.join(names())}.")
    codec = load_codec(name) if name in UNTRAINED or (zoo.BUNDLED / name / FILE).is_file() else None
    return Opened(name, zoo.load(UNTRAINED.get(name, name)), codec)


_measuring = Lock()


def statistics(name: str) -> tuple[Statistics, str]:
    """Mean and principal components of a model's q, and where they come from in one sentence."""
    with _measuring:  # the second who asks waits for the first
        return _statistics(name)


@cache
def _statistics(name: str) -> tuple[Statistics, str]:
    from finola.evaluation.latent import Statistics, fit, kept_with

    model = open_model(name).model
    if kept := kept_with(name):
        found = Statistics.load(kept, model)
        return found, f"The mean and the components come with {name}, measured on {found.count:,} pictures."
    found = fit(model, _crops(model.config.image_size))
    return found, (
        f"{name} brings no statistics of its own: its mean and components were measured here, on {found.count:,} "
        f"pieces of the photos that scikit-image installs."
    )


def _crops(size: tuple[int, int]) -> Iterator[Tensor]:
    from finola.data.smoke import SmokeSource
    from finola.image_io import pixels

    source = SmokeSource("all")
    pieces = max(1, CROP // size[0]) * max(1, CROP // size[1])
    for index in range(min(len(source), -(-ENOUGH // pieces))):
        yield pixels(source.open(index))

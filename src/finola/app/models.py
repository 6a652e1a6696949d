"""Models available on the page, loaded once and shared read-only by all sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from finola.codec.calibration import bundled_codecs, coded_codecs, load_codec
from finola.config import DEFAULT_CODEC, ModelConfig
from finola.errors import UnknownNameError
from finola.hub import bundled_models, full_name
from finola.model_zoo import load

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.codec.calibration import CodecModel, ElasticCodec
    from finola.evaluation.latent import Statistics

WHOLE = "waves/1024x1@16"  # one vector for a 256×256 photo, untrained
STATISTICS_TILES = 2048  # used to compute statistics for models without stored ones
CROP = 256
PIXELS = 2_000_000
"""Maximum size of a model's input. On two cores the slowest bundled model, photo256, takes 3 to 6 seconds per million
pixels, including other formats and metrics: a comparison takes about ten seconds, and memory stays below 1.5 GB."""


@dataclass(frozen=True)
class Opened:
    """A model of the page, and its codec if it is calibrated."""

    name: str
    model: Autoencoder
    codec: CodecModel | ElasticCodec | None


def names() -> list[str]:
    """Names of all models of the page: the default codec first, then other codecs, then models without codec.

    >>> names()[0] == DEFAULT_CODEC
    True
    """
    return list(dict.fromkeys([DEFAULT_CODEC, *coded_codecs(), *_trained(), WHOLE]))


def _trained() -> list[str]:
    return bundled_models("autoencoder")


def label(name: str) -> str:
    """Label of a model in the list.

    >>> label("waves512")
    'waves512, not trained'
    """
    return f"{name}, {'trained' if name in _trained() else 'not trained'}"


def describe(name: str) -> str:
    """Describe the latent size of a model.

    >>> describe("waves512")
    'waves512 stores 512 latents per 64 × 64 pixels and is not trained.'
    """
    config = ModelConfig.parse(full_name(name))
    height, width = config.image_size
    number = f"{'up to ' if config.elastic else ''}{config.channels * config.paths:,}"
    numbers = f"{name} stores {number} latents per {width} × {height} pixels"
    return f"{numbers}." if name in _trained() else f"{numbers} and is not trained."


def is_elastic(name: str) -> bool:
    """Whether the number of latents of a model can be chosen."""
    return bool(ModelConfig.parse(full_name(name)).elastic)


def limits(name: str) -> list[str]:
    """What a model cannot do, one sentence each.

    >>> limits("waves512")[0]
    'Its q has a fixed length: the number of latents cannot be chosen.'
    """
    config = ModelConfig.parse(full_name(name))
    height, width = config.image_size
    found = []
    if not config.elastic:
        found.append("Its q has a fixed length: the number of latents cannot be chosen.")
    if name not in coded_codecs():
        found.append("It has no codec. It writes no file.")
    if max(height, width) < CROP:
        found.append(f"It has no vector of a whole photo: each tile of {width} × {height} pixels has its own.")
    return found


@cache
def open_model(name: str) -> Opened:
    """Load a model of the page by name. Other names and paths raise, since the name is untrusted input."""
    if name not in names():
        raise UnknownNameError(f"Unknown model {name!r}. Choose one of {', '.join(names())}.")
    codec = load_codec(name) if name in bundled_codecs() else None  # a codec has the model, so it is in memory once
    return Opened(name, load(name) if codec is None else codec.model, codec if name in coded_codecs() else None)


_measuring = Lock()


def statistics(name: str) -> tuple[Statistics, str]:
    """Mean and principal components of a model's q, and a sentence on their source."""
    with _measuring:  # concurrent requests wait for the first one
        return _statistics(name)


@cache
def _statistics(name: str) -> tuple[Statistics, str]:
    from finola.evaluation.latent import Statistics, fit, stored_statistics

    model = open_model(name).model
    if path := stored_statistics(name):
        found = Statistics.load(path, model)
        return found, f"The mean and components are stored with {name}, computed on {found.count:,} images."
    found = fit(model, _crops(model.config.image_size))
    return found, (
        f"{name} has no stored statistics: its mean and components were computed here on {found.count:,} tiles "
        f"of scikit-image's photos."
    )


def _crops(size: tuple[int, int]) -> Iterator[Tensor]:
    from finola.data.smoke import SmokeSource
    from finola.image_io import pixels

    source = SmokeSource("all")
    pieces = max(1, CROP // size[0]) * max(1, CROP // size[1])
    for index in range(min(len(source), -(-STATISTICS_TILES // pieces))):
        yield pixels(source.open(index))

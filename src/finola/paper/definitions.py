"""What a table or figure of the paper is made of: rows, numbers that it prints, and claims with their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from finola.config import ModelConfig

WAVE_METRICS = (
    *("path_inconsistency", "commutator"),
    "explained",  # share of the variance of Δx z that Q Δy z explains, with the best Q, fitted to other photos
    "explained_shuffled",  # the same for Δy z of another photo
    "explained_by_Q",  # with Q = AB⁻¹
    *("invertible_B", "cond_V", "complex_share"),  # on the complement of the all-ones vector
    *("speed_10", "speed_50", "speed_90"),  # quantiles of |λ|; those of random matrices are about 1/3, 1 and 3
)
LATENT_METRICS = (
    "mean_contrast",  # standard deviation of the image of q̄ relative to that of an image
    "mirror_correlation",  # of the images of 2q̄ − q and q, relative to that of q̄
    "mixture_psnr",  # of the image of (q₁ + q₂)/2 with respect to the mean of the images
    "component_gain",  # smallest increase of PSNR from K components to the next K
    "first_components",  # fraction of the variance of q in the first sixteenth of its components
    "sample_kurtosis",  # of neighbouring pixels of Gaussian samples of q, relative to that of images
)
PROBES = ("lin", "knn", "tran-1")  # accuracy in percent of probes of the frozen encoder
CRITICAL = (1, 5, 10)  # percent of the channels of each photo, those of the largest peak curvature
CURVATURE_METRICS = tuple(
    f"{kind}-curvature-{percent}{suffix}"  # of maps as they are, and of maps scaled to a standard deviation of 1
    for kind in ("z", "encoder")
    for suffix in ("", "-scaled")
    for percent in CRITICAL
)
PROBE_METRICS = (
    *(*PROBES, "fine-tuned"),
    "reconstruction",  # PSNR of FINOLA with the frozen encoder
    *CURVATURE_METRICS,
)
"""Metrics of an encoder, which need labelled photos."""
UNITS = {"psnr": "dB", "train_mode_psnr": "dB", "reconstruction": "dB", "klt": "dB"}
UNITS |= dict.fromkeys((*PROBES, "fine-tuned"), "%")
Settings = Mapping[str, Any]
Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Twin:
    """How the small twins `cpu/…` differ from the rows of the paper: models that learn within minutes on a CPU.

    They reproduce comparisons, not the PSNR. All transitions and all controls have the same encoder, decoder and
    optimiser, those of the recipe `_fit`.
    """

    image_size: int = 32
    map_sides: Mapping[int, int] = field(default_factory=dict)  # side of the map by that of the paper
    channel_divisor: int = 32
    encoder_divisor: int = 45  # Mobile-Former W720 … W5760 become residual encoders of width 16 … 128
    decoder: str = "residual32"
    grower: str = "resae32"  # residual Conv-AE

    def model(self, name: str) -> str:
        """The twin of a model."""
        config = ModelConfig.parse(name)
        height, width = (self.map_sides[side] for side in config.map_size)
        small = replace(
            config,
            encoder=f"residual-w{int(config.encoder.removeprefix('mf-w')) // self.encoder_divisor}",
            channels=config.channels // self.channel_divisor,
            transition=self.grower if config.transition == "conv-ae" else config.transition,
            decoder=self.decoder if config.decoder == "upsample" else config.decoder,
            map_size=(height, width),
            image_size=(self.image_size, self.image_size),
        )
        return str(small)


TWIN = Twin(map_sides={8: 4, 16: 8, 32: 8, 64: 16, 128: 32, 256: 32})


@dataclass(frozen=True)
class Row:
    """A model to train: what distinguishes it in its table, its one-line name, and its numbers in the paper."""

    about: str
    model: str
    psnr: float | None = None  # in dB
    quoted: Numbers = field(default_factory=dict)  # other numbers


@dataclass(frozen=True)
class Same:
    """A row with the settings of another row, such as `channels/3072`, or of a recipe, and what differs from it."""

    of: str
    about: str
    quoted: Numbers = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    twin: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that differ at CPU scale
    cpu: tuple[str, ...] = ()  # overrides at CPU scale only


@dataclass(frozen=True)
class Check:
    """A comparison: a metric of each of several rows, whose `margin` is positive if a seed supports the claim.

    `text` describes it; {0}, {1}, … are the names of the rows. The metric of a run that diverged is minus infinity.
    """

    rows: tuple[str, ...]
    metrics: tuple[str, ...]
    text: str
    margin: Callable[..., float]
    unit: str


def _rise(low: float, high: float) -> float:
    """high − low, where minus infinity equals itself."""
    return 0.0 if high == low else high - low


def _finite(margin: float) -> float:
    """A margin that is minus infinity if a run diverged: nothing can be said of how near such runs are."""
    return margin if math.isfinite(margin) else -math.inf


def _pair(first: str, second: str, text: str, margin: Callable[..., float], metric: str = "psnr") -> Check:
    return Check((first, second), (metric, metric), text, margin, UNITS.get(metric, metric))


def increasing(*rows: str, metric: str = "psnr") -> tuple[Check, ...]:
    """The metric increases from each row to the next."""
    return tuple(_pair(low, high, "{1} above {0}", _rise, metric) for low, high in pairwise(rows))


def above(low: str, high: str, *, by: float, metric: str = "psnr") -> Check:
    """The metric of the second row is higher than that of the first by at least `by`."""
    return _pair(low, high, f"{{1}} at least {by:g} above {{0}}", lambda a, b: _rise(a, b) - by, metric)


def exceeds(row: str, metric: str, bound: str, *, by: float = 0.0) -> Check:
    """A metric of a row is higher than another one, which is its control, by at least `by`."""
    text = f"{metric.upper()} of {{0}} {f'at least {by:g} ' if by else ''}above {bound.upper()}"
    return Check((row, row), (metric, bound), text, lambda value, other: value - other - by, UNITS.get(metric, metric))


def near(first: str, second: str, *, within: float, metric: str = "psnr") -> Check:
    """The metrics of two rows differ by at most `within`."""
    text = f"{{0}} and {{1}} within {within:g}"
    return _pair(first, second, text, lambda a, b: _finite(within - abs(a - b)), metric)


def gains_at_most(low: str, high: str, *, limit: float) -> Check:
    """The PSNR of the second row is higher than that of the first by at most `limit`."""
    text = f"{{1}} at most {limit:g} above {{0}}"
    return _pair(low, high, text, lambda a, b: _finite(limit - (b - a)))


def diverges(row: str, *, floor: float) -> Check:
    """The loss of a row becomes infinite, or its PSNR stays below `floor`, that of a constant image."""
    return Check((row,), ("psnr",), f"{{0}} below {floor:g}", lambda value: floor - value, "dB")


def at_least(row: str, metric: str, bound: float) -> Check:
    """A metric of a row is at least `bound`."""
    return Check((row,), (metric,), f"{metric} of {{0}} at least {bound:g}", lambda value: value - bound, "")


def at_most(row: str, metric: str, bound: float) -> Check:
    """A metric of a row is at most `bound`."""
    return Check((row,), (metric,), f"{metric} of {{0}} at most {bound:g}", lambda value: _finite(bound - value), "")


def drops(row: str, *, first: str, second: str, by: float) -> Check:
    """The second metric of a row is lower than the first by at least `by`."""
    text = f"{second} of {{0}} at least {by:g} below {first}"
    return Check(
        (row, row),
        (first, second),
        text,
        lambda before, after: _rise(after, before) - by,
        UNITS.get(first, first),
    )


@dataclass(frozen=True)
class Claim:
    """A claim in one sentence and the checks that decide its verdict.

    Its rows are those of its table that the checks name, or `rows`. With a `source`, a key of
    `finola.paper.claims.SOURCES`, they are stored outputs of other commands, and nothing is trained.
    """

    name: str
    sentence: str
    checks: tuple[Check, ...]
    rows: Mapping[str, Same] = field(default_factory=dict)
    also: tuple[str, ...] = ()  # labels of other tables and figures that make this claim
    metrics: tuple[str, ...] = ("psnr", "klt")
    curve: bool = False  # store PSNR over images seen
    parameters: bool = False  # show the numbers of parameters
    scales: tuple[str, ...] = ("paper", "cpu")
    source: str = ""

    @property
    def labelled(self) -> bool:
        """Whether its metrics need labelled photos."""
        return bool({*self.metrics} & {*PROBE_METRICS})


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper, or a part of it, by its label in the LaTeX source.

    Each row is trained by the recipe `paper/NAME/ROW` and by its twin `cpu/NAME/ROW`.
    """

    label: str  # empty for results of our own
    sentence: str
    name: str = ""
    part: str = ""
    rows: Mapping[str, Row | Same] = field(default_factory=dict)
    recipes: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # further recipes, in the form of a YAML file
    quoted: tuple[dict[str, Any], ...] = ()  # results of other methods, and those without a row
    claims: tuple[Claim, ...] = ()
    commands: tuple[str, ...] = ()  # that reproduce it at the scale of the paper, in this order
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # further ones of `finola models`, by title
    page: str = ""  # of docs/, with measurements
    needs: str = ""  # data that are not shipped


def claim(name: str, sentence: str, *checks: Check | tuple[Check, ...], **options: Any) -> Claim:
    """A `Claim` of checks and of several checks; those on labelled photos have runs at CPU scale only."""
    if {*options.get("metrics", ())} & {*PROBE_METRICS}:
        options["scales"] = ("cpu",)
    found = (check if isinstance(check, tuple) else (check,) for check in checks)
    return Claim(name, sentence, tuple(one for several in found for one in several), **options)


def table(label: str, sentence: str, *claims: Claim, **options: Any) -> Table:
    """A `Table` with its claims."""
    return Table(label, sentence, claims=claims, **options)


def numbers(columns: str, *rows: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """Rows of a printed table by the names of its columns.

    >>> numbers("method psnr", ("JPEG", 24.0))
    ({'method': 'JPEG', 'psnr': 24.0},)
    """
    return tuple(dict(zip(columns.split(), row, strict=True)) for row in rows)

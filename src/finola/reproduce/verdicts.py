"""Verdicts on claims: comparisons of rows over seeds, and how clearly they support a claim.

A check compares rows. Each comparison has one margin per seed, positive if that seed supports the claim.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

HOLDS, WEAKLY, FAILS = "holds", "holds weakly", "does not hold at this scale"
NEEDS_DATA, NOT_RUN = "needs data we do not ship", "not run yet"
STATUSES = (HOLDS, WEAKLY, FAILS, NEEDS_DATA, NOT_RUN)
NOISE_FACTOR = 2
"""A claim holds if the mean margin exceeds this many standard errors over seeds."""

Metrics = Mapping[str, float | None]
"""Metrics of one run; None if the run diverged or has no such metric."""
Results = Mapping[str, Sequence[Metrics]]
"""Metrics of each row, by name; one entry per seed, in the same order for all rows."""


@dataclass(frozen=True)
class Comparison:
    """A comparison in words, its unit, and its margin for each seed."""

    text: str
    unit: str
    margins: tuple[float, ...]


@dataclass(frozen=True)
class Verdict:
    """Status of a claim, decided by its weakest comparison, with the margin and its standard deviation over seeds."""

    status: str
    comparison: str = ""
    unit: str = ""
    margin: float = math.nan
    noise: float | None = None  # None for a single seed


Check = Callable[[Results], list[Comparison]]
UNITS = {"psnr": "dB", "train_mode_psnr": "dB", "lin": "%", "tran-1": "%", "fine-tuned": "%", "reconstruction": "dB"}


def _value(metrics: Metrics, metric: str) -> float:
    """Value of a metric; minus infinity for a run that diverged."""
    value = metrics.get(metric)
    return -math.inf if value is None else value


def _margins(results: Results, rows: Sequence[str], metric: str, margin: Callable[..., float]) -> tuple[float, ...]:
    """Apply `margin` to the values of the rows, seed by seed."""
    seeds = zip(*(results[row] for row in rows), strict=True)
    return tuple(margin(*(_value(metrics, metric) for metrics in seed)) for seed in seeds)


def _difference(high: float, low: float) -> float:
    """high − low, where minus infinity, a diverged run, equals itself."""
    return 0.0 if high == low else high - low


def _both(margin: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """A margin that is minus infinity if one of the runs diverged: nothing can be said of how near they are."""
    return lambda a, b: -math.inf if math.inf in (-a, -b) else margin(a, b)


def increasing(*rows: str, metric: str = "psnr") -> Check:
    """The metric increases from each row to the next.

    >>> increasing("a", "b")({"a": [{"psnr": 20.0}], "b": [{"psnr": 21.5}]})[0].margins
    (1.5,)
    """

    def check(results: Results) -> list[Comparison]:
        return [
            Comparison(
                f"{high} above {low}",
                UNITS.get(metric, metric),
                _margins(results, (high, low), metric, _difference),
            )
            for low, high in pairwise(rows)
        ]

    return check


def near(first: str, second: str, *, within: float, metric: str = "psnr") -> Check:
    """The metrics of two rows differ by at most `within`."""

    def check(results: Results) -> list[Comparison]:
        margins = _margins(results, (first, second), metric, _both(lambda a, b: within - abs(a - b)))
        unit = UNITS.get(metric, metric)
        return [Comparison(f"{first} and {second} within {within:g}", unit, margins)]

    return check


def gains_at_most(high: str, low: str, *, limit: float, metric: str = "psnr") -> Check:
    """The first row is better than the second by at most `limit`."""

    def check(results: Results) -> list[Comparison]:
        margins = _margins(results, (high, low), metric, _both(lambda a, b: limit - (a - b)))
        return [Comparison(f"{high} at most {limit:g} above {low}", UNITS.get(metric, metric), margins)]

    return check


def diverges(row: str, floor: float) -> Check:
    """The loss of a row becomes infinite, or its PSNR stays below `floor`, that of a constant image."""

    def check(results: Results) -> list[Comparison]:
        margins = _margins(results, (row,), "psnr", lambda value: floor - value)
        return [Comparison(f"{row} below {floor:g}", UNITS["psnr"], margins)]

    return check


def at_least(row: str, metric: str, bound: float) -> Check:
    """A metric of a row is at least `bound`."""

    def check(results: Results) -> list[Comparison]:
        margins = _margins(results, (row,), metric, lambda value: value - bound)
        return [Comparison(f"{metric} of {row} at least {bound:g}", "", margins)]

    return check


def at_most(row: str, metric: str, bound: float) -> Check:
    """A metric of a row is at most `bound`. A run that diverged fails."""

    def check(results: Results) -> list[Comparison]:
        margins = _margins(results, (row,), metric, lambda value: bound - value if value > -math.inf else -math.inf)
        return [Comparison(f"{metric} of {row} at most {bound:g}", "", margins)]

    return check


def drops(row: str, *, first: str, second: str, by: float) -> Check:
    """The second metric of a row is lower than the first by at least `by`."""

    def check(results: Results) -> list[Comparison]:
        margins = tuple(_difference(_value(run, first), _value(run, second)) - by for run in results[row])
        return [Comparison(f"{second} of {row} at least {by:g} below {first}", UNITS.get(first, first), margins)]

    return check


def judge(comparison: Comparison) -> Verdict:
    """Judge one comparison: does the mean margin exceed the noise over seeds?

    A single seed supports a claim weakly at best, and so do seeds of which only some diverged.
    """
    margins = comparison.margins
    if any(math.isinf(margin) for margin in margins):
        margin = min(margins)
        clear = len(margins) > 1 and math.isinf(margin)
        return _verdict(comparison, margin, 0.0 if len(margins) > 1 else None, clear)
    margin = statistics.fmean(margins)
    if len(margins) == 1:
        return _verdict(comparison, margin, None, False)
    noise = statistics.stdev(margins)
    return _verdict(comparison, margin, noise, margin > NOISE_FACTOR * noise / math.sqrt(len(margins)))


def _verdict(comparison: Comparison, margin: float, noise: float | None, clear: bool) -> Verdict:
    status = FAILS if margin <= 0 else HOLDS if clear else WEAKLY
    return Verdict(status, comparison.text, comparison.unit, margin, noise)


def verdict(checks: Sequence[Check], results: Results) -> Verdict:
    """Verdict on a claim: that of its weakest comparison."""
    judged = [judge(comparison) for check in checks for comparison in check(results)]
    return max(judged, key=lambda found: (STATUSES.index(found.status), -found.margin))

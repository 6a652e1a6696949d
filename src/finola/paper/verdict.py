"""Verdicts on claims: comparisons of rows over seeds, and how clearly they support a claim.

A check compares rows. Each comparison has one margin per seed, positive if that seed supports the claim.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from finola.paper.definitions import Check

HOLDS, WEAKLY, FAILS = "holds", "holds weakly", "does not hold at this scale"
NEEDS_DATA, NOT_RUN = "needs data we do not ship", "not run yet"
STATUSES = (HOLDS, WEAKLY, FAILS, NEEDS_DATA, NOT_RUN)
SIGNIFICANCE, MIN_SEEDS = 0.05, 3
"""A claim holds if the probability of its margins, were their mean zero, is smaller; with fewer seeds only weakly."""

Metrics = Mapping[str, float | None]
"""Metrics of one run; None if the run diverged or has no such metric."""
Results = Mapping[str, Sequence[Metrics]]
"""Metrics of each row, by name; one entry per seed, in the same order for all rows."""
UNITS = {"psnr": "dB", "train_mode_psnr": "dB", "reconstruction": "dB"}
UNITS |= dict.fromkeys(("lin", "tran-1", "fine-tuned"), "%")


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
    p: float | None = None  # probability of such a margin if its mean were zero; None for fewer than `MIN_SEEDS` seeds


def _difference(high: float, low: float) -> float:
    """high − low, where minus infinity, a diverged run, equals itself."""
    return 0.0 if high == low else high - low


def _unless_diverged(margin: float) -> float:
    """A margin that is minus infinity if a run diverged: nothing can be said of how near such runs are."""
    return margin if math.isfinite(margin) else -math.inf


def compare(check: Check, results: Results, names: Mapping[str, str] | None = None) -> list[Comparison]:
    """Comparisons of a check. `names` has the names of rows in words.

    >>> from finola.paper.definitions import increasing
    >>> compare(increasing("a", "b"), {"a": [{"psnr": 20.0}], "b": [{"psnr": 21.5}]})
    [Comparison(text='b above a', unit='dB', margins=(1.5,))]
    """
    bound, metric, unit = check.bound, check.metric, UNITS.get(check.metric, check.metric)
    word = {row: (names or {}).get(row, row) for row in check.rows}

    def over_seeds(margin: Callable[..., float], *values: tuple[str, str]) -> tuple[float, ...]:
        """Margins seed by seed, of metrics of rows; minus infinity stands for the metric of a run that diverged."""
        columns = [[run.get(metric) for run in results[row]] for row, metric in values]
        seeds = zip(*columns, strict=True)
        return tuple(margin(*(-math.inf if value is None else value for value in seed)) for seed in seeds)

    if check.kind == "increasing":
        return [
            Comparison(f"{word[high]} above {word[low]}", unit, over_seeds(_difference, (high, metric), (low, metric)))
            for low, high in pairwise(check.rows)
        ]
    first, last = check.rows[0], check.rows[-1]
    texts: dict[str, tuple[str, str, Callable[..., float], list[tuple[str, str]]]] = {
        "near": (
            f"{word[first]} and {word[last]} within {bound:g}",
            unit,
            lambda a, b: _unless_diverged(bound - abs(_difference(a, b)) if a > -math.inf else -math.inf),
            [(first, metric), (last, metric)],
        ),
        "gains_at_most": (
            f"{word[last]} at most {bound:g} above {word[first]}",
            unit,
            lambda low, high: _unless_diverged(bound - (high - low)),
            [(first, metric), (last, metric)],
        ),
        "diverges": (f"{word[first]} below {bound:g}", unit, lambda value: bound - value, [(first, metric)]),
        "at_least": (f"{metric} of {word[first]} at least {bound:g}", "", lambda v: v - bound, [(first, metric)]),
        "at_most": (
            f"{metric} of {word[first]} at most {bound:g}",
            "",
            lambda value: _unless_diverged(bound - value),
            [(first, metric)],
        ),
        "drops": (
            f"{check.other} of {word[first]} at least {bound:g} below {metric}",
            unit,
            lambda before, after: _difference(before, after) - bound,
            [(first, metric), (first, check.other)],
        ),
    }
    text, unit, margin, values = texts[check.kind]
    return [Comparison(text, unit, over_seeds(margin, *values))]


def student_p(differences: Sequence[float]) -> float:
    """One-sided p-value of Student's t-test: the probability of such a mean of differences if the true mean were zero.

    >>> round(student_p([2.0, 4.0]), 3), student_p([1.0, 1.0, 1.0])
    (0.102, 0.0)
    """
    from scipy.special import stdtr

    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0:
        return float(mean <= 0)
    return float(stdtr(len(differences) - 1, -mean / (spread / math.sqrt(len(differences)))))


def judge(comparison: Comparison) -> Verdict:
    """Judge one comparison by the margins of all seeds; one of which only some seeds diverged holds weakly at best."""
    margins, seeds = comparison.margins, len(comparison.margins)
    if any(map(math.isinf, margins)):
        margin, noise = min(margins), 0.0 if seeds > 1 else None
        p = float(math.isfinite(margin)) if seeds >= MIN_SEEDS else None
    else:
        margin, noise = statistics.fmean(margins), statistics.stdev(margins) if seeds > 1 else None
        p = student_p(margins) if seeds >= MIN_SEEDS else None
    status = FAILS if margin <= 0 else HOLDS if p is not None and p < SIGNIFICANCE else WEAKLY
    return Verdict(status, comparison.text, comparison.unit, margin, noise, p)


def verdict(checks: Sequence[Check], results: Results, names: Mapping[str, str] | None = None) -> Verdict:
    """Verdict on a claim: that of its weakest comparison."""
    judged = [judge(comparison) for check in checks for comparison in compare(check, results, names)]
    return max(judged, key=lambda found: (STATUSES.index(found.status), -found.margin))

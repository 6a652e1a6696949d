"""Verdicts on claims: comparisons of rows over seeds, and how clearly they support a claim.

A check compares rows. Each comparison has one margin per seed, positive if that seed supports the claim.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def compare(check: Check, results: Results, names: Mapping[str, str] | None = None) -> Comparison:
    """Margins of a check for each seed. `names` has the names of rows in words.

    >>> from finola.paper.definitions import near
    >>> compare(near("a", "b", within=1.0), {"a": [{"psnr": 20.0}], "b": [{"psnr": 20.25}]})
    Comparison(text='a and b within 1', unit='dB', margins=(0.75,))
    """
    values = [[run.get(metric) for run in results[row]] for row, metric in zip(check.rows, check.metrics, strict=True)]
    seeds = ([-math.inf if value is None else value for value in seed] for seed in zip(*values, strict=True))
    words = [(names or {}).get(row, row) for row in check.rows]
    return Comparison(check.text.format(*words), check.unit, tuple(check.margin(*seed) for seed in seeds))


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
    judged = [judge(compare(check, results, names)) for check in checks]
    return max(judged, key=lambda found: (STATUSES.index(found.status), -found.margin))

"""Rate control: search for the finest quality level whose file fits a budget. Used for every file format."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

File = TypeVar("File")
DOUBLINGS = 6  # initial estimate: doublings of the file size from the coarsest level to the finest


def finest_within(
    make: Callable[[int], File],
    size: Callable[[File], int],
    finest: int,
    budget: float,
    guess: int | None = None,
    tolerance: float = 0.0,
) -> File:
    """Return `make(level)` of the finest level in 1 … finest whose size is at most `budget`, or of level 1 if none is.

    Sizes must not decrease with the level and are modelled as exponential in it. The search uses the secant method on
    the logarithms of the two latest sizes, and bisection if three steps have not halved the interval. `guess` is the
    level of the first step. With a tolerance, the search ends at the first file of at least (1 − tolerance)·budget.

    >>> len(finest_within(lambda level: bytes(10 * level), len, 100, 345))
    340
    """
    low, high = 0, finest + 1  # finest level known to fit, coarsest level known not to fit
    best: File | None = None
    level = guess or max(1, finest // 4)
    slope = DOUBLINGS * math.log(2) / finest
    before: tuple[int, float] | None = None
    stuck = 0  # steps since the interval was last halved
    while high - low > 1:
        level = min(max(level, low + 1), high - 1)
        width, tried = high - low, make(level)
        bytes_used = size(tried)
        if bytes_used <= budget:
            low, best = level, tried
            if tolerance and bytes_used >= (1 - tolerance) * budget:
                return tried
        else:
            high = level
        stuck = 0 if high - low <= width / 2 else stuck + 1
        logarithm = math.log(max(bytes_used, 1))
        if before is not None and before[0] != level:
            slope = max((logarithm - before[1]) / (level - before[0]), 1e-3 * slope)
        before = level, logarithm
        step = (math.log(max(budget, 1)) - logarithm) / slope
        level = (low + high) // 2 if stuck > 2 else round(level + max(-finest, min(step, finest)))
    return best if best is not None else make(1)

"""The finest file that fits: one search for every format and for ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

File = TypeVar("File")
DOUBLINGS = 6  # of a file's size from the coarsest level to the finest, before anything is known of it


def finest_within(
    make: Callable[[int], File], size: Callable[[File], int], finest: int, budget: float, guess: int | None = None
) -> File:
    """What `make` makes of the finest level in 1 … finest whose size is at most `budget`; else of level 1.

    Sizes grow with the level, about as an exponential of it: the next guess lies where the line through the logarithms
    of the two latest sizes meets the budget, or in the middle of what is left where that would not halve it in three
    tries. `guess` is where to look first.

    >>> len(finest_within(lambda level: bytes(10 * level), len, 100, 345))
    340
    """
    low, high = 0, finest + 1  # the finest known to fit, the coarsest known not to
    best: File | None = None
    level = guess or max(1, finest // 4)
    slope = DOUBLINGS * math.log(2) / finest
    before: tuple[int, float] | None = None
    stuck = 0  # tries that have not halved what is left
    while high - low > 1:
        level = min(max(level, low + 1), high - 1)
        width, tried = high - low, make(level)
        bytes_used = size(tried)
        if bytes_used <= budget:
            low, best = level, tried
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

"""Learning-rate schedules, updated per step: linear warm-up followed by cosine decay or step decay."""

from __future__ import annotations

import math
from collections.abc import Callable


def rate_factor(step: int, warmup: int, progress: float, final: float = 0.0) -> float:
    """Multiplier of the peak learning rate at step `step`, counted from 0.

    `progress` is the fraction of the cosine decay completed, from 0 at the end of the warm-up to 1 at the end of the
    run. `final` is the multiplier at the end.

    >>> rate_factor(0, warmup=4, progress=0.0), rate_factor(3, warmup=4, progress=0.0)
    (0.25, 1.0)
    >>> round(rate_factor(100, warmup=4, progress=1.0, final=0.02), 6)
    0.02
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(max(progress, 0.0), 1.0)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def by_steps(total: int, warmup: int, final: float) -> Callable[[int], float]:
    """Cosine decay over `total` steps: return the multiplier as a function of the step."""
    return lambda step: rate_factor(step, warmup, (step - warmup) / max(1, total - warmup), final)


def by_drops(drops: list[int], warmup: int) -> Callable[[int], float]:
    """Step decay: after the warm-up, divide the learning rate by 10 at each of the steps in `drops`.

    >>> [round(by_drops([2, 4], warmup=0)(step), 3) for step in range(5)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    return lambda step: min(1.0, (step + 1) / max(1, warmup)) * 0.1 ** sum(step >= drop for drop in drops)


def by_time(share: Callable[[], float], warmup: int, final: float) -> Callable[[int], float]:
    """Cosine decay over wall-clock time: `share()` returns the fraction of the time limit used so far."""
    return lambda step: rate_factor(step, warmup, share(), final)

"""The learning rate over a run: linear warm-up, then half a cosine or drops, per step."""

from __future__ import annotations

import math
from collections.abc import Callable


def rate_factor(step: int, warmup: int, progress: float, final: float = 0.0) -> float:
    """What the peak rate is multiplied by in the step numbered `step` from 0.

    `progress` is the share of the cosine that lies behind, from 0 at the end of the warm-up to 1 at the run's end.

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
    """The factor as a function of the step, the cosine ending with the last of `total` steps."""
    return lambda step: rate_factor(step, warmup, (step - warmup) / max(1, total - warmup), final)


def by_drops(drops: list[int], warmup: int) -> Callable[[int], float]:
    """Warm-up, then the whole rate, and from each of these steps on a tenth of what it was.

    >>> [round(by_drops([2, 4], warmup=0)(step), 3) for step in range(5)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    return lambda step: min(1.0, (step + 1) / max(1, warmup)) * 0.1 ** sum(step >= drop for drop in drops)


def by_time(share: Callable[[], float], warmup: int, final: float) -> Callable[[int], float]:
    """The same with `share()`, how much of the run's time is gone, as the cosine's progress."""
    return lambda step: rate_factor(step, warmup, share(), final)

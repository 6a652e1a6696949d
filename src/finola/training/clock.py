"""Wall-clock time of a run: `now`, and a callback that enforces `trainer.max_time`."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


def now() -> float:
    """Return monotonic time in seconds. All training code uses this function, so that tests can replace it."""
    return time.monotonic()


class Clock(Callback):
    """Accumulate wall-clock time over all parts of a resumed run and stop training at the time limit.

    With several processes, the time of rank 0 is used everywhere.
    """

    state_key = "Clock"

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._previous = 0.0
        self._start: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, including validation."""
        return self._previous + (0.0 if self._start is None else now() - self._start)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = now()
        self._update(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._update(trainer, pl_module)

    def _update(self, trainer: Trainer, pl_module: LightningModule) -> None:
        share = self.elapsed / self.limit
        if trainer.world_size > 1:
            share = float(trainer.strategy.broadcast(share))
        pl_module.share_of_time = share  # type: ignore[assignment]
        if share >= 1:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed": self.elapsed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._previous = float(state_dict["elapsed"])

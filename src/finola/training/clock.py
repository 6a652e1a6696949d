"""The time of a run: `now`, which all of training reads, and how much of `trainer.max_time` is gone."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


def now() -> float:
    """Seconds on a clock that never runs backwards. Tests replace it to make time pass as they want."""
    return time.monotonic()


class Clock(Callback):
    """Counts wall-clock time over all parts of a resumed run, by the first process's watch, and ends it in time."""

    state_key = "Clock"

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._before = 0.0
        self._begin: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, validation included."""
        return self._before + (0.0 if self._begin is None else now() - self._begin)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = now()
        self._tell(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._tell(trainer, pl_module)

    def _tell(self, trainer: Trainer, pl_module: LightningModule) -> None:
        share = self.elapsed / self.limit
        if trainer.world_size > 1:
            share = float(trainer.strategy.broadcast(share))
        pl_module.share_of_time = share  # type: ignore[assignment]
        if share >= 1:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed": self.elapsed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = float(state_dict["elapsed"])

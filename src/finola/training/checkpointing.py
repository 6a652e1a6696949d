"""Callback that writes checkpoints: periodically, after each epoch, at the best validation metric, and on signals."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from finola.training import clock
from finola.training.checkpoint_files import BEST, LAST
from finola.training.config import Recipe
from finola.training.loading import save_recipe
from finola.training.run_directory import RECIPE


def stop_signals() -> list[signal.Signals]:
    """Signals that stop a run after writing a checkpoint, as far as the platform has them: Windows lacks SIGUSR1."""
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]


class Interrupted(Exception):
    """Raised when a signal stops the run, after `last.ckpt` was written for this step."""

    def __init__(self, signal_name: str, step: int) -> None:
        super().__init__(f"stopped by {signal_name} at step {step}")
        self.step, self.signal_name = step, signal_name


class CheckpointWriter(Checkpoint):
    """Write the recipe, `last.ckpt` and `best.ckpt`, after all other callbacks, so that the saved state is current."""

    state_key = "Saving"  # the key in checkpoint files

    def __init__(self, folder: Path, recipe: Recipe, monitor: str = "val/psnr") -> None:
        self.folder, self.monitor, self.recipe = folder, monitor, recipe
        self.section, self.max_steps = recipe.checkpoint, recipe.trainer.max_steps
        self.best: float | None = None
        self.best_step = 0
        self._signal: str | None = None
        self._saved_at = clock.now()
        self._step = -1
        self._validated = self._stopped_mid_epoch = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at, self._step, self._validated = clock.now(), trainer.global_step, False
        pl_module.skip_validation = False  # type: ignore[assignment]
        if trainer.is_global_zero:  # only now, so that a run that fails to start leaves no recipe behind
            save_recipe(self.recipe, self.folder / RECIPE)
        self._limit_steps(trainer)
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():  # Lightning restores the previous handlers at the end of the run
                signal.signal(number, self._on_signal)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:  # gradients are still being accumulated
            return
        self._step = trainer.global_step
        self._limit_steps(trainer)
        stop, due = self._any_process(trainer, self._signal is not None), self._due(trainer)
        if batch_idx + 1 >= trainer.num_training_batches:
            return  # on_train_epoch_end follows immediately
        self._stopped_mid_epoch = trainer.should_stop
        if stop or due or trainer.should_stop:
            self._save(trainer)
        if stop:
            raise Interrupted(self._signal or "a signal", self._step)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._signal is not None:
            pl_module.skip_validation = True  # type: ignore[assignment]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = not self._any_process(trainer, self._signal is not None)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        better = self._validated and value is not None and (self.best is None or float(value) > self.best)
        self._validated = False
        if better and value is not None:
            self.best, self.best_step = float(value), trainer.global_step
        if not self._stopped_mid_epoch:  # otherwise keep the checkpoint of that step, which can be resumed
            self._save(trainer)
        if better:
            trainer.save_checkpoint(self.folder / BEST, weights_only=False)
        if self._any_process(trainer, self._signal is not None):
            raise Interrupted(self._signal or "a signal", trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # second Ctrl-C: stop immediately, without a checkpoint
        self._signal = signal.Signals(number).name

    def _limit_steps(self, trainer: Trainer) -> None:
        # Lightning's max_steps is not used: on resume it treats a finished epoch as interrupted.
        if self.max_steps is not None and trainer.global_step >= self.max_steps:
            trainer.should_stop = True

    def _due(self, trainer: Trainer) -> bool:
        steps, minutes = self.section.every_steps, self.section.every_minutes
        by_steps = steps > 0 and self._step % steps == 0
        return by_steps or self._any_process(trainer, minutes > 0 and clock.now() - self._saved_at >= 60 * minutes)

    def _any_process(self, trainer: Trainer, decision: bool) -> bool:
        """Whether the decision is true in any process, since all processes must write a checkpoint together."""
        return decision if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(decision, all=False)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder / LAST, weights_only=False)
        self._saved_at = clock.now()

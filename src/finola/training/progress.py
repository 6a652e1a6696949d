"""Progress bar of a run with images/s, PSNR and remaining time, and one line per validation."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from finola.training import clock
from finola.training.config import Recipe, seconds
from finola.training.tasks.base import mean_psnr


class RunProgress(Callback):
    """Report progress on standard error, from rank 0 only, and log the throughput.

    The bar is shown only on a terminal.
    """

    def __init__(self, recipe: Recipe, quiet: bool = False) -> None:
        self.recipe, self.quiet = recipe, quiet
        self.images_per_second = 0.0
        self._images = 0
        self._loss: float | None = None
        self._bar: Any = None
        self._bar_task: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start, self._first_step = clock.now(), trainer.global_step
        self._speed_start, self._images = self._start, 0
        if self.quiet or not trainer.is_global_zero or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._bar_task = self._bar.add_task("", total=1.0, status="")
        self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch.images) * trainer.world_size
        self.images_per_second = self._images / max(clock.now() - self._speed_start, 1e-9)
        pl_module.log("train/images_per_second", self.images_per_second)
        if self._bar is None:
            return
        loss = float(_loss_of(outputs))
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        share, left = self._remaining(trainer)
        epoch = f"epoch {trainer.current_epoch + 1}/{self.recipe.schedule.epochs} step {trainer.global_step}"
        self._bar.update(self._bar_task, description=epoch, completed=share, status=self._status(trainer, left))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._paused = clock.now()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if hasattr(self, "_speed_start"):
            self._speed_start += clock.now() - self._paused  # exclude validation from the throughput
        if self.quiet or not trainer.is_global_zero:
            return
        metrics = [(key[4:], float(value)) for key, value in trainer.callback_metrics.items() if key.startswith("val/")]
        line = ", ".join(f"{key} {value:.4g}{' dB' if key == 'psnr' else ''}" for key, value in metrics)
        speed = f", {self.images_per_second:.0f} images/s" if self.images_per_second else ""
        text = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}: {line}{speed}"
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def _remaining(self, trainer: Trainer) -> tuple[float, float]:
        """Completed fraction of the run, and estimated remaining seconds."""
        elapsed = clock.now() - self._start
        limit = self.recipe.trainer.max_steps
        total = trainer.datamodule.steps_per_epoch * self.recipe.schedule.epochs  # type: ignore[attr-defined]
        total = min(total, limit) if limit else total
        done = trainer.global_step / total
        left = elapsed * (total - trainer.global_step) / max(1, trainer.global_step - self._first_step)
        if self.recipe.trainer.max_time is not None:
            share = float(getattr(trainer.lightning_module, "share_of_time", 0.0))
            until = (1 - share) * seconds(self.recipe.trainer.max_time)
            if until < left:
                return share, max(until, 0.0)
        return done, left

    def _status(self, trainer: Trainer, left: float) -> str:
        monitor = getattr(trainer.lightning_module, "monitor", "psnr")
        parts = [f"{self.images_per_second:.0f} images/s"]
        if self._loss is not None:
            train_psnr = -self._loss if self.recipe.loss.kind == "psnr" else mean_psnr(self._loss)
            parts.append(f"{train_psnr:.2f} dB" if monitor == "psnr" else f"loss {self._loss:.3g}")
        if (value := trainer.callback_metrics.get(f"val/{monitor}")) is not None:
            parts.append(f"val {float(value):.2f} dB" if monitor == "psnr" else f"val {monitor} {float(value):.4g}")
        minutes, rest = divmod(int(left), 60)
        return " · ".join([*parts, f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left"])


def _loss_of(outputs: Any) -> Tensor | float:
    loss: Tensor | float = outputs["loss"] if isinstance(outputs, dict) else outputs
    return loss

"""Reports of a run: `metrics.csv`, TensorBoard, Weights & Biases if it is installed, and progress on standard error.

The progress bar is not Lightning's, which shows the progress of one epoch, not of a run with a time limit.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from finola.errors import require
from finola.training import callbacks
from finola.training.config import Recipe
from finola.training.sections import seconds

CURVE = "metrics.csv"
_LEADING_COLUMNS = ["step", "epoch", "seconds"]


class Curve(Logger):
    """Write one row of `metrics.csv` per logging call; `seconds` accumulates over all parts of a resumed run.

    On resume, rows logged after the checkpoint are dropped, so the file equals that of an uninterrupted run.
    """

    def __init__(self, folder: Path, resumed_step: int = 0) -> None:
        super().__init__()
        self.path = folder / CURVE
        self._rows = [row for row in read_curve(self.path) if row["step"] < resumed_step]
        self._columns = list(dict.fromkeys([*_LEADING_COLUMNS, *(key for row in self._rows for key in row)]))
        self._start = callbacks.now() - (self._rows[-1]["seconds"] if self._rows else 0.0)
        self._needs_header = True

    @property
    def name(self) -> str:
        return "curve"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the recipe is saved to a separate file."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        seconds = round(callbacks.now() - self._start, 3)
        row = {"step": step or 0, "epoch": int(metrics.get("epoch", 0)), "seconds": seconds}
        row |= {key: value for key, value in metrics.items() if key != "epoch"}
        self._rows.append(row)
        new = [key for key in row if key not in self._columns]
        self._columns += new
        if new or self._needs_header:
            self._rewrite()
        else:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)

    def _rewrite(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.part")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(temporary, self.path)
        self._needs_header = False


def read_curve(path: Path) -> list[dict[str, float]]:
    """Read the rows of a `metrics.csv`, without empty cells. Rows truncated by a crash are skipped."""
    if not path.exists():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for entry in csv.DictReader(file):
            try:
                row = {key: float(value) for key, value in entry.items() if value and key}
                rows.append(row | {"step": int(row["step"]), "epoch": int(row["epoch"]), "seconds": row["seconds"]})
            except (KeyError, ValueError, TypeError):
                continue
    return rows


def build_loggers(recipe: Recipe, folder: Path, resumed_step: int) -> list[Logger]:
    """Build all loggers of a run; the first one is `Curve`."""
    purge: dict[str, Any] = {"purge_step": resumed_step} if resumed_step else {}
    board = TensorBoardLogger(folder, name="", version="tensorboard", default_hp_metric=False, **purge)
    loggers: list[Logger] = [Curve(folder, resumed_step), board]
    if recipe.logging.wandb:
        require("wandb")
        from lightning.pytorch.loggers import WandbLogger

        configured = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
        run = folder.resolve().name
        loggers.append(WandbLogger(run, folder, id=run, resume="allow", project="finola", offline=not configured))
    return loggers


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
        self._start, self._first_step = callbacks.now(), trainer.global_step
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
        self.images_per_second = self._images / max(callbacks.now() - self._speed_start, 1e-9)
        pl_module.log("train/images_per_second", self.images_per_second)
        if self._bar is None:
            return
        loss = float(_loss_of(outputs))
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        share, left = self._remaining(trainer)
        epoch = f"epoch {trainer.current_epoch + 1}/{self.recipe.schedule.epochs} step {trainer.global_step}"
        self._bar.update(self._bar_task, description=epoch, completed=share, status=self._status(trainer, left))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._paused = callbacks.now()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if hasattr(self, "_speed_start"):
            self._speed_start += callbacks.now() - self._paused  # exclude validation from the throughput
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
        elapsed = callbacks.now() - self._start
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
            parts.append(trainer.lightning_module.describe_loss(self._loss))  # type: ignore[operator]
        if (value := trainer.callback_metrics.get(f"val/{monitor}")) is not None:
            parts.append(f"val {float(value):.2f} dB" if monitor == "psnr" else f"val {monitor} {float(value):.4g}")
        minutes, rest = divmod(int(left), 60)
        return " · ".join([*parts, f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left"])


def _loss_of(outputs: Any) -> Tensor | float:
    loss: Tensor | float = outputs["loss"] if isinstance(outputs, dict) else outputs
    return loss

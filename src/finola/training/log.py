"""Reports of a run: `metrics.csv`, TensorBoard, Weights & Biases on request, sample images, and a progress bar."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from finola.errors import require
from finola.files import replacing
from finola.image_io import save_photo
from finola.recipes.sections import seconds
from finola.training.checkpoint import CURVE
from finola.training.devices import now
from finola.training.state import State


class Log:
    """Reports of a run from rank 0: the other processes only take part in the means over all processes.

    The bar is shown only on a terminal. It shows the progress of the run, which may end at a time limit.
    """

    def __init__(self, state: State, folder: Path, quiet: bool = False) -> None:
        recipe = state.recipe
        self.folder, self.recipe, self.quiet = folder, recipe, quiet
        self.images_per_second = 0.0
        self._start, self._first_step, self._paused = now(), state.step, 0.0
        self._loss: float | None = None
        self._active = state.fabric.is_global_zero
        self._bar: Any = None
        self._wandb: Any = None
        if not self._active:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.curve = Curve(folder / CURVE, state.step)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=state.step + 1 if state.step else None)
        if recipe.logging.wandb:
            require("wandb")
            import wandb

            configured = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
            name, mode = folder.resolve().name, None if configured else "offline"
            self._wandb = wandb.init(project="finola", name=name, id=name, resume="allow", dir=folder, mode=mode)

    def __enter__(self) -> Self:
        if self._active and not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar_task = self._bar.add_task("", total=1.0, status="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._active:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def step(self, state: State, losses: dict[str, Tensor]) -> None:
        """Log the losses of a step as means over all processes, and the learning rates."""
        values = torch.stack([value.double() for value in losses.values()])
        means: Any = state.fabric.all_reduce(values, reduce_op="mean")
        logged = {f"train/{name}": value for name, value in zip(losses, means.tolist(), strict=True)}
        images = (state.step - self._first_step) * self.recipe.images_per_step
        self.images_per_second = images / max(now() - self._start - self._paused, 1e-9)
        rates = {f"lr/{group['name']}": float(group["lr"]) for group in state.optimiser.param_groups}
        self._write(state, logged | rates | {"train/images_per_second": self.images_per_second})
        self._loss = logged["train/loss"]
        self._show_progress(state)

    def metrics(self, state: State, metrics: dict[str, float]) -> None:
        """Log the metrics of a validation and print them."""
        self._write(state, metrics)
        if self.quiet or not self._active:
            return
        values = [(key[4:], value) for key, value in metrics.items() if key.startswith("val/")]
        line = ", ".join(f"{key} {value:.4g}{' dB' if key == 'psnr' else ''}" for key, value in values)
        speed = f", {self.images_per_second:.0f} images/s" if self.images_per_second else ""
        epoch = min(state.epoch + 1, self.recipe.schedule.epochs) if state.batch else max(state.epoch, 1)
        text = f"epoch {epoch}, step {state.step}: {line}{speed}"
        if self._bar is not None:
            self._bar.console.print(text)
            self._show_progress(state)
        else:
            print(text, file=sys.stderr, flush=True)

    def samples(self, state: State) -> None:
        """Save the first validation photos above their reconstructions, by the weights that are being validated."""
        count, images = getattr(self.recipe.logging, "samples", 0), state.task.samples
        if not self._active or images is None or not count:
            return
        from torchvision.utils import make_grid

        pair = torch.cat([images[:count], state.task.sample_images(images[:count])]).float().cpu().clamp(0, 1)
        sheet = make_grid(pair, nrow=len(pair) // 2, padding=2, pad_value=1)[:, 2:-2, 2:-2]  # without its margin
        (self.folder / "samples").mkdir(parents=True, exist_ok=True)
        path = self.folder / "samples" / f"step-{state.step:07d}.png"
        save_photo(sheet, path)
        self._board.add_image("samples", sheet, state.step)
        if self._wandb is not None:
            import wandb

            self._wandb.log({"samples": wandb.Image(str(path))}, step=state.step)

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Exclude the time spent inside from the throughput."""
        start = now()
        yield
        self._paused += now() - start

    def _write(self, state: State, values: dict[str, float]) -> None:
        if not self._active:
            return
        self.curve.add({"step": state.step, "epoch": state.epoch, "seconds": round(state.seconds, 3)} | values)
        for key, value in values.items():
            self._board.add_scalar(key, value, state.step)
        if self._wandb is not None:
            self._wandb.log(values, step=state.step)

    def _show_progress(self, state: State) -> None:
        if self._bar is None:
            return
        share, left = self._remaining(state)
        parts, monitor = [f"{self.images_per_second:.0f} images/s"], state.task.monitor
        if self._loss is not None:
            parts.append(state.task.describe_loss(self._loss))
        if (value := state.metrics.get(f"val/{monitor}")) is not None:
            parts.append(f"val {value:.2f} dB" if monitor == "psnr" else f"val {monitor} {value:.4g}")
        minutes, rest = divmod(int(left), 60)
        status = " · ".join([*parts, f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left"])
        epochs = self.recipe.schedule.epochs
        description = f"epoch {min(state.epoch + 1, epochs)}/{epochs} step {state.step}"
        self._bar.update(self._bar_task, description=description, completed=share, status=status)

    def _remaining(self, state: State) -> tuple[float, float]:
        """Completed fraction of the run, and estimated remaining seconds."""
        elapsed, limit = now() - self._start, self.recipe.trainer.max_steps
        total = state.photos.steps_per_epoch * self.recipe.schedule.epochs
        total = min(total, limit) if limit else total
        left = elapsed * (total - state.step) / max(1, state.step - self._first_step)
        if self.recipe.trainer.max_time is not None:
            until = (1 - state.share_of_time) * seconds(self.recipe.trainer.max_time)
            if until < left:
                return state.share_of_time, max(until, 0.0)
        return state.step / total, left


class Curve:
    """Rows of `metrics.csv`: the step after which a row was measured, the epoch, the seconds of training, and values.

    On resume, rows logged after the checkpoint are dropped, so the file equals that of an uninterrupted run.
    """

    def __init__(self, path: Path, resumed_step: int = 0) -> None:
        self.path = path
        self._rows = [row for row in read_curve(path) if resumed_step and row["step"] <= resumed_step]
        self._columns: list[str] = []  # of the file as this process wrote it

    def add(self, row: dict[str, float]) -> None:
        """Add a row. The file is written anew where it has a new column."""
        self._rows.append(row)
        if row.keys() <= {*self._columns}:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        else:
            self._rewrite()

    def _rewrite(self) -> None:
        self._columns = list(dict.fromkeys(key for row in self._rows for key in row))
        with replacing(self.path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)


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

"""Loggers of a run: `metrics.csv` and TensorBoard always, Weights & Biases if it is installed."""

from __future__ import annotations

import csv
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from finola.training import clock
from finola.training.config import Recipe

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
        self._start = clock.now() - (self._rows[-1]["seconds"] if self._rows else 0.0)
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
        seconds = round(clock.now() - self._start, 3)
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
    if recipe.logging.wandb and find_spec("wandb"):
        from lightning.pytorch.loggers import WandbLogger

        configured = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
        run = folder.resolve().name
        loggers.append(WandbLogger(run, folder, id=run, resume="allow", project="finola", offline=not configured))
    return loggers

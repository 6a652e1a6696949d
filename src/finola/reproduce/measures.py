"""Metrics of a finished run: those of its last validation, and others that are computed from its model or its curve."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from finola.files import write_text
from finola.training.config import Recipe

MEASURED = "measured.json"
"""File of computed metrics in a run directory."""
LAST_SHARE = 0.1
"""Last part of a run over which the training loss is averaged."""
WAVE_PHOTOS = 32
WAVE_METRICS = ("invertible_B", "cond_B", "cond_V", "complex_share", "residual", "path_inconsistency")
INVERTIBLE = 1e6
"""Largest condition number of a B that counts as invertible in single precision."""
DIGITS = 6


def measure(run: Path, metrics: Iterable[str]) -> dict[str, float | None]:
    """Metrics of a finished or diverged run by name; None if it diverged or the value is not finite.

    A name is `train_psnr`, one of `WAVE_METRICS`, or a metric of the validation, such as `psnr` or `accuracy`. Computed
    metrics are stored in the run directory.
    """
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    if summary["status"] == "diverged":
        return dict.fromkeys(metrics)
    wanted, path = list(metrics), run / MEASURED
    found: dict[str, float | None] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    missing = [name for name in wanted if name not in found]
    for name in missing:
        if name == "train_psnr":
            found[name] = _plain(_train_psnr(run))
        elif name not in WAVE_METRICS:
            found[name] = _plain(summary["metrics"].get(f"val/{name}"))
    if set(missing) & set(WAVE_METRICS):
        found |= {name: _plain(value) for name, value in _waves(run).items()}
    if missing:
        write_text(path, json.dumps(found, indent=1) + "\n")
    return {name: found[name] for name in wanted}


def validation_curve(run: Path, recipe: Recipe) -> list[tuple[int, float]]:
    """Images seen and PSNR of every validation of a run; the first may precede training."""
    from finola.training.reporting import CURVE, read_curve

    rows = [row for row in read_curve(run / CURVE) if "val/psnr" in row]
    steps = [int(row["step"]) + 1 for row in rows]
    if recipe.trainer.validate_first and steps:
        steps[0] = 0
    psnr = (float(f"{row['val/psnr']:.{DIGITS}g}") for row in rows)
    return [(step * recipe.data.batch_size, value) for step, value in zip(steps, psnr, strict=True)]


def minutes(run: Path) -> float:
    """Minutes of training over all parts of a resumed run."""
    from finola.training.reporting import CURVE, read_curve

    curve = read_curve(run / CURVE)
    return round(curve[-1]["seconds"] / 60, 2) if curve else 0.0


def machine() -> str:
    """Name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _train_psnr(run: Path) -> float:
    """PSNR of the mean training loss (L2) over the last part of a run, in training mode."""
    from finola.training.reporting import CURVE, read_curve

    curve = [row for row in read_curve(run / CURVE) if "train/loss" in row]
    if not curve:
        return math.nan
    first = (1 - LAST_SHARE) * curve[-1]["step"]
    losses = [row["train/loss"] for row in curve if row["step"] >= first]
    return -10 * math.log10(sum(losses) / len(losses))


def _waves(run: Path) -> dict[str, float]:
    """Conditions of B and V, share of complex speeds, residual of the wave equation and path inconsistency."""
    import torch

    import finola
    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly
    from finola.training.loading import RECIPE, load_recipe

    recipe: Any = load_recipe(run / RECIPE)
    model = finola.load(run / "model")
    data = open_data(recipe.data.val_path or recipe.data.path, "val", transform=CentreCrop(model.config.image_size))
    data.source = evenly(data.source, WAVE_PHOTOS)
    images = torch.stack([data[0, index].images[0] for index in range(len(data))]).float() / 255
    waves = finola.waves(model)
    found, quadrant = waves.residual(images), waves["right-down"]
    return {
        "invertible_B": float(quadrant.cond_B < INVERTIBLE),
        "cond_B": quadrant.cond_B,
        "cond_V": quadrant.cond_V,
        "complex_share": found.shares["complex"],
        "residual": found.residual["mean"],
        "path_inconsistency": found.path_inconsistency,
    }

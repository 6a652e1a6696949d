"""Run directory: detect an existing run, find its checkpoint, and compare recipes on resume."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finola.errors import InputError
from finola.training.checkpointing import LAST, PREVIOUS, find_resumable
from finola.training.config import Recipe
from finola.training.loading import RECIPE, load_recipe, settings_of
from finola.training.processes import print_on_rank_zero

SUMMARY = "summary.json"
FIXED = (
    *(
        "model.name",
        "task",
        "seed",
        "data.batch_size",
        "data.crops_per_image",
        "data.limit",
        "trainer.accumulate_grad_batches",
    ),
    *("trainer.ema_decay", "model.frozen", "optimiser.kind", "head.kind", "head.frozen"),
    *("mask.variant", "mask.one_jump", "moco.queue_size", "moco.projection_dim", "moco.norm_batch_size"),
)
"""Settings that cannot change on resume, because weights, optimiser state or data position depend on them."""

NOTES = ("name", "about", "paper_psnr", "classes")
"""Keys ignored when recipes are compared: descriptions, and classes, which come from the data."""


@dataclass(frozen=True)
class StartingPoint:
    """Starting point of a run: a checkpoint and its step, or None and 0 for a new run."""

    checkpoint: Path | None
    step: int


def require_new(folder: Path, resume: bool) -> None:
    """Raise InputError if the directory contains a run and `resume` is false."""
    if not resume and any((folder / name).exists() for name in (RECIPE, LAST, PREVIOUS)):
        raise InputError(f"{folder} already contains a run. Add --resume to resume it, or choose another --out.")


def inspect(folder: Path, recipe: Recipe, resume: bool, first_process: bool = True) -> StartingPoint:
    """Find the checkpoint to resume from in a run directory. Writes nothing.

    Raises InputError if the directory contains a run and `resume` is false.
    """
    if first_process:
        require_new(folder, resume)
    checkpoint, step, message = find_resumable(folder) if resume else (None, 0, "")
    if not first_process:
        return StartingPoint(checkpoint, step)
    if resume:
        default = f"Resuming at step {step}." if checkpoint else f"{folder} has no checkpoint; starting a new run."
        print_on_rank_zero(message or default)
    if checkpoint is not None and (folder / RECIPE).exists():
        _compare(load_recipe(folder / RECIPE), recipe)
    return StartingPoint(checkpoint, step)


def _compare(before: Recipe, now: Recipe) -> None:
    """Report settings that changed since the run was started. Raises InputError for those in `FIXED`."""
    old, new = settings_of(before), settings_of(now)
    changed = [key for key in new if old.get(key) != new[key] and key not in NOTES]
    for key in changed:
        if key in FIXED:
            raise InputError(
                f"The run was started with {key}={old.get(key)} and cannot be resumed with {key}={new[key]}. "
                "Use the former value, or start a new run with another --out."
            )
    if changed:
        changes = ", ".join(f"{key} {old.get(key)} → {new[key]}" for key in changed)
        print_on_rank_zero(f"Changed since the run was started: {changes}.")

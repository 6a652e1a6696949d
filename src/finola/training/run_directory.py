"""A run's folder: begun once, resumed as often as needed, never overwritten by accident."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finola.training.checkpoint_files import LAST, PREVIOUS, find_resumable
from finola.training.config import Recipe
from finola.training.loading import load_recipe, settings_of
from finola.training.processes import say

RECIPE = "recipe.yaml"
FIXED = (
    *("model.name", "task", "seed", "data.batch_size", "data.crops_per_image", "data.limit", "trainer.accumulate"),
    *("trainer.ema", "model.frozen", "optimiser.kind", "head.kind", "head.frozen"),
    *("mask.variant", "mask.one_jump", "moco.queue", "moco.size"),
)
"""What a resumed run keeps: without them neither the weights nor the position in the data would fit."""

NOTES = ("name", "about", "paper_psnr", "classes")
"""What a recipe says besides its settings; classes are the data's."""


@dataclass(frozen=True)
class Beginning:
    """Where a run starts: nowhere, or at a checkpoint."""

    checkpoint: Path | None
    step: int


def inspect(folder: Path, recipe: Recipe, resume: bool, first_process: bool = True) -> Beginning:
    """Find what can be resumed in a run's folder; one that holds a run is refused without `resume`. Writes nothing."""
    holds_run = any((folder / name).exists() for name in (RECIPE, LAST, PREVIOUS))
    if holds_run and not resume and first_process:
        raise ValueError(f"{folder} already holds a run: add --resume to go on with it, or choose another --out.")
    checkpoint, step, sentence = find_resumable(folder) if resume else (None, 0, "")
    if not first_process:
        return Beginning(checkpoint, step)
    if resume:
        say(sentence or (f"Resuming at step {step}." if checkpoint else f"{folder} has no checkpoint yet: starting."))
    if checkpoint is not None and (folder / RECIPE).exists():
        _compare(load_recipe(folder / RECIPE), recipe)
    return Beginning(checkpoint, step)


def _compare(before: Recipe, now: Recipe) -> None:
    """Say what changed since the run was begun; some things cannot."""
    old, new = settings_of(before), settings_of(now)
    changed = [key for key in new if old.get(key) != new[key] and key not in NOTES]
    for key in changed:
        if key in FIXED:
            raise ValueError(f"this run was begun with {key}={old.get(key)}, and cannot be resumed with {new[key]}.")
    if changed:
        say("Changed since the run was begun: " + ", ".join(f"{k} {old.get(k)} → {new[k]}" for k in changed) + ".")

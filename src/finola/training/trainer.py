"""A recipe becomes a run: Lightning's Trainer with our callbacks, from a first step or a checkpoint to a model."""

from __future__ import annotations

import errno
import json
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from finola.errors import FinolaError
from finola.files import write_text
from finola.training import clock
from finola.training.checkpoint_files import LAST, PlainCheckpointIO
from finola.training.checkpointing import Interrupted, Saving
from finola.training.clock import Clock
from finola.training.config import Recipe, check, seconds
from finola.training.data_module import Photos
from finola.training.ema import EMA
from finola.training.loggers import build_loggers
from finola.training.processes import (
    SharedBuffers,
    count_devices,
    environment_plugins,
    is_first_process,
    trainer_options,
)
from finola.training.progress import RunProgress
from finola.training.rng_state import RandomState, seed_all
from finola.training.run_directory import RECIPE, Beginning, inspect
from finola.training.sample_images import Pictures
from finola.training.tasks.base import Diverged, Task, build_task, task_class

SUMMARY = "summary.json"
_EXPECTED = (  # what Lightning warns of and this package answers
    ".*does not have many workers.*",
    ".*smaller than the logging interval.*",
    ".*exists and is not empty.*",
    ".*available but not used.*",
    ".*LeafSpec.*is deprecated.*",
    ".*module.s. in eval mode at the start of training.*",  # a frozen encoder
    ".*Grad strides do not match bucket view strides.*",
    ".*self.log\\('health/.*sync_dist=True.*",
)


# Only writing fails with these. A folder without permission is told by the path in the error.
_FULL = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS", "EFBIG") if hasattr(errno, name)}


class WriteError(FinolaError, OSError):
    """A run's folder cannot be written to: the disk is full, or the folder is read-only."""


@dataclass
class Outcome:
    """How a run ended. `status` is finished, interrupted or diverged; `message` says it in a sentence."""

    status: str
    message: str
    folder: str
    step: int
    epoch: int
    figures: dict[str, float | None] = field(default_factory=dict)  # of the last validation and step
    best: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    images_per_second: float = 0.0
    signal: str | None = None
    unreadable: int = 0
    model: str | None = None


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    export_to: str | Path | None = None,
    half: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Run a recipe in the folder `out`, and export the best weights to `out/model` when it is finished.

    `resume` goes on from the last checkpoint in `out`, or starts where there is none yet. A folder that holds a run is
    never written to without it. WriteError is raised where the folder cannot be written to; checkpoints written before
    remain intact.
    """
    folder = Path(out).expanduser()
    try:
        return _train(recipe, folder, resume, export_to, half, quiet)
    except OSError as error:
        place = str(error.filename or "")
        denied = isinstance(error, PermissionError) and place.startswith((str(folder), str(export_to or folder)))
        if not (denied or error.errno in _FULL):
            raise
        where = place or folder
        raise WriteError(
            f"Cannot write {where}: {error.strerror or error}; {_last_good(folder)}; go on with: {_again(folder)}"
        ) from error


def _last_good(folder: Path) -> str:
    return f"{folder / LAST} is the last good checkpoint" if (folder / LAST).exists() else "no checkpoint was written"


def _again(folder: Path) -> str:
    return f"finola train --resume --out {folder}" if (folder / RECIPE).exists() else "the same command"


def _train(
    recipe: Recipe, folder: Path, resume: bool, export_to: str | Path | None, half: bool, quiet: bool
) -> Outcome:
    check(recipe)
    # GELU's tail makes gradients of 1e-39, on which CPUs are ten times slower. Before the first thread is started.
    torch.set_flush_denormal(True)
    beginning = inspect(folder, recipe, resume, is_first_process())
    recipe, photos = task_class(recipe).open(recipe)
    photos.check_processes(count_devices(recipe.trainer) * recipe.trainer.nodes)
    seed_all(recipe.seed)
    task = build_task(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    started = clock.now()
    with _calm():
        trainer = build_trainer(recipe, folder, beginning, quiet)
        ending = _fit(trainer, task, photos, beginning, recipe)
    outcome = _outcome(trainer, folder, ending, clock.now() - started)
    outcome.unreadable = len(photos.train.unreadable) + len(photos.val.unreadable)
    if trainer.is_global_zero:
        _report_unreadable(photos, folder)
        if outcome.status == "finished":
            from finola.training.model_export import export

            outcome.model = str(export(folder, export_to or folder / "model", half=half))
        _write_json(folder / SUMMARY, asdict(outcome))
    return outcome


def build_trainer(recipe: Recipe, folder: Path, beginning: Beginning, quiet: bool = False) -> Trainer:
    """Lightning's Trainer as the recipe wants it."""
    section = recipe.trainer
    return Trainer(
        **trainer_options(section),
        precision=section.precision,  # type: ignore[arg-type]
        max_epochs=recipe.schedule.epochs,
        accumulate_grad_batches=section.accumulate,
        gradient_clip_val=section.clip,
        deterministic=section.deterministic,
        check_val_every_n_epoch=section.validate_every,
        num_sanity_val_steps=0,
        inference_mode=False,  # its tensors could not be updated by a later validation
        log_every_n_steps=recipe.logging.every_steps,
        logger=build_loggers(recipe, folder, beginning.step),
        callbacks=build_callbacks(recipe, folder, quiet),
        plugins=[PlainCheckpointIO(), *environment_plugins()],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def build_callbacks(recipe: Recipe, folder: Path, quiet: bool = False) -> list[Callback]:
    """What happens around the steps; Lightning puts `Saving` behind the others."""
    callbacks: list[Callback] = [RandomState(recipe.seed)]
    if recipe.trainer.max_time is not None:
        callbacks.append(Clock(seconds(recipe.trainer.max_time)))
    if recipe.trainer.ema is not None:
        callbacks.append(EMA(recipe.trainer.ema))
    callbacks += [SharedBuffers(), Pictures(folder, recipe.logging.samples), RunProgress(recipe, quiet)]
    return [*callbacks, Saving(folder, recipe, f"val/{task_class(recipe).figure}")]


def _fit(trainer: Trainer, task: Task, photos: Photos, beginning: Beginning, recipe: Recipe) -> BaseException | None:
    """Run to the end, or to the exception that ended it in an orderly way."""
    try:
        if recipe.trainer.validate_first and beginning.checkpoint is None:
            trainer.validate(task, photos, verbose=False)
        trainer.fit(task, photos, ckpt_path=beginning.checkpoint)
    except (Interrupted, Diverged, SIGTERMException) as ending:
        return ending
    return None


def _outcome(trainer: Trainer, folder: Path, ending: BaseException | None, took: float) -> Outcome:
    saving = next(c for c in trainer.callbacks if isinstance(c, Saving))  # type: ignore[attr-defined]
    progress = next(c for c in trainer.callbacks if isinstance(c, RunProgress))  # type: ignore[attr-defined]
    step, epoch = trainer.global_step, trainer.current_epoch
    again, kept = _again(folder), _last_good(folder)
    outcome = Outcome("finished", f"finished at step {step}", str(folder), step, epoch)
    if isinstance(ending, Diverged):
        outcome.status = "diverged"
        remedy = "lower optimiser.base_rate or the groups' rates, or set trainer.clip=1.0"
        outcome.message = f"{ending}; {kept}; {remedy}, and go on with: {again}"
    elif ending is not None:
        outcome.status, outcome.signal = "interrupted", getattr(ending, "signal_name", "SIGTERM")
        outcome.message = f"{ending}; {kept}; go on with: {again}"
    figures = {key: float(value) for key, value in trainer.callback_metrics.items()}
    outcome.figures = {key: value if math.isfinite(value) else None for key, value in figures.items()}
    if saving.best is not None:
        outcome.best = {saving.figure.removeprefix("val/"): saving.best, "step": saving.best_step}
    outcome.seconds, outcome.images_per_second = round(took, 3), round(progress.images_per_second, 2)
    return outcome


def _report_unreadable(photos: Photos, folder: Path) -> None:
    for name, dataset in (("train", photos.train), ("val", photos.val)):
        if report := dataset.report():
            print(f"{name}: {report}", file=sys.stderr)
            listed = "\n".join(f"{photo}\t{reason}" for photo, reason in dataset.unreadable)
            (folder / f"unreadable-{name}.txt").write_text(listed + "\n", encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def _calm() -> Iterator[None]:
    """Lightning speaks of what matters only."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _EXPECTED:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

"""Train a recipe with Lightning's Trainer, resume runs, and export the trained model."""

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
from finola.training import callbacks
from finola.training.callbacks import EMA, Clock, RandomState, SampleImages, seed_all
from finola.training.checkpointing import LAST, CheckpointWriter, Interrupted, PlainCheckpointIO
from finola.training.config import Recipe
from finola.training.data_module import Photos
from finola.training.initial_weights import resolve_encoder
from finola.training.loading import RECIPE
from finola.training.model_export import write_model
from finola.training.monitor import RankMonitor
from finola.training.processes import (
    SharedBuffers,
    count_devices,
    environment_plugins,
    is_first_process,
)
from finola.training.reporting import RunProgress, build_loggers
from finola.training.run_directory import SUMMARY, StartingPoint, inspect
from finola.training.sections import seconds
from finola.training.sharding import WholeWeights
from finola.training.strategies import trainer_options
from finola.training.tasks.base import Diverged, Task, build_task, task_class

_IGNORED_WARNINGS = (  # Lightning warnings that do not apply here
    ".*does not have many workers.*",
    ".*smaller than the logging interval.*",
    ".*exists and is not empty.*",
    ".*available but not used.*",
    ".*LeafSpec.*is deprecated.*",
    ".*module.s. in eval mode at the start of training.*",  # a frozen encoder
    ".*Grad strides do not match bucket view strides.*",
    ".*self.log\\('health/.*sync_dist=True.*",
)


# Error codes that only writing raises. Missing permission is recognised by the path of the error.
_WRITE_ERRORS = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS", "EFBIG") if hasattr(errno, name)}


class WriteError(FinolaError, OSError):
    """The run directory cannot be written to: the disk is full, or the directory is read-only."""


@dataclass
class Outcome:
    """Result of a run. `status` is finished, interrupted or diverged; `message` describes it in one line."""

    status: str
    message: str
    folder: str
    step: int
    epoch: int
    metrics: dict[str, float | None] = field(default_factory=dict)  # of the last validation and step
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
    """Train a recipe in the run directory `out`, and export the best weights to `export_to` (default: `out/model`).

    With `resume`, training continues from the last checkpoint in `out`, or starts a new run if there is none. Without
    it, a directory that contains a run raises InputError. Raises WriteError if the directory cannot be written to;
    existing checkpoints remain intact. `half` exports weights in half precision.
    """
    folder = Path(out).expanduser()
    try:
        return _train(recipe, folder, resume, Path(export_to or folder / "model"), half, quiet)
    except OSError as error:
        place = str(error.filename or "")
        denied = isinstance(error, PermissionError) and place.startswith((str(folder), str(export_to or folder)))
        if not (denied or error.errno in _WRITE_ERRORS):
            raise
        where = place or folder
        raise WriteError(
            f"Cannot write {where}: {error.strerror or error}; {_last_good(folder)}; "
            f"resume with: {_resume_command(folder)}"
        ) from error


def _last_good(folder: Path) -> str:
    return f"{folder / LAST} is the last good checkpoint" if (folder / LAST).exists() else "no checkpoint was written"


def _resume_command(folder: Path) -> str:
    return f"finola train --resume --out {folder}" if (folder / RECIPE).exists() else "the same command"


def _train(recipe: Recipe, folder: Path, resume: bool, target: Path, half: bool, quiet: bool) -> Outcome:
    recipe.check()
    # GELU's tail produces denormal gradients (1e-39), ten times slower on CPUs. Must precede the first thread.
    torch.set_flush_denormal(True)
    recipe = resolve_encoder(recipe)
    start = inspect(folder, recipe, resume, is_first_process())
    recipe, photos = task_class(recipe).open(recipe)
    photos.check_processes(count_devices(recipe.trainer) * recipe.trainer.num_nodes)
    seed_all(recipe.seed)
    task = build_task(recipe, initialise=start.checkpoint is None)
    if start.checkpoint is None:
        task.prepare(photos)
    folder.mkdir(parents=True, exist_ok=True)
    started = callbacks.now()
    monitor = RankMonitor(
        recipe.trainer.heartbeat_timeout, lambda: f"{_last_good(folder)}; resume with: {_resume_command(folder)}"
    )
    with monitor, _quiet_lightning():
        trainer = build_trainer(recipe, folder, start, quiet, {folder / RECIPE: recipe}, monitor)
        ending = _fit(trainer, task, photos, start, recipe)
        outcome = _outcome(trainer, folder, ending, callbacks.now() - started)
        outcome.unreadable = len(photos.train.unreadable) + len(photos.val.unreadable)
        if trainer.is_global_zero:
            _report_unreadable(photos, folder)
            if outcome.status == "finished":
                outcome.model = str(write_model(recipe, folder, target, half=half))
            _write_json(folder / SUMMARY, asdict(outcome))
    return outcome


def build_trainer(
    recipe: Recipe,
    folder: Path,
    start: StartingPoint,
    quiet: bool,
    recipes: dict[Path, Recipe],
    monitor: RankMonitor,
) -> Trainer:
    """Build Lightning's Trainer for a recipe. `recipes` are written when training starts."""
    section = recipe.trainer
    return Trainer(
        **trainer_options(section, monitor),
        precision=section.precision,  # type: ignore[arg-type]
        max_epochs=recipe.schedule.epochs,
        accumulate_grad_batches=section.accumulate_grad_batches,
        gradient_clip_val=section.gradient_clip_val,
        deterministic=section.deterministic,
        check_val_every_n_epoch=section.check_val_every_n_epoch,
        num_sanity_val_steps=0,
        inference_mode=False,  # metric states created in inference mode could not be updated later
        log_every_n_steps=recipe.logging.every_steps,
        logger=build_loggers(recipe, folder, start.step),
        callbacks=build_callbacks(recipe, folder, quiet, recipes),
        plugins=[PlainCheckpointIO(), *environment_plugins()],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def build_callbacks(
    recipe: Recipe, folder: Path, quiet: bool = False, recipes: dict[Path, Recipe] | None = None
) -> list[Callback]:
    """Build the callbacks of a run. Lightning runs `CheckpointWriter` after all others."""
    own: list[Callback] = [RandomState(recipe.seed), WholeWeights()]
    if recipe.trainer.max_time is not None:
        own.append(Clock(seconds(recipe.trainer.max_time)))
    if recipe.trainer.ema_decay is not None:
        own.append(EMA(recipe.trainer.ema_decay))
    samples = getattr(recipe.logging, "samples", 0)  # of the tasks that have sample images
    own += [SharedBuffers(), SampleImages(folder, samples), RunProgress(recipe, quiet)]
    return [*own, CheckpointWriter(folder, recipe, f"val/{task_class(recipe).monitor}", recipes)]


def _fit(trainer: Trainer, task: Task, photos: Photos, start: StartingPoint, recipe: Recipe) -> BaseException | None:
    """Train until the end. Return the exception if the run was interrupted or diverged, otherwise None."""
    try:
        if recipe.trainer.validate_first and start.checkpoint is None:
            trainer.validate(task, photos, verbose=False)
        trainer.fit(task, photos, ckpt_path=start.checkpoint)
    except (Interrupted, Diverged, SIGTERMException) as ending:
        return ending
    return None


def _outcome(trainer: Trainer, folder: Path, ending: BaseException | None, took: float) -> Outcome:
    writer = next(c for c in trainer.callbacks if isinstance(c, CheckpointWriter))  # type: ignore[attr-defined]
    progress = next(c for c in trainer.callbacks if isinstance(c, RunProgress))  # type: ignore[attr-defined]
    step, epoch = trainer.global_step, trainer.current_epoch
    command, checkpoint = _resume_command(folder), _last_good(folder)
    outcome = Outcome("finished", f"finished at step {step}", str(folder), step, epoch)
    if isinstance(ending, Diverged):
        outcome.status = "diverged"
        remedy = (
            "lower the learning rate (optimiser.base_lr, optimiser.groups.NAME.lr) or set trainer.gradient_clip_val=1.0"
        )
        outcome.message = f"{ending}; {checkpoint}; {remedy}, and resume with: {command}"
    elif ending is not None:
        outcome.status, outcome.signal = "interrupted", getattr(ending, "signal_name", "SIGTERM")
        outcome.message = f"{ending}; {checkpoint}; resume with: {command}"
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    outcome.metrics = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
    if writer.best is not None:
        outcome.best = {writer.monitor.removeprefix("val/"): writer.best, "step": writer.best_step}
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
def _quiet_lightning() -> Iterator[None]:
    """Suppress informational log messages and inapplicable warnings of Lightning."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _IGNORED_WARNINGS:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

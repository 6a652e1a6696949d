"""Train a recipe in a run directory: open the data, build or resume the state, train, and export the best weights."""

from __future__ import annotations

import errno
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed

from finola.errors import FinolaError
from finola.files import write_json, write_text
from finola.recipes.loading import RECIPE
from finola.recipes.recipe import Recipe
from finola.training.checkpoint import LAST, SUMMARY, RunDirectory
from finola.training.data import Photos
from finola.training.devices import build_fabric, count_devices, is_distributed, now, seed_all, synchronise_norms
from finola.training.init import resolve_encoder
from finola.training.log import Log
from finola.training.loop import fit
from finola.training.model_export import export
from finola.training.state import State
from finola.training.tasks.base import Diverged, build_task, task_class

# Error codes that only writing raises. Missing permission is recognised by the path of the error.
_WRITE_ERRORS = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS", "EFBIG") if hasattr(errno, name)}
_NETWORK_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset", "broken pipe", "socket", "timed out")
_LOWER_RATE = (
    "lower the learning rate (optimiser.base_lr, optimiser.groups.NAME.lr) or set trainer.gradient_clip_val=1.0, and "
)


class WriteError(FinolaError, OSError):
    """The run directory cannot be written to: the disk is full, or the directory is read-only."""


class LostProcessError(FinolaError, RuntimeError):
    """Another process of a distributed run was lost or failed."""


@dataclass
class Outcome:
    """Result of a run. `status` is finished, interrupted or diverged; `message` describes it in one line."""

    status: str
    message: str
    folder: str
    step: int
    epoch: int
    metrics: dict[str, float | None] = field(default_factory=dict)  # of the last validation
    best: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0  # of training and validation, without start-up
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

    With `resume`, training continues from the last checkpoint in `out`, or starts a new run if there is none; a
    finished run stays as it is. Without it, a directory that contains a run raises InputError. Raises WriteError if the
    directory cannot be written to; existing checkpoints remain intact. `half` exports weights in half precision.
    """
    folder = Path(out).expanduser()
    target = Path(export_to or folder / "model")
    with _explaining(folder, target):
        return _train(recipe, folder, resume, target, half, quiet)


@contextmanager
def _explaining(folder: Path, target: Path) -> Iterator[None]:
    """Turn errors of the disk and of the connection to other processes into ones that say how to resume."""
    try:
        yield
    except OSError as error:
        place = str(error.filename or "")
        denied = isinstance(error, PermissionError) and place.startswith((str(folder), str(target)))
        if not (denied or error.errno in _WRITE_ERRORS):
            raise
        problem = f"Cannot write {place or folder}: {error.strerror or error}"
        raise WriteError(f"{problem}; {_how_to_resume(folder)}") from error
    except RuntimeError as error:
        if not is_distributed() or not any(word in str(error).lower() for word in _NETWORK_WORDS):
            raise
        problem = "The connection to another process was lost (its own output may say why)"
        raise LostProcessError(f"{problem}; {_how_to_resume(folder)}") from error
    finally:
        if is_distributed():
            torch.distributed.destroy_process_group()


def _how_to_resume(folder: Path, remedy: str = "") -> str:
    exists, started = (folder / LAST).exists(), (folder / RECIPE).exists()
    checkpoint = f"{folder / LAST} is the last good checkpoint" if exists else "no checkpoint was written"
    command = f"finola train --resume --out {folder}" if started else "the same command"
    return f"{checkpoint}; {remedy}resume with: {command}"


def _train(recipe: Recipe, folder: Path, resume: bool, target: Path, half: bool, quiet: bool) -> Outcome:
    recipe.check()
    # GELU's tail produces denormal gradients (1e-39), ten times slower on CPUs. Must precede the first thread.
    torch.set_flush_denormal(True)
    recipe = resolve_encoder(recipe)
    run = RunDirectory(folder, recipe, resume)
    fabric = build_fabric(recipe.trainer)
    recipe, photos = task_class(recipe).open(recipe)
    photos.check_processes(count_devices(recipe.trainer) * recipe.trainer.num_nodes)
    seed_all(recipe.seed)
    task = build_task(recipe, initialise=run.content is None)
    if run.content is None:
        task.prepare(photos)
    fabric.launch()
    photos.open_loaders(fabric)
    state = State(fabric, recipe, synchronise_norms(task, recipe.trainer), photos)
    if run.content is None:
        state.seed()
    else:
        state.load_state_dict(run.content)
        if state.finished and (stored := _stored(folder, target)) is not None:
            return stored
    run.start(recipe)
    started, signal_name = now(), None
    with Log(state, folder, quiet) as log:
        try:
            signal_name = fit(state, run, log)
            status, message = "finished", f"finished at step {state.step}"
        except Diverged as error:
            status, message = "diverged", f"{error}; {_how_to_resume(folder, _LOWER_RATE)}"
    if signal_name is not None:
        status = "interrupted"
        message = f"stopped by {signal_name} at step {state.step}; {_how_to_resume(folder)}"
    outcome = Outcome(
        status,
        message,
        str(folder),
        state.step,
        state.epoch,
        metrics={key: value if math.isfinite(value) else None for key, value in state.metrics.items()},
        best={} if state.best is None else {state.task.monitor: state.best, "step": state.best_step},
        seconds=round(now() - started, 3),
        images_per_second=round(log.images_per_second, 2),
        signal=signal_name,
        unreadable=len(photos.train.unreadable) + len(photos.val.unreadable),
    )
    if fabric.is_global_zero:
        if status == "finished":
            outcome.model = str(export(folder, target, half=half))
        _report_unreadable(photos, folder)
        write_json(folder / SUMMARY, asdict(outcome), indent=2)
    return outcome


def _stored(folder: Path, target: Path) -> Outcome | None:
    """Outcome of a finished run whose model was exported to `target`."""
    try:
        stored = Outcome(**json.loads((folder / SUMMARY).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return stored if stored.status == "finished" and stored.model == str(target) and target.is_dir() else None


def _report_unreadable(photos: Photos, folder: Path) -> None:
    """List photos that could not be read, after the model was written."""
    for name, dataset in (("train", photos.train), ("val", photos.val)):
        if report := dataset.report():
            print(f"{name}: {report}", file=sys.stderr)
            listed = "\n".join(f"{photo}\t{reason}" for photo, reason in dataset.unreadable)
            write_text(folder / f"unreadable-{name}.txt", listed + "\n")

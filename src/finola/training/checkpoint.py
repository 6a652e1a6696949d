"""Run directories and their checkpoints: atomic writes, one previous generation, and a checksum."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finola.errors import CorruptFileError, InputError, first_line
from finola.files import replacing
from finola.recipes.loading import RECIPE, load_recipe, save_recipe, settings_of
from finola.recipes.recipe import Recipe
from finola.training.devices import is_first_process, print_on_rank_zero

if TYPE_CHECKING:
    from finola.training.state import State

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
CURVE, SUMMARY = "metrics.csv", "summary.json"
MARKER = b"finola sha256 "
REQUIRED_KEYS = ("step", "epoch", "batch", "task", "optimiser", "random")  # needed to resume a run
FIXED = (
    *("model.name", "task", "seed", "data.batch_size", "data.crops_per_image", "data.limit"),
    *("trainer.accumulate_grad_batches", "trainer.ema_decay", "model.frozen", "optimiser.kind"),
    *("head.kind", "head.frozen", "mask.variant", "mask.one_jump"),
    *("moco.queue_size", "moco.projection_dim", "moco.norm_batch_size"),
)
"""Settings that cannot change on resume, because weights, optimiser state or data position depend on them."""
NOTES = ("name", "about", "paper_psnr", "classes")
"""Keys ignored when recipes are compared: descriptions, and classes, which come from the data."""


class RunDirectory:
    """The folder of a run. `content` is that of the checkpoint to resume from, or None for a new run.

    Raises InputError if the folder contains a run and `resume` is false, or if settings changed that must not.
    """

    def __init__(self, folder: Path, recipe: Recipe, resume: bool) -> None:
        self.folder = folder
        run = any((folder / name).exists() for name in (RECIPE, LAST, PREVIOUS))
        foreign = next((folder / name for name in (BEST, CURVE, SUMMARY) if not run and (folder / name).exists()), None)
        if is_first_process() and run and not resume:
            raise InputError(f"{folder} already contains a run. Add --resume to resume it, or choose another --out.")
        if is_first_process() and foreign is not None:
            raise InputError(f"{foreign} exists, but is not part of a run and would be replaced. Choose another --out.")
        self.content, message = find_resumable(folder) if resume else (None, "")
        if self.content is not None:
            if (folder / RECIPE).exists():
                _compare(load_recipe(folder / RECIPE), recipe)
            print_on_rank_zero(message or f"Resuming at step {self.content['step']}.")
        elif resume:
            print_on_rank_zero(f"{folder} has no checkpoint; starting a new run.")

    def start(self, recipe: Recipe) -> None:
        """Write the recipe. Called when training starts, so that a run that fails to start leaves none behind."""
        if is_first_process():
            self.folder.mkdir(parents=True, exist_ok=True)
            save_recipe(recipe, self.folder / RECIPE)

    def save(self, state: State, name: str = LAST) -> None:
        """Write a checkpoint of finite weights. All processes must call it together."""
        state.check_finite()
        content = state.state_dict()
        if state.fabric.is_global_zero:
            write_checkpoint(content, self.folder / name)


def write_checkpoint(content: dict[str, Any], path: Path) -> None:
    """Atomically write tensors and plain values with a checksum. An existing `last.ckpt` becomes `previous.ckpt`."""
    data = io.BytesIO()
    torch.save(plain(content), data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            file.write(data.getbuffer())
            file.write(MARKER + hashlib.sha256(data.getbuffer()).digest())
            file.flush()
            os.fsync(file.fileno())
        if path.name == LAST and path.exists():
            _keep(path, path.with_name(PREVIOUS))


def _keep(path: Path, target: Path) -> None:
    """Atomically hard-link `path` as `target`. On file systems without links, the file is moved."""
    with replacing(target) as temporary:
        try:
            os.link(path, temporary)
        except OSError:
            os.replace(path, temporary)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU. Raises CorruptFileError if any byte was changed after writing.

    Only tensors and plain values are read (`weights_only=True`), and only after the checksum has been verified.
    """
    data = path.read_bytes()
    size = len(data) - len(MARKER) - hashlib.sha256().digest_size
    if size < 0 or data[size : size + len(MARKER)] != MARKER:
        raise CorruptFileError(
            f"{path} cannot be read: the checksum is missing. It is truncated or damaged, or was not written by finola."
        )
    whole = memoryview(data)[:size]
    if hashlib.sha256(whole).digest() != data[size + len(MARKER) :]:
        raise CorruptFileError(f"{path} cannot be read: it is damaged, because the checksum does not match.")
    try:
        content = torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: it contains a {type(content).__name__}.")
    return content


def find_resumable(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Content of the newest intact checkpoint of a run, and a message if it is not that of `last.ckpt`.

    Returns (None, "") if the directory has no checkpoint. Raises CorruptFileError if all checkpoints are damaged.
    """
    problems: list[str] = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            content = read_checkpoint(path)
            if missing := [key for key in REQUIRED_KEYS if key not in content]:
                raise CorruptFileError(f"Cannot resume from {path}: it has no {', '.join(missing)}.")
            if not isinstance(content["step"], int):
                raise CorruptFileError(f"Cannot resume from {path}: its step is {content['step']!r}.")
            return content, f"{' '.join(problems)} Resuming from {name} instead." if problems else ""
        except CorruptFileError as error:
            problems.append(str(error))
    if problems:
        raise CorruptFileError(
            f"{' '.join(problems)} No intact checkpoint exists in {folder}: start a new run with another --out."
        )
    return None, ""


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


def plain(value: Any, where: str = "checkpoint") -> Any:
    """Convert to tensors, numbers, strings, lists, tuples and dictionaries. Raises TypeError for other types."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        return value.detach()
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {plain(key, where): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(item, f"{where}.{number}") for number, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(
        f"{where} has type {type(value).__name__}, but checkpoints can contain only tensors and plain values."
    )

"""Checkpoint files (atomic writes, one previous generation, a checksum), and the callback that writes them.

The callback writes periodically, after each epoch, at the best validation metric, and on signals.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from finola.errors import CorruptFileError, first_line
from finola.training import callbacks
from finola.training.config import Recipe
from finola.training.loading import RECIPE, save_recipe

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
CHECKSUM_MARKER = b"finola sha256 "
TRAILER_SIZE = len(CHECKSUM_MARKER) + hashlib.sha256().digest_size
REQUIRED_KEYS = ("global_step", "state_dict", "optimizer_states", "loops")  # needed to resume a run


class PlainCheckpointIO(CheckpointIO):
    """Checkpoint plugin of Lightning's Trainer that uses `write_checkpoint` and `read_checkpoint`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Atomically write a checkpoint of tensors and plain values. An existing `last.ckpt` becomes `previous.ckpt`."""
    content = plain(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("w+b") as file:
            _save(content, file)
            _append_checksum(file)
            file.flush()
            os.fsync(file.fileno())
        if path.name == LAST and path.exists():
            link(path, path.with_name(PREVIOUS))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class _Recorder:
    """File wrapper that stores the OSError of a failed write, which torch.save replaces by a RuntimeError."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _save(content: dict[str, Any], file: IO[bytes]) -> None:
    recorder = _Recorder(file)
    try:
        torch.save(content, recorder)  # type: ignore[arg-type]
    except RuntimeError:
        if recorder.error is not None:
            raise recorder.error from None
        raise


def _append_checksum(file: IO[bytes]) -> None:
    """Append the SHA-256 of all preceding bytes as the comment of the zip archive written by torch.save.

    The checksums of a zip archive cover its members, but not its directory; this one covers every byte. torch.load can
    still read the file.
    """
    file.seek(-2, os.SEEK_END)
    if file.read(2) != b"\0\0":
        raise RuntimeError("torch.save wrote an archive with a comment, so the checksum cannot be appended.")
    file.seek(-2, os.SEEK_END)
    file.write(TRAILER_SIZE.to_bytes(2, "little"))
    size = file.tell()
    digest = _digest(file, size)
    file.seek(size)
    file.write(CHECKSUM_MARKER + digest)


def _digest(file: IO[bytes], size: int) -> bytes:
    """SHA-256 of the first `size` bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, 2**20))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


def link(path: Path, target: Path) -> None:
    """Atomically hard-link `path` as `target`. On file systems without links, the file is moved."""
    temporary = target.with_name(f".{target.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        temporary = path
    os.replace(temporary, target)


def read_checkpoint(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint to the CPU. Raises CorruptFileError if any byte was changed after writing.

    Only tensors and plain values are read (`weights_only=True`), and only after the checksum has been verified. With
    `mmap`, tensors are memory-mapped.
    """
    problem = find_corruption(path)
    if problem:
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: {problem}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise CorruptFileError(
            f"{path} cannot be read as a checkpoint: it contains a {type(content).__name__}, not a dictionary."
        )
    return content


def find_corruption(path: Path) -> str | None:
    """Verify the checksum of a checkpoint file and return a description of the problem, or None if it is intact."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - TRAILER_SIZE
            if size < 0:
                return "it is truncated"
            file.seek(size)
            trailer = file.read(TRAILER_SIZE)
            if not trailer.startswith(CHECKSUM_MARKER):
                return "the checksum is missing: it is truncated or damaged, or was not written by finola"
            return (
                None
                if _digest(file, size) == trailer[len(CHECKSUM_MARKER) :]
                else "it is damaged: the checksum does not match"
            )
    except OSError as error:
        return f"it cannot be opened ({error.strerror or error})"


def find_resumable(folder: Path) -> tuple[Path | None, int, str]:
    """Return the newest intact checkpoint of a run, its step, and a message if it is not `last.ckpt`.

    Returns (None, 0, "") if the directory has no checkpoint. Raises CorruptFileError if all checkpoints are damaged.
    """
    problems: list[str] = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            step = _step_of(path)
        except CorruptFileError as error:
            problems.append(str(error))
            continue
        return path, step, f"{' '.join(problems)} Resuming from {name} instead." if problems else ""
    if problems:
        raise CorruptFileError(
            f"{' '.join(problems)} No intact checkpoint exists in {folder}: start a new run with another --out."
        )
    return None, 0, ""


def _step_of(path: Path) -> int:
    """Step of a checkpoint. Raises CorruptFileError if entries needed to resume are missing."""
    content = read_checkpoint(path, mmap=True)
    missing = [key for key in REQUIRED_KEYS if key not in content]
    step = content.get("global_step")
    if missing or not isinstance(step, int):
        problem = f"it has no {', '.join(missing)}" if missing else f"its global_step is {step!r}"
        raise CorruptFileError(f"Cannot resume from {path}: {problem}.")
    return step


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


def stop_signals() -> list[signal.Signals]:
    """Signals that stop a run after writing a checkpoint, as far as the platform has them: Windows lacks SIGUSR1."""
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]


class Interrupted(Exception):
    """Raised when a signal stops the run, after `last.ckpt` was written for this step."""

    def __init__(self, signal_name: str, step: int) -> None:
        super().__init__(f"stopped by {signal_name} at step {step}")
        self.step, self.signal_name = step, signal_name


class CheckpointWriter(Checkpoint):
    """Write the recipe, `last.ckpt` and `best.ckpt`, after all other callbacks, so that the saved state is current."""

    state_key = "Saving"  # the key in checkpoint files

    def __init__(
        self, folder: Path, recipe: Recipe, monitor: str = "val/psnr", recipes: dict[Path, Recipe] | None = None
    ) -> None:
        self.folder, self.monitor = folder, monitor
        self.recipes = {folder / RECIPE: recipe} if recipes is None else recipes
        self.section, self.max_steps = recipe.checkpoint, recipe.trainer.max_steps
        self.best: float | None = None
        self.best_step = 0
        self._signal: str | None = None
        self._saved_at = callbacks.now()
        self._step = -1
        self._validated = self._stopped_mid_epoch = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at, self._step, self._validated = callbacks.now(), trainer.global_step, False
        pl_module.skip_validation = False  # type: ignore[assignment]
        if trainer.is_global_zero:  # only now, so that a run that fails to start leaves no recipe behind
            for path, recipe in self.recipes.items():
                save_recipe(recipe, path)
        self._limit_steps(trainer)
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():  # Lightning restores the previous handlers at the end of the run
                signal.signal(number, self._on_signal)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:  # gradients are still being accumulated
            return
        self._step = trainer.global_step
        self._limit_steps(trainer)
        stop, due = self._any_process(trainer, self._signal is not None), self._due(trainer)
        if batch_idx + 1 >= trainer.num_training_batches:
            return  # on_train_epoch_end follows immediately
        self._stopped_mid_epoch = trainer.should_stop
        if stop or due or trainer.should_stop:
            self._save(trainer)
        if stop:
            raise Interrupted(self._signal or "a signal", self._step)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._signal is not None:
            pl_module.skip_validation = True  # type: ignore[assignment]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = not self._any_process(trainer, self._signal is not None)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        better = self._validated and value is not None and (self.best is None or float(value) > self.best)
        self._validated = False
        if better and value is not None:
            self.best, self.best_step = float(value), trainer.global_step
        if not self._stopped_mid_epoch:  # otherwise keep the checkpoint of that step, which can be resumed
            self._save(trainer)
        if better:
            trainer.save_checkpoint(self.folder / BEST, weights_only=False)
        if self._any_process(trainer, self._signal is not None):
            raise Interrupted(self._signal or "a signal", trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # second Ctrl-C: stop immediately, without a checkpoint
        self._signal = signal.Signals(number).name

    def _limit_steps(self, trainer: Trainer) -> None:
        # Lightning's max_steps is not used: on resume it treats a finished epoch as interrupted.
        if self.max_steps is not None and trainer.global_step >= self.max_steps:
            trainer.should_stop = True

    def _due(self, trainer: Trainer) -> bool:
        steps, minutes = self.section.every_steps, self.section.every_minutes
        by_steps = steps > 0 and self._step % steps == 0
        return by_steps or self._any_process(trainer, minutes > 0 and callbacks.now() - self._saved_at >= 60 * minutes)

    def _any_process(self, trainer: Trainer, decision: bool) -> bool:
        """Whether the decision is true in any process, since all processes must write a checkpoint together."""
        return decision if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(decision, all=False)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder / LAST, weights_only=False)
        self._saved_at = callbacks.now()

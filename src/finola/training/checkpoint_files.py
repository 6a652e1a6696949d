"""Checkpoint files: written beside their target and renamed, one generation kept, verified before they are read."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.plugins.io import CheckpointIO
from torch import Tensor

from finola.errors import CorruptFileError

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
MARK = b"finola sha256 "
SEAL = len(MARK) + hashlib.sha256().digest_size
NEEDED = ("global_step", "state_dict", "optimizer_states", "loops")  # what a run cannot be resumed without


class PlainCheckpointIO(CheckpointIO):
    """How Lightning's Trainer writes and reads checkpoints here."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write tensors and plain values. A former `last.ckpt` becomes `previous.ckpt`, and there is always a last one."""
    content = plain(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("w+b") as file:
            _save(content, file)
            _seal(file)
            file.flush()
            os.fsync(file.fileno())
        if path.name == LAST and path.exists():
            link(path, path.with_name(PREVIOUS))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


class _Recorder:
    """A file for torch.save, which reports a failed write as a RuntimeError without its cause."""

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


def _seal(file: IO[bytes]) -> None:
    """Append a SHA-256 of everything before it as the comment of the zip archive that torch.save has written.

    The checksums of a zip archive cover its members, not its directory; this one covers every byte. The file remains
    a valid archive for torch.load.
    """
    file.seek(-2, os.SEEK_END)
    if file.read(2) != b"\0\0":
        raise RuntimeError("torch.save wrote an archive with a comment, in whose place the checksum belongs.")
    file.seek(-2, os.SEEK_END)
    file.write(SEAL.to_bytes(2, "little"))
    size = file.tell()
    digest = _digest(file, size)
    file.seek(size)
    file.write(MARK + digest)


def _digest(file: IO[bytes], size: int) -> bytes:
    """SHA-256 of the first `size` bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, 2**20))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


def link(path: Path, target: Path) -> None:
    """Let `target` name the same file; where links are unknown, the file moves there."""
    beside = target.with_name(f".{target.name}.part")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:
        beside = path
    os.replace(beside, target)


def read_checkpoint(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """The content of a checkpoint on the CPU; CorruptFileError where any byte differs from what was written.

    Only tensors and plain values are read (`weights_only=True`), and only after the checksum has been verified. With
    `mmap` tensors stay in the file until they are used.
    """
    problem = damage(path)
    if problem:
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: {problem}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: {reason}.") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: it holds a {type(content).__name__}.")
    return content


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's file, by the checksum of all its bytes; None when it is as it was written."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - SEAL
            if size < 0:
                return "it is truncated"
            file.seek(size)
            seal = file.read(SEAL)
            if not seal.startswith(MARK):
                return "it is truncated or damaged, or finola did not write it: its checksum is missing"
            return None if _digest(file, size) == seal[len(MARK) :] else "it is damaged: its checksum does not match"
    except OSError as error:
        return f"it cannot be opened ({error.strerror or error})"


def find_resumable(folder: Path) -> tuple[Path | None, int, str]:
    """The newest intact checkpoint of a run, its step, and a sentence when it is not the last one.

    (None, 0, "") in a new folder.
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
        return path, step, f"{' '.join(problems)} Resuming from {name}, the one before it." if problems else ""
    if problems:
        raise CorruptFileError(f"{' '.join(problems)} No older checkpoint is left; start again with another --out.")
    return None, 0, ""


def _step_of(path: Path) -> int:
    """The step of a checkpoint that a run can be resumed from."""
    content = read_checkpoint(path, mmap=True)
    missing = [key for key in NEEDED if key not in content]
    step = content.get("global_step")
    if missing or not isinstance(step, int):
        what = f"it has no {', '.join(missing)}" if missing else f"its global_step is {step!r}"
        raise CorruptFileError(f"{path} cannot be resumed from: {what}.")
    return step


def plain(value: Any, where: str = "checkpoint") -> Any:
    """The same with tensors, numbers, strings, lists, tuples and dictionaries only; TypeError names anything else."""
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
    raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint holds tensors and plain values only.")

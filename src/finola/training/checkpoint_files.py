"""Checkpoint files: atomic writes, one previous generation, and a checksum that is verified before reading."""

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
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise CorruptFileError(f"{path} cannot be read as a checkpoint: {reason}.") from error
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

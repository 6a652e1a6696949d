"""Checkpoint files: written beside their target and renamed, one generation kept, read without unpickling objects."""

from __future__ import annotations

import os
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import CheckpointIO
from torch import Tensor

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


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
        with beside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        if path.name == LAST and path.exists():
            link(path, path.with_name(PREVIOUS))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def link(path: Path, target: Path) -> None:
    """Let `target` name the same file; where links are unknown, the file moves there."""
    beside = target.with_name(f".{target.name}.part")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:
        beside = path
    os.replace(beside, target)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint on the CPU; ValueError when it is damaged or holds anything but plain values."""
    problem = damage(path)
    if problem:
        raise ValueError(f"{path} cannot be read as a checkpoint: {problem}.")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}") from error
    return content


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's file, by the checksums inside it; None when it is whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as error:
        return f"it is truncated or damaged ({error})"
    return f"its part {broken} is damaged" if broken else None


def find_resumable(folder: Path) -> tuple[Path | None, str]:
    """The newest whole checkpoint of a run, and a sentence when it is not the last one. (None, "") in a new folder."""
    problems: list[str] = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        problem = damage(path)
        if problem is None:
            return path, f"{' '.join(problems)} Resuming from {name}, the one before it." if problems else ""
        problems.append(f"{path} cannot be used: {problem}.")
    if problems:
        raise ValueError(f"{' '.join(problems)} No older checkpoint is left; start again with another --out.")
    return None, ""


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

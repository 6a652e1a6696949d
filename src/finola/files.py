"""Files written so that a crash leaves the old one or the new one; where to cache; what identifies weights."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor, nn


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and rename it into place; whatever goes wrong, no half file stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write safetensors beside `path` and rename them into place, without a second copy in memory."""
    from safetensors.torch import save_file

    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, metadata)
        share(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def share(path: Path) -> None:
    """Give a file the permissions of any new one: safetensors leaves it to its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def check_folder(path: Path) -> Path:
    """The path, if there is a folder to write it into; asked before hours of work, not after them."""
    path = path.expanduser()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into: create it first.")
    return path


def digest_of_weights(model: nn.Module) -> str:
    """Twelve hexadecimal digits that change with any weight, buffer or name of a model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def cache_folder(*parts: str) -> Path:
    """A folder for what can be computed again: below XDG_CACHE_HOME, or .cache in the home folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home).expanduser() if home else Path.home() / ".cache").joinpath("finola", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder

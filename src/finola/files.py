"""Overwrite checks and atomic writes of output files, the cache folder, and the digest of model weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.errors import InputError, MissingFileError, OutputExistsError, require, valid_unicode
from finola.locations import user_path

if TYPE_CHECKING:
    from torch import Tensor, nn


PART = ".part"
"""Suffix of temporary files."""
PLOTS = (".png", ".pdf", ".svg", ".jpg")
"""Suffixes of plots."""
ANIMATIONS = (".gif", ".webp", ".mp4")
"""Suffixes of animations."""


def output_path(path: str | Path, inputs: Iterable[str | Path] = (), force: bool = False) -> Path:
    """`output_paths` for a single file whose folder must exist."""
    return output_paths([path], inputs, force)[0]


def output_paths(
    paths: Iterable[str | Path], inputs: Iterable[str | Path] = (), force: bool = False, *, create: bool = False
) -> list[Path]:
    """Check, before the work, that these files may be written, and return their paths with `~` expanded.

    An input is never overwritten, not even with `force`. An input file is recognised through symbolic links, hard links
    and other spellings of its name, and every file inside an input folder is an input. Any other existing file needs
    `force`. Two of the paths may not name the same file, not even if their names differ in case, because some file
    systems ignore it.
    Folders that do not exist are an error, or are created if `create` is set and every other check has passed.
    """
    targets = [user_path(path) for path in paths]
    sources = [user_path(path) for path in inputs]
    names = {_real(source) for source in sources}
    identities = {_identity(source) for source in sources if source.exists()}
    seen: set[str] = set()
    for target in targets:
        resolved = _real(target)
        if str(resolved).casefold() in seen:
            raise OutputExistsError(f"Two outputs would be written to {target}: write them to different folders.")
        seen.add(str(resolved).casefold())
        if resolved in names or (target.exists() and _identity(target) in identities):
            raise OutputExistsError(f"{target} is an input and is never overwritten: choose another output with -o.")
        _check_blocking(target, create)
        if not os.path.lexists(target):
            continue
        if target.exists() and not target.is_file():
            raise InputError(f"{target} is {_kind(target)}: name a file to write.")
        inside = next((folder for folder in resolved.parents if folder in names), None)
        if inside is not None:
            raise OutputExistsError(
                f"{target} lies in the input folder {inside} and is never overwritten: choose another output with -o."
            )
        if not force:
            raise OutputExistsError(f"{target} already exists: use --force to overwrite it, or choose another output.")
    for folder in dict.fromkeys(target.parent for target in targets):
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable: choose another output with -o.")
    return targets


def read_file(path: Path) -> bytes:
    """Content of a regular file. Others are an error, because a FIFO may block and a device may never end."""
    if not path.exists():
        raise MissingFileError(f"There is no file {path}. Check the path.")
    if not path.is_file():
        raise InputError(f"{path} is {_kind(path)}: name a file to read.")
    with naming(path):
        return path.read_bytes()


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "not a regular file"


def _real(path: Path) -> Path:
    """The absolute path without symbolic links; unlike `Path.resolve`, a loop of links does not raise."""
    return Path(os.path.realpath(path))


def _identity(path: Path) -> tuple[int, int]:
    """What `os.path.samefile` compares."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _check_blocking(target: Path, create: bool) -> None:
    """Raise unless the folder of `target` exists, or can be created."""
    existing = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not existing.is_dir():
        raise InputError(f"{target} cannot be written: {existing} is a file, not a folder.")
    if not create:
        check_folder(target)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in an operating system error raised inside, which may name a temporary file or none at all."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path, suffix: str = PART) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` on success and remove it on failure.

    Its name is random, because processes on several machines may share the folder, and short, because that of `path`
    may have the maximum length.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}{suffix}")
    with naming(path):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically. Bytes of file names that are not UTF-8 are escaped."""
    write_bytes(path, valid_unicode(text).encode())


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Write a value as JSON, atomically. Bytes of file names that are not UTF-8 are escaped."""
    write_text(path, json.dumps(valid_unicode(value), indent=indent, ensure_ascii=False) + "\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` atomically: after a failure `path` is unchanged and no temporary file is left."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write safetensors atomically, without a second copy in memory."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata)
        except SafetensorError as error:  # also raised when the disk is full
            raise OSError(f"{path} cannot be written: {error}.") from error
        share(temporary)


def share(path: Path) -> None:
    """Set default file permissions; safetensors creates files readable only by their owner."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def check_folder(path: Path) -> Path:
    """Return the path with `~` expanded; raise `MissingFileError` if its folder does not exist."""
    path = user_path(path)
    if not path.parent.is_dir():
        raise MissingFileError(f"Cannot write {path.name}: there is no folder {path.parent}. Create it first.")
    return path


def plot_path(path: str | Path) -> Path:
    """Check, before the work, that a plot can be written to `path`, and return it with `~` expanded."""
    require("matplotlib")
    return check_folder(_check_suffix(path, PLOTS))


def animation_path(path: str | Path) -> Path:
    """Check, before the work, that an animation can be written to `path`, and return it with `~` expanded."""
    path = _check_suffix(path, ANIMATIONS)
    if path.suffix.lower() == ".mp4":
        require("imageio_ffmpeg")
    return check_folder(path)


def _check_suffix(path: str | Path, suffixes: Sequence[str]) -> Path:
    if Path(path).suffix.lower() not in suffixes:
        raise InputError(f"Cannot write {str(path)!r}: the name must end with one of {', '.join(suffixes)}.")
    return Path(path)


def digest_of_weights(model: nn.Module) -> str:
    """First twelve hexadecimal digits of the SHA-256 digest of the names and values of all weights and buffers."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def cache_folder(*parts: str) -> Path:
    """Create and return a cache folder below XDG_CACHE_HOME, or below ~/.cache if it is not set."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (user_path(home) if home else Path.home() / ".cache").joinpath("finola", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder

"""Photos in WebDataset shards: tar files whose samples share a key, such as `000017.jpg` and `000017.cls`."""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from PIL import Image

from finola.data.checks import check_name
from finola.data.remote import File, RemoteFile, extent_of, open_binary, size_of
from finola.data.sources import Source
from finola.errors import CorruptFileError, InputError, first_line, shorten
from finola.files import cache_folder, write_bytes
from finola.image_io import open_photo
from finola.locations import is_photo
from finola.urls import file_system_errors

MAX_MEMBER_BYTES = 2**31 - 1
"""Maximum size of a photo in a shard."""
MAX_LABEL_BYTES = 32
MAX_HEADER_BYTES = 2**13
"""Maximum size of an extended header: tarfile before Python 3.11.10 takes time proportional to its square."""
MIN_CACHED_BYTES = 2**20
"""Minimum size of a shard whose index is cached."""
QUOTED_PROBLEMS = 3
"""Number of problems quoted in the error for shards without any photo."""


class ShardSource(Source):
    """Photos in tar shards, read by random access; nothing is extracted to disk.

    The webdataset library streams shards: the order then depends on the workers, and resuming at a given photo requires
    reading all photos before it. Therefore the members are indexed with the standard library, and each photo is read
    with one seek. The index is cached for other processes and later runs. `.cls` members, integers as text, become
    labels (−1: unknown). Samples with an invalid label, name or size are ignored and listed in `problems`, as is the
    rest of a corrupt shard.
    """

    def __init__(self, files: Sequence[File], where: str) -> None:
        self.where, self.classes = where, {}
        self._files = list(files)
        indices = _indices(files)
        problems = [problem for index in indices for problem in index.problems]
        rows = [(number, *row) for number, index in enumerate(indices) for row in index.rows]
        if not rows:
            raise CorruptFileError(
                f"{where}: no photos in the {len(files)} tar files. {' '.join(problems[:QUOTED_PROBLEMS])}".strip()
            )
        self.problems = tuple(problems)
        self._rows = np.array(rows)  # shard, offset, bytes, label
        self._names = np.array([name.encode(errors="surrogateescape") for index in indices for name in index.names])
        self.shards = np.unique(self._rows[:, 0], return_index=True)[1]
        self.classes = {int(label): str(label) for label in np.unique(self._rows[:, 3]) if label >= 0}

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        name = bytes(self._names[index]).decode(errors="surrogateescape")
        return f"{self._files[self._rows[index, 0]].name}/{name}"

    def open(self, index: int) -> Image.Image:
        shard, offset, size, _ = (int(value) for value in self._rows[index])
        name = self.name(index)
        with file_system_errors(name), open_binary(self._files[shard]) as file:
            file.seek(offset)
            data = file.read(size)
        return open_photo(data, name)

    def label(self, index: int) -> int:
        return int(self._rows[index, 3])

    def extent(self) -> bytes:
        return extent_of(self._files)


def open_tar(stream: IO[bytes]) -> tarfile.TarFile:
    """Open a tar file whose headers have a bounded size, for reading them and small members."""
    return tarfile.open(fileobj=cast("IO[bytes]", _Bounded(stream)), mode="r:")


class _Bounded:
    """What tarfile needs of a stream, without large reads."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.seek, self.tell, self._read = stream.seek, stream.tell, stream.read

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise CorruptFileError(f"a header has {size} bytes; at most {MAX_HEADER_BYTES} are supported")
        return self._read(size)


class Index(NamedTuple):
    """Photos of a shard whose samples are valid, and the problems of the others."""

    names: list[str]
    rows: list[tuple[int, int, int]]  # offset, bytes, label
    problems: list[str]


def _indices(files: Sequence[File]) -> list[Index]:
    """Index of every shard.

    Processes that start together each begin with another shard, so that they share the work of the first run.
    """
    first = int(os.environ.get("RANK", 0)) * len(files) // max(1, int(os.environ.get("WORLD_SIZE", 1)))
    indices = {number % len(files): _index(files[number % len(files)]) for number in range(first, first + len(files))}
    return [indices[number] for number in range(len(files))]


def _index(file: File) -> Index:
    """Index of a shard, from the cache if the shard has not changed since it was stored."""
    if size_of(file) < MIN_CACHED_BYTES:
        return _Shard(file).index()
    with file_system_errors(str(file)):
        state = file.system.ukey(file.path) if isinstance(file, RemoteFile) else _state(file)
    try:
        stored = cache_folder("shards") / f"{hashlib.sha256(str(file).encode(errors='replace')).hexdigest()[:32]}.json"
        with _locked(stored.with_suffix(".lock")):
            if (cached := _cached(stored, state)) is not None:
                return cached
            shard = _Shard(file)
            if shard.intact:
                content = {"state": state, **shard.index()._asdict()}
                write_bytes(stored, json.dumps(content).encode())  # names that are not UTF-8 are escaped
            return shard.index()
    except OSError:  # no folder for the cache
        return _Shard(file).index()


def _state(file: Path) -> str:
    status = file.resolve().stat()
    return f"{file.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _cached(stored: Path, state: str) -> Index | None:
    try:
        content = json.loads(stored.read_bytes())
        if content.pop("state") != state:
            return None
        rows = [(int(offset), int(size), int(label)) for offset, size, label in content["rows"]]
        return Index(content["names"], rows, content["problems"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes wait for, where the platform has one."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


class _Shard:
    """Members of a shard: (name, offset, bytes) of the photo and the label of every key."""

    def __init__(self, file: File) -> None:
        self.photos: dict[str, tuple[str, int, int]] = {}
        self.labels: dict[str, int] = {}
        self.invalid: set[str] = set()
        self.problems: list[str] = []
        self.intact = False
        size = size_of(file)
        try:
            with open_binary(file) as stream, open_tar(stream) as tar:
                for member in tar:
                    if member.size < 0 or member.issparse() or member.offset_data + member.size > size:
                        raise CorruptFileError(f"the header of {shorten(member.name)} declares {member.size} bytes")
                    self._add(tar, member, file.name)
                end = tar.offset
            with open_binary(file) as raw:
                raw.seek(end)
                if any(raw.read(tarfile.BLOCKSIZE)):  # tarfile treats a corrupt header as the end of the archive
                    raise CorruptFileError(f"the header at byte {end} is corrupt")
            self.intact = True
        except Exception as error:  # tarfile raises IndexError, OverflowError, … for corrupt headers
            reason = f"{file} is corrupt after {len(self.photos)} photos: {first_line(error)}."
            self.problems.append(reason)

    def index(self) -> Index:
        valid = [(key, photo) for key, photo in self.photos.items() if key not in self.invalid]
        rows = [(offset, size, self.labels.get(key, -1)) for key, (_, offset, size) in valid]
        return Index([name for _, (name, _, _) in valid], rows, self.problems)

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, shard: str) -> None:
        folder, _, base = member.name.rpartition("/")
        key = f"{folder}/{base.partition('.')[0]}"
        if not member.isfile() or not (is_photo(base) or base.endswith(".cls")):
            return
        try:
            check_name(member.name)
            if is_photo(base):
                if member.size > MAX_MEMBER_BYTES:
                    raise CorruptFileError(f"it has {member.size} bytes; at most {MAX_MEMBER_BYTES} are supported.")
                self.photos.setdefault(key, (member.name, member.offset_data, member.size))
            elif text := tar.extractfile(member):
                self.labels[key] = _label(text.read(MAX_LABEL_BYTES))
        except InputError as error:
            self.invalid.add(key)
            self.problems.append(f"The sample of {shorten(member.name)} in {shard} is ignored: {error}")


def _label(text: bytes) -> int:
    if not re.fullmatch(rb"-1|[0-9]{1,18}", text.strip()):
        raise CorruptFileError(f"the label is {shorten(text)}; it must be an integer of at least 0.")
    return int(text)

"""Photos in WebDataset shards: tar files whose samples share a key, such as `000017.jpg` and `000017.cls`."""

import re
import tarfile
from collections.abc import Sequence
from typing import IO, cast

import numpy as np
from PIL import Image

from finola.data.checks import check_name
from finola.data.remote import File, file_system_errors, open_binary, size_of
from finola.data.sources import Source
from finola.errors import CorruptFileError, InputError, first_line, shorten
from finola.image_io import open_photo
from finola.locations import is_photo

MAX_MEMBER_BYTES = 2**31 - 1
"""Maximum size of a photo in a shard."""
MAX_LABEL_BYTES = 32
MAX_HEADER_BYTES = 2**13
"""Maximum size of an extended header: tarfile before Python 3.11.10 takes time proportional to its square."""
QUOTED_PROBLEMS = 3
"""Number of problems quoted in the error for shards without any photo."""


class ShardSource(Source):
    """Photos in tar shards, read by random access; nothing is extracted to disk.

    The webdataset library streams shards: the order then depends on the workers, and resuming at a given photo requires
    reading all photos before it. Therefore the members are indexed once with the standard library, and each photo is
    read with one seek. `.cls` members, integers as text, become labels (−1: unknown). Samples with an invalid label,
    name or size are ignored and listed in `problems`, as is the rest of a corrupt shard.
    """

    def __init__(self, files: Sequence[File], where: str) -> None:
        self.where, self.classes = where, {}
        self._files = list(files)
        rows: list[tuple[int, int, int, int]] = []  # shard, offset, bytes, label
        names: list[bytes] = []
        problems: list[str] = []
        for number, file in enumerate(files):
            shard = _Shard(file)
            problems += shard.problems
            for key, (name, offset, size) in shard.photos.items():
                if key not in shard.invalid:
                    rows.append((number, offset, size, shard.labels.get(key, -1)))
                    names.append(name.encode(errors="surrogateescape"))
        if not rows:
            raise CorruptFileError(
                f"{where}: no photos in the {len(files)} tar files. {' '.join(problems[:QUOTED_PROBLEMS])}".strip()
            )
        self.problems = tuple(problems)
        self._rows, self._names = np.array(rows), np.array(names)
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
        return self._rows.tobytes()


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


class _Shard:
    """Index of a shard: (name, offset, bytes) of the photo and the label of every key."""

    def __init__(self, file: File) -> None:
        self.photos: dict[str, tuple[str, int, int]] = {}
        self.labels: dict[str, int] = {}
        self.invalid: set[str] = set()
        self.problems: list[str] = []
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
        except Exception as error:  # tarfile raises IndexError, OverflowError, … for corrupt headers
            reason = f"{file} is corrupt after {len(self.photos)} photos: {first_line(error)}."
            self.problems.append(reason)

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

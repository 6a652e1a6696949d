"""Photos in WebDataset shards: tar files whose members share a key, `000017.jpg` beside `000017.cls`."""

import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from finola.data.checks import check_name, first_line, shorten
from finola.data.sources import Source
from finola.errors import CorruptFileError, InputError
from finola.image_io import is_photo, open_photo

LARGEST_MEMBER = 2**31 - 1
"""Bytes of the largest photo that is read from a shard."""
LONGEST_LABEL = 32
SHOWN = 3
"""Problems quoted where a data set holds no photos at all."""


class ShardSource(Source):
    """The photos of tar shards, each read from its place in the file; nothing is extracted to disk.

    The webdataset library streams its shards: the order then hangs on workers, and a run cannot resume at a given
    photo without reading all before it. So the members are listed once with the standard library, and after that
    every photo is one seek and one read. `.cls` members, a number as text, become labels (−1: unknown). A sample
    with an invalid label, name or size is left out and listed in `problems`, as is the rest of a damaged shard.
    """

    def __init__(self, files: Sequence[Path], where: str) -> None:
        self.where, self.classes = where, {}
        self._files = [str(file) for file in files]
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
                f"{where} holds no photos in its {len(files)} tar files. {' '.join(problems[:SHOWN])}".strip()
            )
        self.problems = tuple(problems)
        self._rows, self._names = np.array(rows), np.array(names)
        self.classes = {int(label): str(label) for label in np.unique(self._rows[:, 3]) if label >= 0}

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        name = bytes(self._names[index]).decode(errors="surrogateescape")
        return f"{Path(self._files[self._rows[index, 0]]).name}/{name}"

    def open(self, index: int) -> Image.Image:
        shard, offset, size, _ = (int(value) for value in self._rows[index])
        with open(self._files[shard], "rb") as file:
            file.seek(offset)
            return open_photo(file.read(size), self.name(index))

    def label(self, index: int) -> int:
        return int(self._rows[index, 3])


class _Shard:
    """Where each key's photo lies in a shard (name, offset, bytes), and each key's label."""

    def __init__(self, file: Path) -> None:
        self.photos: dict[str, tuple[str, int, int]] = {}
        self.labels: dict[str, int] = {}
        self.invalid: set[str] = set()
        self.problems: list[str] = []
        size = file.stat().st_size
        try:
            with tarfile.open(file, "r:") as tar:
                for member in tar:
                    if member.size < 0 or member.issparse() or member.offset_data + member.size > size:
                        raise CorruptFileError(f"{shorten(member.name)} has {member.size} bytes in its header")
                    self._add(tar, member, file.name)
                end = tar.offset
            with file.open("rb") as raw:
                raw.seek(end)
                if any(raw.read(tarfile.BLOCKSIZE)):  # tarfile ends there as at the end of the archive
                    raise CorruptFileError(f"the header at byte {end} is damaged")
        except Exception as error:  # tarfile raises IndexError, OverflowError, … at damaged headers
            reason = f"{file} could be read only up to its photo {len(self.photos)}: {first_line(error)}."
            self.problems.append(reason)

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, shard: str) -> None:
        folder, _, base = member.name.rpartition("/")
        key = f"{folder}/{base.partition('.')[0]}"
        if not member.isfile() or not (is_photo(base) or base.endswith(".cls")):
            return
        try:
            check_name(member.name)
            if is_photo(base):
                if member.size > LARGEST_MEMBER:
                    raise CorruptFileError(f"it has {member.size} bytes, and {LARGEST_MEMBER} are possible.")
                self.photos.setdefault(key, (member.name, member.offset_data, member.size))
            elif text := tar.extractfile(member):
                self.labels[key] = _label(text.read(LONGEST_LABEL))
        except InputError as error:
            self.invalid.add(key)
            self.problems.append(f"The sample of {shorten(member.name)} in {shard} is left out: {error}")


def _label(text: bytes) -> int:
    if not re.fullmatch(rb"-1|[0-9]{1,18}", text.strip()):
        raise CorruptFileError(f"its label is {shorten(text)}, and a whole number from 0 on is needed.")
    return int(text)

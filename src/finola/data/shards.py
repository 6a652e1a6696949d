"""Photos in WebDataset shards: tar files whose members share a key, `000017.jpg` beside `000017.cls`."""

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from finola.data.sources import Source
from finola.images import is_photo, open_photo


class ShardSource(Source):
    """The photos of tar shards, each read from its place in the file.

    The webdataset library streams its shards: the order then hangs on workers, and a run cannot resume at a given
    photo without reading all before it. So the members are listed once with the standard library, and after that
    every photo is one seek and one read. `.cls` members, a number as text, become labels.
    """

    def __init__(self, files: Sequence[Path], where: str) -> None:
        self.where, self.classes = where, {}
        self._files = [str(file) for file in files]
        rows: list[tuple[int, int, int, int]] = []  # shard, offset, bytes, label
        names: list[bytes] = []
        problems: list[str] = []
        for shard, file in enumerate(files):
            photos, labels, problem = _members(file)
            problems += [problem] if problem else []
            for key, (name, offset, size) in photos.items():
                rows.append((shard, offset, size, labels.get(key, -1)))
                names.append(name.encode())
        if not rows:
            raise ValueError(f"{where} holds no photos in its {len(files)} tar files. {' '.join(problems)}".strip())
        self.problems = tuple(problems)
        self._rows, self._names = np.array(rows), np.array(names)
        self.classes = {int(label): str(label) for label in np.unique(self._rows[:, 3]) if label >= 0}

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        return f"{Path(self._files[self._rows[index, 0]]).name}/{self._names[index].decode()}"

    def open(self, index: int) -> Image.Image:
        shard, offset, size, _ = (int(value) for value in self._rows[index])
        with open(self._files[shard], "rb") as file:
            file.seek(offset)
            return open_photo(file.read(size), self.name(index))

    def label(self, index: int) -> int:
        return int(self._rows[index, 3])


def _members(file: Path) -> tuple[dict[str, tuple[str, int, int]], dict[str, int], str]:
    """Where each key's photo lies in a shard, each key's label, and a sentence if the shard ends in an error."""
    photos: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                key = f"{folder}/{base.partition('.')[0]}"
                if member.isfile() and is_photo(base):
                    photos.setdefault(key, (member.name, member.offset_data, member.size))
                elif member.isfile() and base.endswith(".cls") and (text := tar.extractfile(member)):
                    labels[key] = int(text.read())
    except (tarfile.TarError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return photos, labels, f"{file} could be read only up to its photo {len(photos)}: {reason}."
    return photos, labels, ""

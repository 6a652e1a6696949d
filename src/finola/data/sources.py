"""Base class of the sources of photos, and the splitting of sources without splits."""

import hashlib
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from finola.errors import InputError, UnknownNameError
from finola.locations import evenly_spaced

SPLITS = ("train", "val", "test", "all")
_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class Source(ABC):
    """Photos by index, 0 … len − 1, each with a name; `open` does not decode the pixels."""

    where: str
    """Folder, file or pattern that was opened, for messages."""
    classes: dict[int, str]
    """Class names by label; empty if there are no labels."""
    categories: Mapping[int, str] = MappingProxyType({})
    """Names of the categories of objects in `target`, by id; unrelated to the labels of photos."""
    decoded = False
    """Whether the pixels are already decoded in memory, so that workers would bring no speed-up."""
    blocks: np.ndarray | None = None
    """First index of every block of photos that is read together; None if photos are read individually."""
    shards: np.ndarray | None = None
    """First index of every shard, if the photos are in shards of which each process reads its own; otherwise None."""
    problems: tuple[str, ...] = ()
    """Messages about data that could not be read when the source was opened."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """Name of a photo, identical on every machine with the same data."""

    @abstractmethod
    def open(self, index: int) -> Image.Image:
        """Open a photo without necessarily decoding it; raises ValueError or OSError if it is unreadable."""

    def label(self, index: int) -> int:
        """Label of a photo; −1 if unknown."""
        return -1

    def extent(self) -> bytes:
        """`stamps` of the files, for `fingerprint`; empty if there are no files."""
        return b""

    def fingerprint(self) -> str:
        """SHA-256 of the names of all photos in order, and of the sizes and times of modification of their files.

        It is independent of the folder. Photos that are replaced under the same names change it.
        """
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(self.name(index).encode(errors="surrogateescape") + b"\0")
        digest.update(self.extent())
        return digest.hexdigest()

    def read_in_order(self) -> None:  # noqa: B027  (most sources keep nothing in memory)
        """Announce that photos are read in increasing order, so that those read before need not stay in memory."""

    def target(self, index: int) -> dict[str, Any]:
        """Boxes and masks of a photo, if the source has them."""
        raise InputError(f"{self.where} has no object annotations; use a COCO folder.")


def stamps(paths: Iterable[str | bytes | Path]) -> bytes:
    """Size and time of modification of every file; −1 for a file that does not exist, which `open` reports."""

    def stamp(path: str | bytes | Path) -> tuple[int, int]:
        try:
            found = os.stat(path)
        except OSError:
            return -1, -1
        return found.st_size, found.st_mtime_ns

    return np.array([stamp(path) for path in paths], np.int64).tobytes()


class Subset(Source):
    """Some photos of another source, in increasing order."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source, self.indices = source, indices
        self.where, self.classes, self.problems = source.where, source.classes, source.problems
        self.decoded = source.decoded
        self.categories = dict(source.categories)  # the default cannot be sent to another process
        if source.blocks is not None:
            self.blocks = np.unique(np.searchsorted(indices, source.blocks))
        if source.shards is not None:
            self.shards = np.unique(np.searchsorted(indices, source.shards))

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def open(self, index: int) -> Image.Image:
        return self.source.open(int(self.indices[index]))

    def label(self, index: int) -> int:
        return self.source.label(int(self.indices[index]))

    def extent(self) -> bytes:
        return self.source.extent()

    def read_in_order(self) -> None:
        self.source.read_in_order()

    def target(self, index: int) -> dict[str, Any]:
        return self.source.target(int(self.indices[index]))


def evenly(source: Source, count: int | None) -> Source:
    """Select `count` evenly spaced photos, because photos may be sorted by class; all if there are fewer."""
    if count is not None and count < 1:
        raise InputError(f"The number of photos of {source.where} must be at least 1, not {count}.")
    if count is None or count >= len(source):
        return source
    return Subset(source, np.array(evenly_spaced(len(source), count)))


def split_by_name(source: Source, split: str) -> Source:
    """Split a source without splits of its own into `train` and `val`; `test` and `all` are the whole source.

    A photo belongs to val if the CRC-32 of its name is a multiple of 20. So val has one photo in twenty, independent of
    the other photos. If either split would be empty, val is the photo with the smallest CRC; a single photo is in both.
    """
    if split in ("test", "all") or len(source) == 1:
        return source
    hashes = np.array([zlib.crc32(source.name(index).encode(errors="surrogateescape")) for index in range(len(source))])
    is_val = hashes % 20 == 0
    if is_val.all() or not is_val.any():
        is_val = hashes == hashes.min()
    return Subset(source, np.flatnonzero(is_val == (split == "val")))


def part_of(name: str) -> str | None:
    """Split that is named in the name of a file or folder, or None.

    >>> part_of("imagenet-train-000017.tar"), part_of("validation"), part_of("holiday")
    ('train', 'val', None)
    """
    return next((_WORDS[word] for word in re.split("[^a-z]+", name.lower()) if word in _WORDS), None)


def choose_parts(available: Collection[str], split: str, where: str) -> tuple[str, ...]:
    """Select the part of a data set for a split; empty if `split_by_name` must be used.

    `val` falls back to a test part, `test` to the val part. A data set whose only part is train has no splits.
    """
    if split == "all" or set(available) <= {"train"}:
        return ()
    for part in {"train": ("train",), "val": ("val", "test"), "test": ("test", "val")}[split]:
        if part in available:
            return (part,)
    raise InputError(f"{where} has no {split} split; available: {', '.join(sorted(available))}.")


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise UnknownNameError(f"Unknown split {split!r}; use one of {', '.join(SPLITS)}.")

"""What every source of photos answers, and how a source without splits of its own is split."""

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from finola.errors import InputError

SPLITS = ("train", "val", "test", "all")
_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class Source(ABC):
    """Photos by number, 0 … len − 1, each with a name, opened but not yet decoded."""

    where: str
    """The folder, file or pattern it was opened from, for messages."""
    classes: dict[int, str]
    """Class names by label; empty where labels are unknown."""
    categories: Mapping[int, str] = MappingProxyType({})
    """Names of the objects that `target` knows, by their number there; a photo's own label is none of them."""
    decoded = False
    """Whether the pixels already lie decoded in memory, so that workers would gain nothing."""
    blocks: np.ndarray | None = None
    """First number of every stretch of photos that must be read together; None where each can be read alone."""
    problems: tuple[str, ...] = ()
    """Sentences on whatever could not be read while the source was opened."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """Which photo this is, the same on every machine that holds the same data."""

    @abstractmethod
    def open(self, index: int) -> Image.Image:
        """The photo, its pixels not necessarily decoded; ValueError or OSError when it is unreadable."""

    def label(self, index: int) -> int:
        """The number of its class, −1 where unknown."""
        return -1

    def target(self, index: int) -> dict[str, Any]:
        """Its boxes and masks, where the source has such annotations."""
        raise InputError(f"{self.where} has no annotations of objects; a COCO folder has.")


class Subset(Source):
    """Some photos of another source, in rising order."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        self.source, self.indices = source, indices
        self.where, self.classes, self.problems = source.where, source.classes, source.problems
        self.decoded, self.categories = source.decoded, source.categories
        if source.blocks is not None:
            self.blocks = np.unique(np.searchsorted(indices, source.blocks))

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def open(self, index: int) -> Image.Image:
        return self.source.open(int(self.indices[index]))

    def label(self, index: int) -> int:
        return self.source.label(int(self.indices[index]))

    def target(self, index: int) -> dict[str, Any]:
        return self.source.target(int(self.indices[index]))


def evenly(source: Source, count: int | None) -> Source:
    """`count` photos of a source, evenly spread, since photos may lie sorted by class; all where it has no more."""
    if count is not None and count < 1:
        raise InputError(f"{count} photos of {source.where} are asked for; take at least one.")
    if count is None or count >= len(source):
        return source
    return Subset(source, np.linspace(0, len(source) - 1, count).round().astype(int))


def split_by_name(source: Source, split: str) -> Source:
    """The `train` or `val` share of a source that has no splits of its own; `test` and `all` are the whole.

    A photo belongs to val when the CRC-32 of its name is a multiple of 20, which is one in twenty and does not depend
    on the other photos. Where that leaves a side empty, the photo of the smallest CRC is val; a lone photo is in both.
    """
    if split in ("test", "all") or len(source) == 1:
        return source
    hashes = np.array([zlib.crc32(source.name(index).encode(errors="surrogateescape")) for index in range(len(source))])
    is_val = hashes % 20 == 0
    if is_val.all() or not is_val.any():
        is_val = hashes == hashes.min()
    return Subset(source, np.flatnonzero(is_val == (split == "val")))


def part_of(name: str) -> str | None:
    """The split that a file's or folder's name speaks of.

    >>> part_of("imagenet-train-000017.tar"), part_of("validation"), part_of("holiday")
    ('train', 'val', None)
    """
    return next((_WORDS[word] for word in re.split("[^a-z]+", name.lower()) if word in _WORDS), None)


def choose_parts(available: Collection[str], split: str, where: str) -> tuple[str, ...]:
    """Which of the parts that a data set has make up a split; none when `split_by_name` must make it.

    `val` falls back to a test part, `test` to the val part. A data set whose only part is train has no splits.
    """
    if split == "all" or set(available) <= {"train"}:
        return ()
    for part in {"train": ("train",), "val": ("val", "test"), "test": ("test", "val")}[split]:
        if part in available:
            return (part,)
    raise InputError(f"{where} has no {split} part; it has {', '.join(sorted(available))}.")


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise InputError(f"There is no split {split!r}; it is one of {', '.join(SPLITS)}.")

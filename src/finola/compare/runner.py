"""Measurement of every method on every photo in several processes; rows are cached as soon as they are measured."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor

from finola.baselines import Method
from finola.compare.methods import build_method, identity, runs_model
from finola.data import CentreCrop, PhotoDataset, Whole
from finola.data.sources import Source
from finola.errors import InputError, first_line
from finola.image_io import content
from finola.jobs.pool import Pool, available_cores
from finola.jobs.store import Store
from finola.metrics import quality_metrics

Row = dict[str, Any]
BATCH = 4  # reconstructions whose metrics are computed in one call


class Photo(Protocol):
    """A photo to compare methods on, such as those of `finola.cli.inputs.find_photos`."""

    @property
    def name(self) -> str: ...

    def open(self) -> Image.Image: ...


class _Given(Source):
    """Photos that were given one by one, as a source of a data set."""

    def __init__(self, photos: Sequence[Photo]) -> None:
        self.photos = photos
        self.where, self.classes = "the data", {}

    def __len__(self) -> int:
        return len(self.photos)

    def name(self, index: int) -> str:
        return self.photos[index].name

    def open(self, index: int) -> Image.Image:
        return self.photos[index].open()


@dataclass(frozen=True)
class Photos:
    """Photos that all methods are measured on. Cheap to send to another process, which opens them itself."""

    photos: tuple[Photo, ...]
    crop: int | None = None  # side of the centre crop after resizing the short side; None: whole photos

    def open(self) -> PhotoDataset:
        return PhotoDataset(_Given(self.photos), CentreCrop(self.crop) if self.crop else Whole())


def read_image(dataset: PhotoDataset, index: int) -> Tensor | None:
    """Image (3, H, W) in [0, 1] of a data set, or None if the photo cannot be read."""
    item = dataset[0, index]
    return None if item.replaced else item.images[0].float() / 255


def run_method(method: Method, image: Tensor) -> tuple[Row, Tensor]:
    """Cost and times of one method on one image (3, H, W), and its reconstruction."""
    begin = time.perf_counter()
    code = method.encode(image)
    middle = time.perf_counter()
    rebuilt = method.decode(code)
    end = time.perf_counter()
    row: Row = {"latents": code.latents, "bits": code.bits, "pixels": image.shape[-2] * image.shape[-1]}
    return row | {"encode_seconds": middle - begin, "decode_seconds": end - middle}, rebuilt


def rows_of(image: Tensor, methods: Sequence[Method]) -> list[Row]:
    """Measure every method on one image: one row per method."""
    rows = []
    for start in range(0, len(methods), BATCH):
        measured = [run_method(method, image) for method in methods[start : start + BATCH]]
        rebuilt = torch.stack([image for _, image in measured])
        quality = quality_metrics(rebuilt, image.expand_as(rebuilt))
        rows += [row | more for (row, _), more in zip(measured, quality, strict=True)]
    return rows


class Result(NamedTuple):
    """Rows of all methods for all photos, except those left out of all methods, whose reasons are given by index."""

    rows: list[Row]
    left_out: dict[int, str]


@dataclass(frozen=True)
class Task:
    """A photo, and the methods to measure on it."""

    index: int
    words: list[str]


@dataclass
class Measurement:
    """Measures photos in one process, which builds each method once."""

    photos: Photos
    fitted: Mapping[int, Path]
    device: torch.device
    methods: dict[str, Method] = field(default_factory=dict)

    def __call__(self, task: Task) -> list[Row] | str:
        """Rows of one photo, or the reason why there are none."""
        item = self.dataset[0, task.index]
        if item.replaced:
            return str(item.skipped[task.index])
        for word in task.words:
            if word not in self.methods:
                self.methods[word] = build_method(word, self.fitted, self.device)
        try:
            return rows_of(item.images[0].float() / 255, [self.methods[word] for word in task.words])
        except (ValueError, OSError) as error:
            return f"{self.photos.photos[task.index].name}: {first_line(error)}."

    @cached_property
    def dataset(self) -> PhotoDataset:
        return self.photos.open()


def run(
    photos: Photos,
    words: Sequence[str],
    fitted: Mapping[int, Path],
    cache: Path,
    workers: int | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Measure all methods on all photos; rows that are cached in the folder `cache` are not measured again.

    A photo that cannot be read, or that a method cannot encode, is left out of all methods. Methods run in `workers`
    processes (default: one per core); models on a `device` other than the CPU run in this process. The cache has a JSON
    record for each photo and crop, with its rows by `identity` of the method.
    """
    device = torch.device(device)
    dataset = photos.open()
    if not len(dataset):
        raise InputError("There are no photos to compare methods on.")
    identities = {word: identity(word, device, fitted) for word in words}
    store = Store(cache)
    names = [f"photos/{fingerprint(dataset, index)}.json" for index in range(len(dataset))]
    records = {name: store.record(name) or {} for name in names}

    def missing(chosen: list[str]) -> list[Task]:
        rest = ([word for word in chosen if identities[word] not in records[name]] for name in names)
        return [Task(index, some) for index, some in enumerate(rest) if some]

    here = [word for word in words if device.type != "cpu" and runs_model(word)]
    parts = [(missing([word for word in words if word not in here]), workers or available_cores()), (missing(here), 1)]
    failures, done, total = dict[int, str](), 0, sum(len(tasks) for tasks, _ in parts)
    for tasks, count in parts:
        tasks = [task for task in tasks if task.index not in failures]
        with Pool(min(count, len(tasks)), module=__name__, say=say) as pool:
            work = Measurement(photos, fitted, device)
            for number, found in pool.run(work, tasks, lambda task: photos.photos[task.index].name):
                task = tasks[number]
                if isinstance(found, str):
                    failures[task.index] = found
                else:
                    name = names[task.index]
                    records[name] |= {identities[word]: row for word, row in zip(task.words, found, strict=True)}
                    store.write_record(name, records[name])
                done += 1
                progress(done, total)
    readable = [name for index, name in enumerate(names) if index not in failures]
    rows = [records[name][identities[word]] | {"word": word} for name in readable for word in words]
    return Result(rows, dict(sorted(failures.items())))


def fingerprint(dataset: PhotoDataset, index: int) -> str:
    """Hash of the transform and of the content of a photo, which does not depend on its name."""
    digest = hashlib.sha256(repr(dataset.transform).encode())
    try:
        digest.update(content(dataset.source.open(index)))
    except (ValueError, OSError):  # unreadable: nothing will be stored
        digest.update(dataset.name(index).encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]

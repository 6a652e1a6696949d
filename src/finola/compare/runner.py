"""Measurement of every method on every photo in several processes; each row is cached as soon as it is measured."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor

from finola.baselines import Method
from finola.compare.methods import build_method, identity, runs_model
from finola.data import CentreCrop, PhotoDataset, Whole, available_cores
from finola.data.sources import Source
from finola.errors import InputError, first_line
from finola.image_io import content
from finola.metrics import quality_metrics
from finola.workers import worker_pool

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


class Work(NamedTuple):
    """Arguments of a worker process."""

    photos: Photos
    fitted: Mapping[int, Path]
    device: torch.device


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


class Cache:
    """Rows by (method, photo) in a JSON lines file, so that an interrupted run can be resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, str], Row] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                    self.rows[row["method"], row["photo"]] = row
                except (ValueError, KeyError, TypeError):  # an incomplete line of a run that was killed
                    continue

    def add(self, rows: Sequence[Row]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        self.rows.update({(row["method"], row["photo"]): row for row in rows})


class Result(NamedTuple):
    """Rows of all methods for all photos, except those left out of all methods, whose reasons are given by index."""

    rows: list[Row]
    left_out: dict[int, str]


def run(
    photos: Photos,
    words: Sequence[str],
    fitted: Mapping[int, Path],
    cache: Path,
    workers: int | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Measure all methods on all photos; rows that are cached in the folder `cache` are not measured again.

    A photo that cannot be read, or that a method cannot encode, is left out of all methods. Methods run in `workers`
    processes (default: one per core); models on a `device` other than the CPU run in this process.
    """
    device = torch.device(device)
    dataset = photos.open()
    names = [dataset.name(index) for index in range(len(dataset))]
    if not names:
        raise InputError("There are no photos to compare methods on.")
    identities = {word: identity(word, device, fitted) for word in words}
    keys = [f"{index} {name}" for index, name in enumerate(names)]
    cached = Cache(cache / f"{fingerprint(dataset)}.jsonl")

    def missing(chosen: list[str]) -> dict[int, list[str]]:
        """Methods still to be measured, by photo."""
        rest = ([word for word in chosen if (identities[word], key) not in cached.rows] for key in keys)
        return {index: some for index, some in enumerate(rest) if some}

    here = [word for word in words if device.type != "cpu" and runs_model(word)]
    parts = [(missing([word for word in words if word not in here]), workers or available_cores()), (missing(here), 1)]
    work, failures, done = Work(photos, fitted, device), dict[int, str](), 0
    total = sum(len(tasks) for tasks, _ in parts)
    for tasks, count in parts:
        tasks = {index: some for index, some in tasks.items() if index not in failures}
        for index, found in _by_processes(work, tasks, count):
            if isinstance(found, str):
                failures[index] = found
            else:
                pairs = zip(tasks[index], found, strict=True)
                key = keys[index]
                cached.add([row | {"method": identities[word], "photo": key, "word": word} for word, row in pairs])
            done += 1
            progress(done, total)
    readable = [index for index in range(len(keys)) if index not in failures]
    rows = [cached.rows[identities[word], keys[index]] for index in readable for word in words]
    return Result(rows, dict(sorted(failures.items())))


def _by_processes(work: Work, tasks: dict[int, list[str]], count: int) -> Iterator[tuple[int, list[Row] | str]]:
    """Measure photos in parallel, each in a process with one thread: the classical baselines do not use more."""
    count = min(count, len(tasks))
    if count == 1:
        _prepare(work)
        for index, words in tasks.items():
            yield index, _measure_photo(index, words)
        return
    if not tasks:
        return
    with worker_pool(count, _prepare, work) as submit:
        pending: dict[Future[list[Row] | str], int] = {}
        rest = iter(tasks.items())
        while True:
            while len(pending) < 2 * count and (task := next(rest, None)):
                pending[submit(_measure_photo, *task)] = task[0]
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()


_state: dict[str, Any] = {}  # of this worker process


def _prepare(work: Work) -> None:
    _state.clear()
    _state.update(work=work, dataset=work.photos.open(), methods={})


def _measure_photo(index: int, words: list[str]) -> list[Row] | str:
    """Rows of one photo, or the reason why there are none."""
    work: Work = _state["work"]
    item = _state["dataset"][0, index]
    if item.replaced:
        return str(item.skipped[index])
    methods = _state["methods"]
    for word in words:
        if word not in methods:
            methods[word] = build_method(word, work.fitted, work.device)
    try:
        return rows_of(item.images[0].float() / 255, [methods[word] for word in words])
    except (ValueError, OSError) as error:
        return f"{work.photos.photos[index].name}: {first_line(error)}."


def fingerprint(dataset: PhotoDataset) -> str:
    """Hash of the transform, and of file name and content of every photo; independent of the folder they are in."""
    digest = hashlib.sha256(repr(dataset.transform).encode())
    for index in range(len(dataset)):
        try:
            found = content(dataset.source.open(index))
        except (ValueError, OSError):  # unreadable
            found = b""
        name = Path(dataset.name(index)).name.encode(errors="surrogateescape")
        digest.update(name + b"\0" + hashlib.sha256(found).digest())
    return digest.hexdigest()[:16]

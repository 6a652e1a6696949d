"""Measurement of every method on every photo in several processes; each row is cached as soon as it is measured."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finola.baselines import Method
from finola.compare.methods import build_method, identity
from finola.data import CentreCrop, PhotoDataset, Whole, available_cores, open_data
from finola.data.sources import evenly
from finola.data.transforms import centre_crop
from finola.errors import InputError
from finola.image_io import open_photo, photo_name, read_photo
from finola.locations import evenly_spaced, is_photo
from finola.metrics import quality_metrics

Row = dict[str, Any]
BATCH = 4  # reconstructions whose metrics are computed in one call


@dataclass(frozen=True)
class Photos:
    """Test photos: one data set, or a list of photo files. Cheap to send to another process."""

    words: tuple[str, ...]
    split: str = "test"
    limit: int | None = None
    crop: int | None = None  # side of the centre crop after resizing the short side; None: whole photos

    def one_by_one(self) -> bool:
        return all(word.startswith("skimage:") or (is_photo(word) and Path(word).is_file()) for word in self.words)

    def open(self) -> PhotoDataset | None:
        if not self.words or self.one_by_one():
            return None
        if len(self.words) > 1:
            raise InputError(f"Cannot combine {', '.join(self.words)}: give one data set, or photo files only.")
        dataset = open_data(self.words[0], self.split, transform=CentreCrop(self.crop) if self.crop else Whole())
        dataset.source = evenly(dataset.source, self.limit)
        return dataset

    def names(self, dataset: PhotoDataset | None) -> list[str]:
        if dataset is None:
            return [photo_name(word) for word in self.chosen()]
        return [dataset.name(index) for index in range(len(dataset))]

    def chosen(self) -> list[str]:
        """Photo files, at most `limit` of them, evenly spread."""
        return [self.words[index] for index in evenly_spaced(len(self.words), self.limit)]

    def image(self, dataset: PhotoDataset | None, index: int) -> Tensor | None:
        """Image (3, H, W) in [0, 1], or None if the file cannot be read."""
        if dataset is None:
            name = self.chosen()[index]
            if self.crop:
                return centre_crop(open_photo(name), (self.crop, self.crop), name) / 255
            return read_photo(name)
        item = dataset[0, index]
        return None if item.replaced else item.images[0].float() / 255


class Work(NamedTuple):
    """Arguments of a worker process."""

    photos: Photos
    words: tuple[str, ...]
    fitted: Mapping[int, Path]


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


def run(
    photos: Photos, words: Sequence[str], fitted: Mapping[int, Path], cache: Path, workers: int | None = None
) -> Iterator[tuple[int, int, list[Row]]]:
    """Yield (photos done, number of photos, rows of one photo); rows that are not cached are measured."""
    dataset = photos.open()
    names = photos.names(dataset)
    if not names:
        raise InputError(f"No photos found in {' '.join(photos.words)}.")
    identities = {word: identity(word) for word in words}
    cached = Cache(cache / f"{fingerprint(photos, dataset, names)}.jsonl")
    pending: dict[int, list[str]] = {}  # methods still to be measured, by photo
    done = 0
    for index, name in enumerate(names):
        key = f"{index} {name}"
        missing = [word for word in words if (identities[word], key) not in cached.rows]
        if missing:
            pending[index] = missing
        else:
            done += 1
            yield done, len(names), [cached.rows[identities[word], key] for word in words]
    for index, missing, rows in _by_processes(Work(photos, tuple(words), fitted), pending, workers):
        done += 1
        key = f"{index} {names[index]}"
        found = [
            row | {"method": identities[word], "photo": key, "word": word}
            for word, row in zip(missing, rows, strict=False)
        ]
        cached.add(found)
        if rows:
            yield done, len(names), [cached.rows[identities[word], key] for word in words]


def _by_processes(
    work: Work, tasks: dict[int, list[str]], workers: int | None
) -> Iterator[tuple[int, list[str], list[Row]]]:
    """Measure photos in parallel, each in a process with one thread: the classical baselines do not use more."""
    count = min(workers or available_cores(), max(1, len(tasks)))
    if count == 1:
        _prepare(work, threads=None)
        for index, missing in tasks.items():
            yield index, missing, _measure_photo(index, missing)
        return
    with ProcessPoolExecutor(count, get_context("spawn"), _prepare, (work, 1)) as pool:
        try:
            pending: dict[Future[list[Row]], tuple[int, list[str]]] = {}
            rest = iter(tasks.items())
            while True:
                while len(pending) < 2 * count and (task := next(rest, None)):
                    pending[pool.submit(_measure_photo, *task)] = task
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    index, missing = pending.pop(future)
                    yield index, missing, future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_state: dict[str, Any] = {}  # of this worker process


def _prepare(work: Work, threads: int | None) -> None:
    if threads:
        torch.set_num_threads(threads)
    _state.clear()
    _state.update(work=work, dataset=work.photos.open(), methods={})


def _measure_photo(index: int, words: list[str]) -> list[Row]:
    work: Work = _state["work"]
    image = work.photos.image(_state["dataset"], index)
    if image is None:
        return []
    methods = _state["methods"]
    for word in words:
        if word not in methods:
            methods[word] = build_method(word, work.fitted)
    return rows_of(image, [methods[word] for word in words])


def fingerprint(photos: Photos, dataset: PhotoDataset | None, names: Sequence[str], samples: int = 16) -> str:
    """Hash of the photos' file names and of the pixels of some of them; independent of the folder they are in."""
    digest = hashlib.sha256("\n".join(Path(name).name for name in names).encode())
    for index in range(0, len(names), -(-len(names) // samples)):
        image = photos.image(dataset, index)
        if image is not None:
            digest.update(image.numpy().tobytes())
    return digest.hexdigest()[:16]

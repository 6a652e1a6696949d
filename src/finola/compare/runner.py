"""One row per peer and photo, by several processes, each kept as soon as it is there."""

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

from finola.baselines import Peer
from finola.compare.methods import build_peer, identity
from finola.data import PhotoDataset, Whole, available_cores, open_data
from finola.image_io import is_photo, photo_name, read_photo
from finola.metrics import figures

Row = dict[str, Any]
TOGETHER = 4  # reconstructions whose figures are computed in one call


@dataclass(frozen=True)
class Photos:
    """What is compared on: one data set, or photos named one by one. Small enough to hand to another process."""

    words: tuple[str, ...]
    split: str = "test"
    limit: int | None = None

    def one_by_one(self) -> bool:
        return all(word.startswith("skimage:") or (is_photo(word) and Path(word).is_file()) for word in self.words)

    def open(self) -> PhotoDataset | None:
        if not self.words or self.one_by_one():
            return None
        if len(self.words) > 1:
            raise ValueError(f"give one data set or photos one by one, not {', '.join(self.words)} together.")
        return open_data(self.words[0], self.split, transform=Whole())

    def names(self, dataset: PhotoDataset | None) -> list[str]:
        if dataset is None:
            return [photo_name(word) for word in self.words][: self.limit]
        return [dataset.name(index) for index in range(min(len(dataset), self.limit or len(dataset)))]

    def image(self, dataset: PhotoDataset | None, index: int) -> Tensor | None:
        """(3, H, W) in [0, 1], or None where the file cannot be read."""
        if dataset is None:
            return read_photo(self.words[index])
        item = dataset[0, index]
        return None if item.replaced else item.images[0].float() / 255


class Work(NamedTuple):
    """What a process needs to know."""

    photos: Photos
    words: tuple[str, ...]
    fitted: Mapping[int, Path]


def measure(peer: Peer, image: Tensor) -> tuple[Row, Tensor]:
    """Cost and times of one peer on one image (3, H, W), and its reconstruction."""
    begin = time.perf_counter()
    code = peer.encode(image)
    middle = time.perf_counter()
    rebuilt = peer.decode(code)
    end = time.perf_counter()
    row: Row = {"latents": code.latents, "bits": code.bits, "pixels": image.shape[-2] * image.shape[-1]}
    return row | {"encode_seconds": middle - begin, "decode_seconds": end - middle}, rebuilt


def rows_of(image: Tensor, peers: Sequence[Peer]) -> list[Row]:
    """One row per peer on one image."""
    rows = []
    for start in range(0, len(peers), TOGETHER):
        measured = [measure(peer, image) for peer in peers[start : start + TOGETHER]]
        rebuilt = torch.stack([image for _, image in measured])
        quality = figures(rebuilt, image.expand_as(rebuilt))
        rows += [row | more for (row, _), more in zip(measured, quality, strict=True)]
    return rows


class Cache:
    """Rows by (peer, photo) in one file of JSON lines: a run that was stopped goes on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, str], Row] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                    self.rows[row["peer"], row["photo"]] = row
                except (ValueError, KeyError, TypeError):  # the line at which a run was killed
                    continue

    def add(self, rows: Sequence[Row]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        self.rows.update({(row["peer"], row["photo"]): row for row in rows})


def run(
    photos: Photos, words: Sequence[str], fitted: Mapping[int, Path], cache: Path, workers: int | None = None
) -> Iterator[tuple[int, int, list[Row]]]:
    """Yield (photos done, photos in all, rows of one more photo), each row from the cache or measured now."""
    dataset = photos.open()
    names = photos.names(dataset)
    if not names:
        raise ValueError("there is no photo to compare on.")
    identities = {word: identity(word) for word in words}
    kept = Cache(cache / f"{fingerprint(photos, dataset, names)}.jsonl")
    wanted: dict[int, list[str]] = {}
    done = 0
    for index, name in enumerate(names):
        key = f"{index} {name}"
        missing = [word for word in words if (identities[word], key) not in kept.rows]
        if missing:
            wanted[index] = missing
        else:
            done += 1
            yield done, len(names), [kept.rows[identities[word], key] for word in words]
    for index, missing, rows in _by_processes(Work(photos, tuple(words), fitted), wanted, workers):
        done += 1
        key = f"{index} {names[index]}"
        found = [
            row | {"peer": identities[word], "photo": key, "word": word}
            for word, row in zip(missing, rows, strict=False)
        ]
        kept.add(found)
        if rows:
            yield done, len(names), [kept.rows[identities[word], key] for word in words]


def _by_processes(
    work: Work, wanted: dict[int, list[str]], workers: int | None
) -> Iterator[tuple[int, list[str], list[Row]]]:
    """Each photo in one process of one thread: classical transforms and file formats use no more."""
    count = min(workers or available_cores(), max(1, len(wanted)))
    if count == 1:
        _prepare(work, threads=None)
        for index, missing in wanted.items():
            yield index, missing, _measure_photo(index, missing)
        return
    with ProcessPoolExecutor(count, get_context("spawn"), _prepare, (work, 1)) as pool:
        try:
            pending: dict[Future[list[Row]], tuple[int, list[str]]] = {}
            rest = iter(wanted.items())
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


_here: dict[str, Any] = {}  # of one worker process


def _prepare(work: Work, threads: int | None) -> None:
    if threads:
        torch.set_num_threads(threads)
    _here.clear()
    _here.update(work=work, dataset=work.photos.open(), peers={})


def _measure_photo(index: int, words: list[str]) -> list[Row]:
    work: Work = _here["work"]
    image = work.photos.image(_here["dataset"], index)
    if image is None:
        return []
    peers = _here["peers"]
    for word in words:
        if word not in peers:
            peers[word] = build_peer(word, work.fitted)
    return rows_of(image, [peers[word] for word in words])


def fingerprint(photos: Photos, dataset: PhotoDataset | None, names: Sequence[str], samples: int = 16) -> str:
    """Changes with the photos' names and with the pixels of some of them, not with where they lie."""
    digest = hashlib.sha256("\n".join(Path(name).name for name in names).encode())
    for index in range(0, len(names), -(-len(names) // samples)):
        image = photos.image(dataset, index)
        if image is not None:
            digest.update(image.numpy().tobytes())
    return digest.hexdigest()[:16]

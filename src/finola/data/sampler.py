"""Random numbers and sample order as functions of (seed, epoch, index), independent of workers and ranks."""

from collections.abc import Iterator

import numpy as np
import torch.distributed
from torch.utils.data import Sampler

from finola.errors import InputError

WINDOW = 4
"""Number of blocks whose photos are shuffled together, for sources that are read by blocks."""

_AUGMENTATION, _ORDER, _SHARD_ORDER = 0, 1, 2


def generator(seed: int, epoch: int, index: int, stream: int = _AUGMENTATION) -> np.random.Generator:
    """Independent random generator for every (seed, epoch, index), from the counter-based Philox."""
    if seed < 0:
        raise InputError(f"seed must be at least 0, not {seed}.")
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, index, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def epoch_order(length: int, seed: int, epoch: int, blocks: np.ndarray | None = None) -> np.ndarray:
    """Permutation of 0 … length − 1. With `blocks`, blocks are permuted first, then photos within windows of blocks."""
    random = generator(seed, epoch, 0, _ORDER)
    if blocks is None:
        return random.permutation(length)
    parts = np.split(np.arange(length), blocks[1:])
    shuffled = [parts[number] for number in random.permutation(len(parts))]
    windows = [np.concatenate(shuffled[first : first + WINDOW]) for first in range(0, len(shuffled), WINDOW)]
    return np.concatenate([random.permutation(window) for window in windows])


class Lanes:
    """Order of an epoch in which every photo of a step comes from its own part of the data.

    The shards are permuted, and so are the photos of each shard. This sequence is cut into `count` lanes of equal
    length, and step k consists of the k-th photo of every lane; photos after the last full step are left out. Processes
    that take whole lanes read different photos, and different shards except those that are cut. Nothing is stored per
    photo: the order of a shard is computed when a lane reaches it.

    >>> lanes = Lanes(np.array([0, 4]), 8, 2, seed=0, epoch=0)
    >>> sorted(list(lanes.photos(0, 0)) + list(lanes.photos(1, 0)))
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(self, shards: np.ndarray, length: int, count: int, *, seed: int, epoch: int) -> None:
        self.seed, self.epoch, self.steps = seed, epoch, length // count
        self._first = shards
        self._sizes = np.diff(shards, append=length)
        self._shards = generator(seed, epoch, 0, _ORDER).permutation(len(shards))
        self._ends = np.cumsum(self._sizes[self._shards])  # in the sequence

    def photos(self, lane: int, start: int) -> Iterator[int]:
        """Photos of a lane from step `start` on."""
        position, end = lane * self.steps + start, (lane + 1) * self.steps
        place = int(np.searchsorted(self._ends, position, side="right"))
        while position < end:
            shard = self._shards[place]
            begin = self._ends[place] - self._sizes[shard]
            order = generator(self.seed, self.epoch, int(shard), _SHARD_ORDER).permutation(self._sizes[shard])
            for photo in order[position - begin : end - begin]:
                yield int(self._first[shard] + photo)
            position, place = self._ends[place], place + 1


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields the pairs (epoch, index) of one rank, `batch_size` per step.

    Step k of an epoch covers the k-th `batch_size · world` photos of its order, of which rank r takes the r-th part; so
    the photos of a step depend only on its total size. Without `drop_last`, the ranks share the remainder after the
    last full step, and one rank may have a photo more than another. No photo is repeated. With `shards`, the first
    index of every shard, the order of training is that of `Lanes`, one per photo of a step.

    `set_epoch` sets the epoch. After `set_start` or `load_state_dict`, the next iteration starts at a later step; the
    one after it starts at step 0 again. `rank` and `world` default to those of torch.distributed.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        blocks: np.ndarray | None = None,
        shards: np.ndarray | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.shuffle, self.drop_last, self.blocks, self.shards = shuffle, drop_last, blocks, shards
        self._rank, self._world = rank, world
        self.epoch = self.start = self.position = 0

    @property
    def rank(self) -> int:
        return self._rank if self._rank is not None else torch.distributed.get_rank() if _distributed() else 0

    @property
    def world(self) -> int:
        return self._world if self._world is not None else torch.distributed.get_world_size() if _distributed() else 1

    def __len__(self) -> int:
        """Number of photos of this rank in a whole epoch, independent of the start step."""
        steps, rest = divmod(self.length, self.batch_size * self.world)
        return steps * self.batch_size + (0 if self.drop_last else len(range(self.rank, rest, self.world)))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, start, self.start = self.epoch, self.start, 0
        for index in self._from_lanes(start) if self._uses_lanes else self._from_order(start):
            yield epoch, index

    @property
    def _uses_lanes(self) -> bool:
        return self.shards is not None and self.shuffle and self.drop_last

    def _from_lanes(self, start: int) -> Iterator[int]:
        assert self.shards is not None
        batch = self.batch_size
        lanes = Lanes(self.shards, self.length, batch * self.world, seed=self.seed, epoch=self.epoch)
        mine = [lanes.photos(lane, start) for lane in range(self.rank * batch, (self.rank + 1) * batch)]
        for photos in zip(*mine, strict=True):
            yield from photos

    def _from_order(self, start: int) -> Iterator[int]:
        order = epoch_order(self.length, self.seed, self.epoch, self.blocks) if self.shuffle else np.arange(self.length)
        batch, rank, world = self.batch_size, self.rank, self.world
        steps = self.length // (batch * world)
        for first in range((start * world + rank) * batch, steps * world * batch, world * batch):
            yield from map(int, order[first : first + batch])
        if not self.drop_last and start <= steps:
            yield from map(int, order[steps * world * batch + rank :: world])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. This resets the start step, unless the epoch is unchanged."""
        if epoch != self.epoch:
            self.epoch, self.start, self.position = epoch, 0, 0

    def set_start(self, step: int) -> None:
        """Start the next iteration at this step of the epoch."""
        if step < 0:
            raise InputError(f"The start step must be at least 0, not {step}.")
        self.start = self.position = step

    def state_dict(self) -> dict[str, int]:
        """Epoch, and the step after the last batch that was yielded (`Loader` updates `position`)."""
        return {"epoch": self.epoch, "step": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
        self.set_start(state["step"])


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()

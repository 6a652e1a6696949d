"""Random numbers and sample order as functions of (seed, epoch, index), independent of workers and ranks."""

from collections.abc import Iterator

import numpy as np
import torch.distributed
from torch.utils.data import Sampler

from finola.errors import InputError

WINDOW = 4
"""Number of blocks whose photos are shuffled together, for sources that are read by blocks."""

_AUGMENTATION, _ORDER = 0, 1


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


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields the pairs (epoch, index) of one rank, `batch_size` per step.

    Step k of an epoch covers the k-th `batch_size · world` photos of its order, of which rank r takes every `world`-th,
    starting with its r-th; so the photos of a step depend only on its total size. Without `drop_last`, the ranks share
    the remainder after the last full step, and one rank may have a photo more than another. No photo is repeated.

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
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.shuffle, self.drop_last, self.blocks = shuffle, drop_last, blocks
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
        order = epoch_order(self.length, self.seed, self.epoch, self.blocks) if self.shuffle else np.arange(self.length)
        mine = order[self.rank :: self.world][: len(self)]
        start, self.start = self.start, 0
        epoch = self.epoch
        for index in mine[start * self.batch_size :]:
            yield epoch, int(index)

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

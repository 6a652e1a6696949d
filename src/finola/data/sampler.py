"""Chance and order from (seed, epoch, index) alone: no worker, no rank and no earlier draw has a say."""

from collections.abc import Iterator

import numpy as np
import torch.distributed
from torch.utils.data import Sampler

from finola.errors import InputError

WINDOW = 4
"""Blocks whose photos are shuffled together where a source must be read by blocks."""

_AUGMENTATION, _ORDER = 0, 1


def generator(seed: int, epoch: int, index: int, stream: int = _AUGMENTATION) -> np.random.Generator:
    """A random generator of its own for every (seed, epoch, index), by a counter-based cipher (Philox)."""
    if seed < 0:
        raise InputError(f"A seed is 0 or larger, not {seed}.")
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, index, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def epoch_order(length: int, seed: int, epoch: int, blocks: np.ndarray | None = None) -> np.ndarray:
    """A permutation of 0 … length − 1; with `blocks`, blocks are permuted and then photos among a few of them."""
    random = generator(seed, epoch, 0, _ORDER)
    if blocks is None:
        return random.permutation(length)
    stretches = np.split(np.arange(length), blocks[1:])
    shuffled = [stretches[number] for number in random.permutation(len(stretches))]
    windows = [np.concatenate(shuffled[first : first + WINDOW]) for first in range(0, len(shuffled), WINDOW)]
    return np.concatenate([random.permutation(window) for window in windows])


class EpochSampler(Sampler[tuple[int, int]]):
    """Pairs (epoch, index) of one rank, `batch_size` a step, to be cut into batches in this order.

    Step k of an epoch covers the same photos whatever the number of ranks: the k-th `batch_size · world` of the
    epoch's order, of which rank r takes every `world`-th from its r-th on. Without `drop_last` the ranks share what
    remains after the last full step, so one of them may have a photo more than another. Nothing is repeated to pad.

    `set_epoch` chooses the epoch. `set_start`, or `load_state_dict`, lets the next pass begin at a later step of it;
    the pass after that begins at the first again. Rank and world are asked of torch.distributed when not given.
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
            raise InputError(f"A batch holds at least one photo, not {batch_size}.")
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
        """Photos of this rank in a whole epoch, wherever the next pass begins."""
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
        """Choose the epoch; a start set for this very epoch stays."""
        if epoch != self.epoch:
            self.epoch, self.start, self.position = epoch, 0, 0

    def set_start(self, step: int) -> None:
        """Let the next pass begin at this step of the epoch, as if the earlier batches had been taken."""
        if step < 0:
            raise InputError(f"A pass begins at step 0 or later, not at {step}.")
        self.start = self.position = step

    def state_dict(self) -> dict[str, int]:
        """The epoch and the step after the last batch that was handed out (`Loader` counts `position`)."""
        return {"epoch": self.epoch, "step": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
        self.set_start(state["step"])


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()

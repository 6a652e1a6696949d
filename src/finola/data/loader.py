"""Batches: a PyTorch DataLoader that goes on at any batch, and whose workers tell what they could not read."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from finola.data.dataset import Item, PhotoDataset
from finola.data.sampler import EpochSampler
from finola.errors import InputError

MOST_WORKERS = 12
SMALL = 256
"""Below this many photos an epoch is over before workers have started."""


class Batch(NamedTuple):
    """Images of a batch; crops of one photo lie next to each other."""

    images: Tensor  # (N, 3, H, W) float32 in [0, 1], or uint8
    labels: Tensor  # (N,) int64, −1 unknown
    indices: Tensor  # (N,) int64, which photos these are: `dataset.name(index)`
    replaced: Tensor  # (N,) bool, where a photo stands in for an unreadable one and so appears twice


class Loader(DataLoader[Item]):
    """Made by `make_loader`. Yields `Batch`es of the epoch chosen by `set_epoch`.

    `state_dict` names the batch after the last one yielded, however far workers have read ahead, and after
    `load_state_dict` the next pass begins exactly there; Lightning calls both when it saves and resumes. `len` is the
    number of batches in a whole epoch. Under Lightning, pass `use_distributed_sampler=False` to its Trainer.
    """

    dataset: PhotoDataset
    sampler: EpochSampler
    floats: bool = True

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # A generator begins at its first batch, so set_epoch still counts after iter().
        self.sampler.position = self.sampler.start
        for batch, skipped in super().__iter__():
            if isinstance(batch, str):
                raise InputError(batch)
            self.dataset.note_unreadable(skipped)
            self.sampler.position += 1
            yield batch._replace(images=batch.images.float().div_(255)) if self.floats else batch

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sampler.load_state_dict(state)


def make_loader(
    dataset: PhotoDataset,
    batch_size: int,
    *,
    shuffle: bool = True,
    drop_last: bool | None = None,
    workers: int | Literal["auto"] = "auto",
    floats: bool = True,
    rank: int | None = None,
    world: int | None = None,
    pin_memory: bool = False,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
) -> Loader:
    """Batches of `batch_size` images for this rank, in an order drawn from the data set's seed and the epoch.

    `batch_size` counts images, so with K crops per image a batch is made of `batch_size / K` photos. `drop_last`
    follows `shuffle`. With `floats=False` images stay uint8: a quarter of the memory, to be divided by 255 on the
    accelerator. Rank and world are asked of torch.distributed when not given.

    >>> from finola.data import open_data, RandomCrop
    >>> loader = make_loader(open_data("smoke", transform=RandomCrop(64)), 32)
    >>> len(loader), next(iter(loader)).images.shape
    (16, torch.Size([32, 3, 64, 64]))
    """
    photos, left_over = divmod(batch_size, dataset.crops_per_image)
    if left_over or not photos:
        raise InputError(f"A batch of {batch_size} images cannot be made of {dataset.crops_per_image} crops per photo.")
    sampler = EpochSampler(
        *(len(dataset), photos),
        seed=dataset.seed,
        shuffle=shuffle,
        drop_last=shuffle if drop_last is None else drop_last,
        blocks=dataset.source.blocks,
        rank=rank,
        world=world,
    )
    if sampler.drop_last and len(sampler) == 0:
        has = f"{dataset.source.where} has {len(dataset)} photos"
        raise InputError(f"{has}, fewer than the {photos * sampler.world} of one step; take a smaller batch.")
    dataset[0, 0]  # an entirely unreadable set is an error here, not inside a worker
    count = choose_workers(dataset) if workers == "auto" else workers
    loader = Loader(
        dataset,
        photos,
        sampler=sampler,
        drop_last=sampler.drop_last,
        num_workers=count,
        persistent_workers=count > 0,
        collate_fn=collate,
        pin_memory=pin_memory,
        multiprocessing_context=start_method if count else None,
        generator=torch.Generator(),  # or each pass would draw a number from the model's own generator
    )
    loader.floats = floats
    return loader


def choose_workers(dataset: PhotoDataset) -> int:
    """One core stays with the model, the others of this process decode, at most 12; none for small or decoded sets."""
    if dataset.source.decoded or len(dataset) < SMALL:
        return 0
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return min(max(available_cores() // processes - 1, 0), MOST_WORKERS)


def collate(items: Sequence[Item]) -> tuple[Batch | str, dict[int, str]]:
    """A batch of uint8 images, and every unreadable photo that was met on the way.

    A sentence takes the batch's place when its sizes differ: raised here, it would carry the worker's traceback.
    """
    sizes = sorted({tuple(item.images.shape[-2:]) for item in items})
    if len(sizes) > 1:
        return (
            f"Photos of sizes {sizes[0]} and {sizes[-1]} cannot share a batch; crop them, or take batches of one.",
            {},
        )
    crops = len(items[0].images)
    columns: list[Any] = [[item.label for item in items], [item.photo for item in items], [i.replaced for i in items]]
    labels, indices, replaced = (torch.tensor(column).repeat_interleave(crops) for column in columns)
    skipped = {index: reason for item in items for index, reason in item.skipped.items()}
    return Batch(torch.cat([item.images for item in items]), labels, indices, replaced), skipped


def available_cores() -> int:
    """CPU cores that this process may use: its affinity where the system has one (Linux), else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

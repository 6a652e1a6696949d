"""PyTorch DataLoader that can resume at any batch and collects the unreadable photos found by its workers."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed
from torch import Tensor
from torch.utils.data import DataLoader

from finola.data.dataset import Item, PhotoDataset
from finola.data.sampler import EpochSampler
from finola.errors import InputError
from finola.jobs.pool import available_cores

MAX_WORKERS = 12
WORKER_GRACE_PERIOD = 30  # seconds between SIGTERM and the end of a worker
MIN_PHOTOS = 256
"""Smaller data sets are loaded without workers, because starting them takes longer than an epoch."""


class Batch(NamedTuple):
    """Batch of images; crops of the same photo are adjacent."""

    images: Tensor  # (N, 3, H, W) float32 in [0, 1], or uint8
    labels: Tensor  # (N,) int64, −1: unknown
    indices: Tensor  # (N,) int64, indices of the photos: `dataset.name(index)`
    replaced: Tensor  # (N,) bool, whether a photo replaces an unreadable one and so appears twice


class Loader(DataLoader[Item]):
    """Loader created by `make_loader`. Yields the `Batch`es of the epoch set by `set_epoch`.

    `state_dict` refers to the batch after the last one yielded, independent of prefetching by workers. After
    `load_state_dict`, the next iteration starts at that batch. `len` is the number of batches of a whole epoch. With
    Lightning, which calls both for checkpoints, pass `use_distributed_sampler=False` to its Trainer.
    """

    dataset: PhotoDataset
    sampler: EpochSampler
    floats: bool = True

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # The body of a generator runs at the first next(), so set_epoch has an effect even after iter().
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
    """Create a loader of batches for this rank, in an order determined by the seed of the data set and the epoch.

    `batch_size` counts images: with K crops per image, a batch has `batch_size / K` photos. `drop_last` defaults to
    `shuffle`. With `floats=False`, images stay uint8, which takes a quarter of the memory; divide them by 255 on the
    accelerator. `rank` and `world` default to those of torch.distributed.

    >>> from finola.data import open_data, RandomCrop
    >>> loader = make_loader(open_data("smoke", transform=RandomCrop(64)), 32)
    >>> len(loader), next(iter(loader)).images.shape
    (16, torch.Size([32, 3, 64, 64]))
    """
    photos, remainder = divmod(batch_size, dataset.crops_per_image)
    if remainder or not photos:
        raise InputError(
            f"The batch size {batch_size} must be a positive multiple of the {dataset.crops_per_image} crops per photo."
        )
    sampler = EpochSampler(
        *(len(dataset), photos),
        seed=dataset.seed,
        shuffle=shuffle,
        drop_last=shuffle if drop_last is None else drop_last,
        blocks=dataset.source.blocks,
        shards=dataset.source.shards,
        rank=rank,
        world=world,
    )
    if sampler.drop_last and len(sampler) == 0:
        raise InputError(
            f"{dataset.source.where} has {len(dataset)} photos, fewer than the {photos * sampler.world} of one step; "
            "use a smaller batch size."
        )
    dataset[0, 0]  # if no photo is readable, raise here instead of in a worker
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
        generator=torch.Generator(),  # otherwise every epoch would consume a number of the global generator
    )
    loader.floats = floats
    return loader


def outlive_signals(worker: int) -> None:
    """Delay the termination of a worker, so that the main process can write a checkpoint: a `worker_init_fn`.

    A signal sent to the job reaches the main process and its workers. Windows has no alarm, so SIGTERM terminates
    workers immediately there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    alarm = getattr(signal, "alarm", None)
    if alarm is not None:
        signal.signal(signal.SIGTERM, lambda *_: alarm(WORKER_GRACE_PERIOD) and None)


def choose_workers(dataset: PhotoDataset) -> int:
    """Number of workers: one less than the cores of this process, at most 12; 0 for small or already decoded data."""
    if dataset.source.decoded or len(dataset) < MIN_PHOTOS:
        return 0
    return min(max(available_cores() // local_processes() - 1, 0), MAX_WORKERS)


def local_processes() -> int:
    """Number of processes of this run on this machine, as the launcher says: torchrun, SLURM, or MPI.

    If it says only how many there are in all, as many as there are accelerators here, or all.
    """
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"):
        if (found := os.environ.get(name, "")).isdigit():
            return max(1, int(found))
    if "SLURM_PROCID" in os.environ:  # tasks per node of this step, such as 8(x2),4: two nodes of eight, one of four
        groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        tasks = [int(count) for count, nodes in groups for _ in range(int(nodes or 1))]
        node = int(os.environ.get("SLURM_NODEID", 0))
        if node < len(tasks):
            return max(1, tasks[node])
    distributed = torch.distributed
    started = distributed.is_available() and distributed.is_initialized()
    world = distributed.get_world_size() if started else int(os.environ.get("WORLD_SIZE", 1))
    return min(world, torch.cuda.device_count() or world)


def collate(items: Sequence[Item]) -> tuple[Batch | str, dict[int, str]]:
    """Collate items to a batch of uint8 images; returns it and the unreadable photos that were skipped.

    If the sizes differ, an error message is returned instead of a batch: an exception raised here would include the
    traceback of the worker in its message.
    """
    sizes = sorted({tuple(item.images.shape[-2:]) for item in items})
    if len(sizes) > 1:
        return (
            f"Photos of sizes {sizes[0]} and {sizes[-1]} cannot be batched; crop them, or use a batch size of 1.",
            {},
        )
    crops = len(items[0].images)
    columns: list[Any] = [[item.label for item in items], [item.photo for item in items], [i.replaced for i in items]]
    labels, indices, replaced = (torch.tensor(column).repeat_interleave(crops) for column in columns)
    skipped = {index: reason for item in items for index, reason in item.skipped.items()}
    return Batch(torch.cat([item.images for item in items]), labels, indices, replaced), skipped

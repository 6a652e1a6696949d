"""Lightning data module: training and validation loaders of a recipe for the current process."""

from __future__ import annotations

import signal

from lightning.pytorch import LightningDataModule

from finola.config import ModelConfig
from finola.data import (
    Batch,
    CentreCrop,
    Loader,
    PhotoDataset,
    RandomCrop,
    RandomResizedCrop,
    Transform,
    make_loader,
    open_data,
)
from finola.data.sources import evenly
from finola.errors import InputError
from finola.training.config import ON_ENCODERS, ON_OBJECTS, DataSection, Recipe

WORKER_GRACE_PERIOD = 30  # seconds between SIGTERM and the end of a loader worker


class Photos(LightningDataModule):
    """Training and validation photos of a recipe.

    `data.batch_size` is divided among processes and gradient-accumulation passes.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        data, size = recipe.data, image_size(recipe)
        self.train = self._open(
            data.path, "train", train_transform(data, size), data.limit, data.crops_per_image, data.augment
        )
        val_size = (data.val_size, data.val_size) if data.val_size else size
        self.val = self._open(data.val_path or data.path, "val", CentreCrop(val_size), data.val_limit)
        if self.train.num_classes:
            self.val.number_like(self.train)

    def _open(
        self,
        path: str | None,
        split: str,
        transform: Transform,
        limit: int | None,
        crops: int = 1,
        augment: str | None = None,
    ) -> PhotoDataset:
        dataset = open_data(
            path, split, transform=transform, seed=self.recipe.seed, crops_per_image=crops, augment=augment
        )
        if limit is not None and limit < 1:
            raise InputError(f"data.limit and data.val_limit must be at least 1, but one is {limit}.")
        dataset.source = evenly(dataset.source, limit)
        return dataset

    def check_processes(self, processes: int) -> None:
        """Raise InputError if there are fewer validation photos than processes."""
        if len(self.val) < processes:
            raise InputError(
                f"{self.val.source.where} has {len(self.val)} validation photos, fewer than the {processes} processes. "
                "Add photos, raise data.val_limit, or lower trainer.devices."
            )

    def train_dataloader(self) -> Loader:
        return self._load(self.train, per_pass(self.recipe, self._processes), shuffle=True)

    def val_dataloader(self) -> Loader:
        batch = self.recipe.data.val_batch_size or per_pass(self.recipe, self._processes)
        return self._load(self.val, batch, shuffle=False)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimisation steps per epoch. Photos after the last full batch are dropped."""
        accumulate = self.recipe.trainer.accumulate
        photos = per_pass(self.recipe, self._processes) * self._processes // self.recipe.data.crops_per_image
        return -(-(len(self.train) // max(1, photos)) // accumulate)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        # Convert on the device: transferring bytes is cheaper than transferring floats.
        return batch._replace(images=batch.images.float().div_(255))

    @property
    def _processes(self) -> int:
        return self.trainer.world_size if self.trainer else 1

    def _load(self, dataset: PhotoDataset, batch: int, shuffle: bool) -> Loader:
        workers = self.recipe.data.workers
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        loader = make_loader(
            dataset,
            batch,
            shuffle=shuffle,
            workers="auto" if workers is None else workers,
            floats=False,
            pin_memory=on_gpu,
        )
        loader.worker_init_fn = outlive_signals
        return loader


def outlive_signals(worker: int) -> None:
    """Delay the termination of a loader worker, so that the main process can write its checkpoint.

    A signal sent to the job reaches the main process and its workers. Windows has no alarm, so SIGTERM terminates
    workers immediately there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    alarm = getattr(signal, "alarm", None)
    if alarm is not None:
        signal.signal(signal.SIGTERM, lambda *_: alarm(WORKER_GRACE_PERIOD) and None)


def per_pass(recipe: Recipe, processes: int) -> int:
    """Number of images per forward pass of one process.

    >>> per_pass(Recipe(), processes=8)
    16
    """
    batch, shares = recipe.data.batch_size, processes * recipe.trainer.accumulate
    if batch % shares:
        raise InputError(
            f"data.batch_size={batch} cannot be divided among {processes} processes and {recipe.trainer.accumulate} "
            f"accumulated passes. Use a multiple of {shares}."
        )
    return batch // shares


def image_size(recipe: Recipe) -> tuple[int, int]:
    """Size (height, width) of the model's input; for tasks on an encoder, that of `data.size` or `objects`."""
    if recipe.task in ON_OBJECTS:
        return recipe.objects.short[1], recipe.objects.long
    if recipe.task in ON_ENCODERS:
        return recipe.data.size or 0, recipe.data.size or 0
    return ModelConfig.parse(recipe.model.name).image_size


def train_transform(data: DataSection, model_size: tuple[int, int]) -> Transform:
    """Build the training crop of a recipe's data section."""
    size = (data.size, data.size) if data.size else model_size
    if data.crop == "resized":
        if len(data.scale) != 2:
            raise InputError(
                f"data.scale is {data.scale}, but must be the smallest and largest relative crop area, "
                "such as [0.08, 1.0]."
            )
        return RandomResizedCrop(size, scale=(data.scale[0], data.scale[1]), flip=data.flip)
    return RandomCrop(size, flip=data.flip) if data.crop == "random" else CentreCrop(size)

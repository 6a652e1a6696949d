"""Lightning data module: training and validation loaders of a recipe for the current process."""

from __future__ import annotations

import signal

from lightning.pytorch import LightningDataModule

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
from finola.training.config import CropRecipe, Recipe
from finola.training.sections import CropSection

WORKER_GRACE_PERIOD = 30  # seconds between SIGTERM and the end of a loader worker


class Photos(LightningDataModule):
    """Training and validation photos of a recipe.

    `data.batch_size` is divided among processes and gradient-accumulation passes.
    """

    def __init__(self, recipe: CropRecipe) -> None:
        super().__init__()
        self.recipe: Recipe = recipe
        self.crops_per_image = recipe.data.crops_per_image
        data, size, side = recipe.data, recipe.image_size, getattr(recipe.data, "size", None)
        transform = train_transform(data, (side, side) if side else size)
        self.train = self._open(data.path, "train", transform, data.limit, data.crops_per_image, data.augment)
        val_side = getattr(data, "val_size", None)
        val_size = (val_side, val_side) if val_side else size
        centre = CentreCrop(val_size, getattr(data, "crop_pct", 1.0))
        self.val = self._open(data.val_path or data.path, "val", centre, data.val_limit)
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
        accumulate = self.recipe.trainer.accumulate_grad_batches
        photos = per_pass(self.recipe, self._processes) * self._processes // self.crops_per_image
        return -(-(len(self.train) // max(1, photos)) // accumulate)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        # Convert on the device: transferring bytes is cheaper than transferring floats.
        return batch._replace(images=batch.images.float().div_(255))

    @property
    def _processes(self) -> int:
        return self.trainer.world_size if self.trainer else 1

    def _load(self, dataset: PhotoDataset, batch: int, shuffle: bool) -> Loader:
        workers = self.recipe.data.num_workers
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
    batch, passes = recipe.data.batch_size, processes * recipe.trainer.accumulate_grad_batches
    multiple = passes * recipe.batch_multiple
    if batch % multiple:
        raise InputError(
            f"data.batch_size={batch} cannot be divided among {processes} processes and "
            f"{recipe.trainer.accumulate_grad_batches} accumulated passes. Use a multiple of {multiple}."
        )
    return recipe.images_per_step // passes


def train_transform(data: CropSection, size: tuple[int, int]) -> Transform:
    """Build the training crop of a recipe's data section."""
    if data.crop == "resized":
        return RandomResizedCrop(size, scale=(data.scale[0], data.scale[1]), flip=data.flip)
    return RandomCrop(size, flip=data.flip) if data.crop == "random" else CentreCrop(size)

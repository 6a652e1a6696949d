"""The photos of a recipe as Lightning asks for them: a train and a val loader for this process."""

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

PATIENCE = 30  # seconds that a worker lives on after SIGTERM


class Photos(LightningDataModule):
    """Opened once per process; the batch of the recipe is shared out among processes and accumulated passes."""

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
            raise ValueError(f"data.limit and data.val_limit are at least 1, not {limit}.")
        dataset.source = evenly(dataset.source, limit)
        return dataset

    def check_processes(self, processes: int) -> None:
        """Raise InputError where a process would have no photo to validate."""
        if len(self.val) < processes:
            raise InputError(
                f"{self.val.source.where} has {len(self.val)} photos to validate, fewer than the {processes} "
                "processes: add photos, raise data.val_limit, or lower trainer.devices."
            )

    def train_dataloader(self) -> Loader:
        return self._load(self.train, per_pass(self.recipe, self._processes), shuffle=True)

    def val_dataloader(self) -> Loader:
        batch = self.recipe.data.val_batch_size or per_pass(self.recipe, self._processes)
        return self._load(self.val, batch, shuffle=False)

    @property
    def steps_per_epoch(self) -> int:
        """Optimisation steps of one epoch, over all processes; what remains after the last full batch is left out."""
        accumulate = self.recipe.trainer.accumulate
        photos = per_pass(self.recipe, self._processes) * self._processes // self.recipe.data.crops_per_image
        return -(-(len(self.train) // max(1, photos)) // accumulate)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        return batch._replace(images=batch.images.float().div_(255))  # bytes travel to the device, not floats

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
    """Keep a loader's worker alive while the main process writes its checkpoint: a signal to the job reaches both.

    Windows has no alarm; there SIGTERM ends a worker at once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    alarm = getattr(signal, "alarm", None)
    if alarm is not None:
        signal.signal(signal.SIGTERM, lambda *_: alarm(PATIENCE) and None)


def per_pass(recipe: Recipe, processes: int) -> int:
    """Images that one process takes through the model at once.

    >>> per_pass(Recipe(), processes=8)
    16
    """
    batch, shares = recipe.data.batch_size, processes * recipe.trainer.accumulate
    if batch % shares:
        raise ValueError(
            f"data.batch_size={batch} cannot be shared among {processes} processes and {recipe.trainer.accumulate} "
            f"accumulated passes; take a multiple of {shares}."
        )
    return batch // shares


def image_size(recipe: Recipe) -> tuple[int, int]:
    """The side of the model's images: its own, or `data.size` where the model is an encoder that takes any."""
    if recipe.task in ON_OBJECTS:
        return recipe.objects.short[1], recipe.objects.long
    if recipe.task in ON_ENCODERS:
        return recipe.data.size or 0, recipe.data.size or 0
    return ModelConfig.parse(recipe.model.name).image_size


def train_transform(data: DataSection, model_size: tuple[int, int]) -> Transform:
    """The crop that a recipe's data section names."""
    size = (data.size, data.size) if data.size else model_size
    if data.crop == "resized":
        if len(data.scale) != 2:
            raise ValueError(f"data.scale is {data.scale}; it is two shares of the area, such as [0.08, 1.0].")
        return RandomResizedCrop(size, scale=(data.scale[0], data.scale[1]), flip=data.flip)
    return RandomCrop(size, flip=data.flip) if data.crop == "random" else CentreCrop(size)

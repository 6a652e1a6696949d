"""Training and validation photos of a recipe, as the batches of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from lightning.fabric import Fabric

from finola.data import CentreCrop, Loader, PhotoDataset, Transform, make_loader, open_data
from finola.data.loader import outlive_signals
from finola.data.sources import evenly
from finola.data.transforms import training_crop
from finola.errors import InputError
from finola.recipes.recipe import CropRecipe, Recipe


class Photos:
    """Training and validation photos of a recipe.

    `data.batch_size` is divided among processes and gradient-accumulation passes.
    """

    def __init__(self, recipe: CropRecipe) -> None:
        self.recipe: Recipe = recipe
        data, size, side = recipe.data, recipe.image_size, getattr(recipe.data, "size", None)
        transform = training_crop(data.crop, (side, side) if side else size, data.scale, data.flip)
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
        dataset.source = evenly(dataset.source, limit)
        return dataset

    def check_processes(self, processes: int) -> None:
        """Raise InputError if there are fewer validation photos than processes, or the batch cannot be divided."""
        per_pass(self.recipe, processes)
        if len(self.val) < processes:
            raise InputError(
                f"{self.val.source.where} has {len(self.val)} validation photos, fewer than the {processes} processes. "
                "Add photos, raise data.val_limit, or lower trainer.devices."
            )

    def open_loaders(self, fabric: Fabric) -> None:
        """Open the loaders of this process."""
        batch, on_gpu = per_pass(self.recipe, fabric.world_size), fabric.device.type == "cuda"
        self.train_loader = self._load(self.train, batch, shuffle=True, pin_memory=on_gpu)
        batch = self.recipe.data.val_batch_size or batch
        self.val_loader = self._load(self.val, batch, shuffle=False, pin_memory=on_gpu)

    def _load(self, dataset: PhotoDataset, batch: int, **options: Any) -> Loader:
        workers = self.recipe.data.num_workers
        loader = make_loader(dataset, batch, workers="auto" if workers is None else workers, floats=False, **options)
        loader.worker_init_fn = outlive_signals
        return loader

    @property
    def batches_per_epoch(self) -> int:
        """Number of training batches of one process. Photos after the last full batch are dropped."""
        return len(self.train_loader)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimisation steps per epoch; the last one may have fewer passes."""
        return -(-self.batches_per_epoch // self.recipe.trainer.accumulate_grad_batches)

    def steps(self, epoch: int, batch: int) -> Iterator[list[Any]]:
        """The batches of the passes of each step of an epoch, from a batch on."""
        self.train_loader.load_state_dict({"epoch": epoch, "step": batch})
        batches = iter(self.train_loader)
        while passes := list(islice(batches, self.recipe.trainer.accumulate_grad_batches)):
            yield passes

    def validation_batches(self, fabric: Fabric, stopped: Callable[[], bool]) -> Iterator[Any]:
        """Validation batches of this process, on its device, until `stopped()`."""
        for batch in self.val_loader:
            if stopped():
                return
            yield self.on_device(batch, fabric)

    def on_device(self, batch: Any, fabric: Fabric) -> Any:
        """Move a batch of bytes to the device, which costs less than floats, and convert its images to [0, 1]."""
        moved = fabric.to_device(batch)
        images = fabric.strategy.precision.convert_input(moved.images.float().div_(255))
        if hasattr(batch, "sizes"):  # of images in a detection batch, which are read: they stay on the CPU
            moved = moved._replace(sizes=batch.sizes)
        return moved._replace(images=images)


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

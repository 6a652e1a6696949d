"""DETR and Mask R-CNN on an encoder that is frozen (probing) or trained too (appendix B), measured by COCO's AP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed
from lightning.pytorch import LightningDataModule
from torch import Tensor

from finola.data import Loader, PhotoDataset
from finola.data.detection import Fit, MultiScale, ObjectBatch, ObjectDataset, collate_objects
from finola.data.transforms import Transform
from finola.evaluation.average_precision import average_precision, ground_truth
from finola.evaluation.detection import known
from finola.heads.detection_model import Finder
from finola.heads.detector import Detector, image_sizes
from finola.heads.mask_rcnn import Segmenter
from finola.heads.visualisation import draw_objects
from finola.training.config import Recipe
from finola.training.data_module import Photos
from finola.training.initial_weights import begin_head, encoder_of
from finola.training.tasks.base import Task

SURE = 0.5  # what is less sure is not drawn


class Objects(Photos):
    """Photos of a COCO folder with their objects; classes are those of the training part, or the recipe's."""

    train: ObjectDataset
    val: ObjectDataset

    def __init__(self, recipe: Recipe, masks: bool) -> None:
        LightningDataModule.__init__(self)
        self.recipe, self.masks = recipe, masks
        data, section = recipe.data, recipe.objects
        low, high = section.short
        larger = MultiScale((low, high), section.long, section.step, section.crop, data.flip)
        classes = recipe.classes or None
        self.train = self._objects(data.path, "train", larger, data.limit, classes)
        self.val = self._objects(
            data.val_path or data.path, "val", Fit(high, section.long), data.val_limit, self.train.names
        )

    def _objects(
        self, path: str | None, split: str, transform: Transform, limit: int | None, classes: list[str] | None
    ) -> ObjectDataset:
        photos = self._open(path, split, transform, limit)
        return ObjectDataset(photos.source, transform, classes=classes, masks=self.masks, seed=self.recipe.seed)

    def _load(self, dataset: PhotoDataset, batch: int, shuffle: bool) -> Loader:
        loader = super()._load(dataset, batch, shuffle)
        loader.collate_fn = collate_objects
        return loader


class Detect(Task):
    """A `Detector` trained on the set loss; validated by the AP of its boxes."""

    figure: ClassVar[str] = "ap"
    masks: ClassVar[bool] = False
    model: Finder

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        name, weights = encoder_of(recipe.model)
        self.model = self.build(name)
        if weights is not None:
            begin_head(self.model, weights)
        self.samples: Tensor | None = None
        self._sizes: Tensor | None = None
        self._results: list[dict[str, Any]] = []
        self._seen: list[int] = []

    def build(self, encoder: str) -> Finder:
        """The model with fresh weights."""
        head, section = self.recipe.head, self.recipe.objects
        return Detector(
            *(encoder, head.kind, self.recipe.classes),
            frozen=head.frozen,
            encoder_norms=section.encoder_norms,
            dropout=head.dropout,
            size=(section.short[1], section.long),
        )

    @classmethod
    def open(cls, recipe: Recipe) -> tuple[Recipe, Photos]:
        photos = Objects(recipe, cls.masks)
        return replace(recipe, classes=photos.train.names), photos

    def losses(self, images: Tensor, batch: Any) -> dict[str, Tensor]:
        return self.model.losses(images, batch.sizes, batch.targets)

    def validation_step(self, batch: ObjectBatch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        sizes = image_sizes(batch.images, batch.sizes)
        for number, found in enumerate(self.model.find(batch.images, batch.sizes)):
            target = batch.targets[number]
            if not batch.replaced[number]:
                photo = found.resized(sizes[number], target["photo_size"])
                self._results += known(photo.as_coco(target["image_id"], self._val.categories))
                self._seen.append(int(batch.indices[number]))
        if batch_idx == 0:
            count = self.recipe.logging.samples
            self.samples, self._sizes = batch.images[:count], batch.sizes[:count]

    def on_validation_epoch_end(self) -> None:
        results, seen = _gathered(self._results), _gathered(self._seen)
        self._results, self._seen = [], []
        if self.skip_validation or not seen:
            return
        truth = ground_truth(self._val.source, sorted(set(seen)), self._val.categories)
        for kind, prefix in (("bbox", ""), ("segm", "mask_")) if self.masks else (("bbox", ""),):
            figures = average_precision(truth, results, kind)
            for name in ("AP", "AP50", "AP75"):
                if figures[name] is not None:
                    self.log(f"val/{prefix}{name.lower()}", figures[name], rank_zero_only=False)

    def draw(self, images: Tensor) -> Tensor:
        """What was found in the samples."""
        drawn = images.clone()
        for number, found in enumerate(self.model.find(images, self._sizes)):
            height, width = image_sizes(images, self._sizes)[number]
            picture = draw_objects(images[number, :, :height, :width], found.above(SURE), self.model.classes)
            drawn[number, :, :height, :width] = picture.to(drawn) / 255
        return drawn

    @property
    def _val(self) -> ObjectDataset:
        dataset: ObjectDataset = self.trainer.datamodule.val  # type: ignore[attr-defined]
        return dataset


class Segment(Detect):
    """A `Segmenter` trained on Mask R-CNN's losses; validated by the AP of its masks."""

    figure: ClassVar[str] = "mask_ap"
    masks: ClassVar[bool] = True

    def build(self, encoder: str) -> Finder:
        head, section = self.recipe.head, self.recipe.objects
        return Segmenter(
            *(encoder, head.kind, self.recipe.classes),
            frozen=head.frozen,
            encoder_norms=section.encoder_norms,
            size=(section.short[1], section.long),
        )


def _gathered(own: list[Any]) -> list[Any]:
    """The lists of all processes as one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return own
    lists: list[list[Any]] = [[] for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(lists, own)
    return [entry for entries in lists for entry in entries]

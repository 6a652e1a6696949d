"""DETR and Mask R-CNN on a frozen encoder (probing) or a trainable one (appendix B), validated by COCO's AP."""

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
from finola.evaluation.detection import average_precision, ground_truth, known_classes
from finola.heads.detection_model import DetectionModel
from finola.heads.detector import Detector, image_sizes
from finola.heads.mask_rcnn import Segmenter
from finola.heads.visualisation import draw_detections
from finola.training.config import DetectRecipe, ObjectRecipe, Recipe
from finola.training.data_module import Photos
from finola.training.initial_weights import initialise_head
from finola.training.tasks.base import Task

MIN_SCORE = 0.5  # of objects drawn in sample images


class Objects(Photos):
    """Photos of a COCO folder with their objects. Classes come from the recipe, or else from the train split."""

    train: ObjectDataset
    val: ObjectDataset

    def __init__(self, recipe: ObjectRecipe, masks: bool) -> None:
        LightningDataModule.__init__(self)
        self.recipe, self.masks, self.crops_per_image = recipe, masks, 1
        data, section = recipe.data, recipe.objects
        low, high = section.short_side
        multi_scale = MultiScale(
            (low, high), section.max_long_side, section.short_side_step, section.random_crop, data.flip
        )
        classes = recipe.classes or None
        self.train = self._objects(data.path, "train", multi_scale, data.limit, classes)
        self.val = self._objects(
            data.val_path or data.path, "val", Fit(high, section.max_long_side), data.val_limit, self.train.names
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
    """Train a `Detector` on the set loss; validate by box AP."""

    monitor: ClassVar[str] = "ap"
    masks: ClassVar[bool] = False
    model: DetectionModel
    recipe: ObjectRecipe

    def __init__(self, recipe: ObjectRecipe, initialise: bool = True) -> None:
        super().__init__(recipe, initialise)
        self._sizes: Tensor | None = None
        self._results: list[dict[str, Any]] = []
        self._seen: list[int] = []

    @staticmethod
    def build(recipe: ObjectRecipe, initialise: bool = True) -> DetectionModel:
        options: dict[str, Any] = {
            "encoder": recipe.model.name,
            "head": recipe.head.kind,
            "classes": recipe.classes,
            "frozen": recipe.head.frozen,
            "encoder_norms": recipe.objects.update_encoder_norms,
            "size": recipe.image_size,
        }
        model: DetectionModel
        if isinstance(recipe, DetectRecipe):
            model = Detector(**options, dropout=recipe.head.dropout)
        else:
            model = Segmenter(**options)
        if initialise:
            initialise_head(model, recipe.model, recipe.head.kind)
        return model

    @classmethod
    def open(cls, recipe: ObjectRecipe) -> tuple[Recipe, Photos]:
        photos = Objects(recipe, cls.masks)
        return replace(recipe, classes=photos.train.names), photos

    def losses(self, images: Tensor, batch: Any) -> dict[str, Tensor]:
        return self.model.losses(images, batch.sizes, batch.targets)

    def validation_step(self, batch: ObjectBatch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        sizes = image_sizes(batch.images, batch.sizes)
        for number, detections in enumerate(self.model.detect(batch.images, batch.sizes)):
            target = batch.targets[number]
            if not batch.replaced[number]:
                photo = detections.resized(sizes[number], target["photo_size"])
                self._results += known_classes(photo.to_coco(target["image_id"], self._val.categories))
                self._seen.append(int(batch.indices[number]))
        if batch_idx == 0:
            count = self.recipe.logging.samples
            self.samples, self._sizes = batch.images[:count], batch.sizes[:count]

    def on_validation_epoch_end(self) -> None:
        results, seen = _gather(self._results), _gather(self._seen)
        self._results, self._seen = [], []
        if self.skip_validation or not seen:
            return
        truth = ground_truth(self._val.source, sorted(set(seen)), self._val.categories)
        for kind, prefix in (("bbox", ""), ("segm", "mask_")) if self.masks else (("bbox", ""),):
            metrics = average_precision(truth, results, kind)
            for name in ("AP", "AP50", "AP75"):
                if metrics[name] is not None:
                    self.log(f"val/{prefix}{name.lower()}", metrics[name], rank_zero_only=False)

    def sample_images(self, images: Tensor) -> Tensor:
        """Draw the detected objects on the sample photos."""
        drawn = images.clone()
        for number, detections in enumerate(self.model.detect(images, self._sizes)):
            height, width = image_sizes(images, self._sizes)[number]
            drawing = draw_detections(
                images[number, :, :height, :width], detections.above(MIN_SCORE), self.model.classes
            )
            drawn[number, :, :height, :width] = drawing.to(drawn) / 255
        return drawn

    @property
    def _val(self) -> ObjectDataset:
        dataset: ObjectDataset = self.trainer.datamodule.val  # type: ignore[attr-defined]
        return dataset


class Segment(Detect):
    """Train a `Segmenter` on the losses of Mask R-CNN; validate by mask AP."""

    monitor: ClassVar[str] = "mask_ap"
    masks: ClassVar[bool] = True


def _gather(own: list[Any]) -> list[Any]:
    """Concatenate the lists of all processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return own
    lists: list[list[Any]] = [[] for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(lists, own)
    return [entry for entries in lists for entry in entries]

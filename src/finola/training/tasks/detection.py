"""DETR and Mask R-CNN on a frozen encoder (probing) or a trainable one (appendix B), validated by COCO's AP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from finola.data import Loader, PhotoDataset
from finola.data.detection import Fit, MultiScale, ObjectBatch, ObjectDataset, collate_objects
from finola.data.transforms import Transform
from finola.evaluation.detection import average_precision, ground_truth, known_classes
from finola.heads.detection_model import DetectionModel
from finola.heads.detector import Detector, image_sizes
from finola.heads.mask_rcnn import Segmenter
from finola.heads.visualisation import draw_detections
from finola.recipes.recipe import DetectRecipe, ObjectRecipe, Recipe
from finola.training.data import Photos
from finola.training.devices import gather_objects
from finola.training.init import initialise_head
from finola.training.tasks.base import Task

MIN_SCORE = 0.5  # of objects drawn in sample images


class Objects(Photos):
    """Photos of a COCO folder with their objects. Classes come from the recipe, or else from the train split."""

    train: ObjectDataset
    val: ObjectDataset

    def __init__(self, recipe: ObjectRecipe, masks: bool) -> None:
        self.recipe, self.masks = recipe, masks
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

    def _load(self, dataset: PhotoDataset, batch: int, **options: Any) -> Loader:
        loader = super()._load(dataset, batch, **options)
        loader.collate_fn = collate_objects
        return loader


class Detect(Task):
    """Train a `Detector` on the set loss; validate by box AP."""

    monitor: ClassVar[str] = "ap"
    masks: ClassVar[bool] = False
    model: DetectionModel
    recipe: ObjectRecipe
    _sizes: Tensor  # of the sample images

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

    def validate(self, batches: Iterator[ObjectBatch], dataset: PhotoDataset) -> dict[str, float]:
        assert isinstance(dataset, ObjectDataset)
        results: list[dict[str, Any]] = []
        seen: list[int] = []
        for batch in self.keeping_samples(batches):
            if not seen:
                self._sizes = batch.sizes
            sizes = image_sizes(batch.images, batch.sizes)
            for number, detections in enumerate(self.model.detect(batch.images, batch.sizes)):
                target = batch.targets[number]
                if not batch.replaced[number]:
                    photo = detections.resized(sizes[number], target["photo_size"])
                    results += known_classes(photo.to_coco(target["image_id"], dataset.categories))
                    seen.append(int(batch.indices[number]))
        ranks = gather_objects((results, seen))
        results, seen = [entry for rank in ranks for entry in rank[0]], [entry for rank in ranks for entry in rank[1]]
        if not seen:
            return {}
        truth, found = ground_truth(dataset.source, sorted(set(seen)), dataset.categories), dict[str, float]()
        for kind, prefix in (("bbox", ""), ("segm", "mask_")) if self.masks else (("bbox", ""),):
            metrics = average_precision(truth, results, kind)
            for name in ("AP", "AP50", "AP75"):
                if (value := metrics[name]) is not None:
                    found[f"val/{prefix}{name.lower()}"] = value
        return found

    def sample_images(self, images: Tensor) -> Tensor:
        """Draw the detected objects on the sample photos."""
        drawn = images.clone()
        for number, detections in enumerate(self.model.detect(images, self._sizes[: len(images)])):
            height, width = image_sizes(images, self._sizes)[number]
            drawing = draw_detections(
                images[number, :, :height, :width], detections.above(MIN_SCORE), self.model.classes
            )
            drawn[number, :, :height, :width] = drawing.to(drawn) / 255
        return drawn


class Segment(Detect):
    """Train a `Segmenter` on the losses of Mask R-CNN; validate by mask AP."""

    monitor: ClassVar[str] = "mask_ap"
    masks: ClassVar[bool] = True

"""Classification on a frozen encoder (probing) or a trainable one (fine-tuning), appendix B."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.data import Batch
from finola.errors import InputError
from finola.heads import Classifier, ranks
from finola.training.data import Photos
from finola.training.init import initialise_head
from finola.training.recipe import ClassifyRecipe, Recipe
from finola.training.tasks.base import Task


class Classify(Task):
    """Train a `Classifier` on cross-entropy; validate by top-1 and top-5 accuracy."""

    monitor: ClassVar[str] = "accuracy"
    model: Classifier
    recipe: ClassifyRecipe

    @staticmethod
    def build(recipe: ClassifyRecipe, initialise: bool = True) -> Classifier:
        head, data = recipe.head, recipe.data
        model = Classifier(
            recipe.model.name,
            head.kind,
            recipe.classes,
            data.size or 0,
            frozen=head.frozen,
            dropout=head.dropout,
            crop_pct=data.crop_pct,
        )
        if initialise:
            initialise_head(model, recipe.model, head.kind)
        return model

    @classmethod
    def open(cls, recipe: ClassifyRecipe) -> tuple[Recipe, Photos]:
        photos = Photos(recipe)
        if not photos.train.classes:
            raise InputError(
                f"{photos.train.source.where} has no labels. Use a folder with one subfolder per class, or parquet "
                "files with a label column."
            )
        return replace(recipe, classes=photos.train.class_names), photos

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        head, targets = self.recipe.head, batch.labels
        images = erase(images, head.random_erasing)
        if head.mixup or head.cutmix:  # the number of known labels must be read, and so waited for
            known = targets >= 0
            images, targets = mix(images[known], targets[known], len(self.model.classes), head.mixup, head.cutmix)
        logits = self.model(images)
        return {
            "cross_entropy": F.cross_entropy(logits, targets, ignore_index=-1, label_smoothing=head.label_smoothing)
        }

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        known = (batch.labels >= 0) & ~batch.replaced
        label_ranks = ranks(self.model(batch.images), batch.labels.clamp_min(0))[known]
        metrics = {"accuracy": (label_ranks < 1).float()}
        if len(self.model.classes) > 5:
            metrics["accuracy_5"] = (label_ranks < 5).float()
        return metrics


def mix(images: Tensor, labels: Tensor, classes: int, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """Apply mixup or cutmix to a batch; labels become probabilities (N, classes)."""
    from torchvision.transforms import v2  # uses torch's random generator, so that resuming is exact

    transforms = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    chosen = [transform(alpha=alpha, num_classes=classes) for transform, alpha in transforms if alpha > 0]
    mixed: tuple[Tensor, Tensor] = chosen[int(torch.randint(len(chosen), ()))](images, labels)
    return mixed


def erase(images: Tensor, share: float) -> Tensor:
    """Random erasing: replace a random box by noise in each image with probability `share`."""
    if not share:
        return images
    from torchvision.transforms import v2

    erasing = v2.RandomErasing(p=share, value="random")
    return torch.stack([erasing(image) for image in images]).clamp(0, 1)

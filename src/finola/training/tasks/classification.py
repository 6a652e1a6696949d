"""Classification on a frozen encoder (probing) or a trainable one (fine-tuning), appendix B."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from finola.data import Batch
from finola.data.transforms import erase, mix
from finola.errors import InputError
from finola.heads import Classifier, ranks
from finola.recipes.recipe import ClassifyRecipe, Recipe
from finola.training.data import Photos
from finola.training.init import initialise_head
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

"""Probing and fine-tuning (appendix B): classes read from an encoder's map, which is frozen or trained as well."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.data import Batch
from finola.heads import Classifier, ranks
from finola.training.config import Recipe
from finola.training.data_module import Photos
from finola.training.initial_weights import begin_head, encoder_of
from finola.training.tasks.base import Task


class Classify(Task):
    """A `Classifier` trained on cross-entropy; validated by the share of photos whose class it names first."""

    figure: ClassVar[str] = "accuracy"
    model: Classifier

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, figures=("accuracy", "accuracy_5"))
        head, section = recipe.head, recipe.model
        name, weights = encoder_of(section)
        size = recipe.data.size or 0
        self.model = Classifier(name, head.kind, recipe.classes, size, frozen=head.frozen, dropout=head.dropout)
        if weights is not None:
            begin_head(self.model, weights)

    @classmethod
    def open(cls, recipe: Recipe) -> tuple[Recipe, Photos]:
        photos = Photos(recipe)
        if not photos.train.classes:
            raise ValueError(
                f"{photos.train.source.where} has no labels to learn: give a folder with one subfolder per class, or "
                "parquet files with a label column."
            )
        return replace(recipe, classes=photos.train.class_names), photos

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        head, known = self.recipe.head, batch.labels >= 0
        images, targets = images[known], batch.labels[known]
        images, targets = mix(erase(images, head.erase), targets, len(self.model.classes), head.mixup, head.cutmix)
        return {"cross_entropy": F.cross_entropy(self.model(images), targets, label_smoothing=head.smoothing)}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        known = (batch.labels >= 0) & ~batch.replaced
        hits = ranks(self.model(batch.images), batch.labels.clamp_min(0))[known]
        self.log_figure("accuracy", (hits < 1).float())
        if len(self.model.classes) > 5:
            self.log_figure("accuracy_5", (hits < 5).float())


def mix(images: Tensor, labels: Tensor, classes: int, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """A batch mixed by mixup or cutmix, with labels as shares (N, classes); with both at 0, as it came."""
    from torchvision.transforms import v2  # the field's own mixup and cutmix, on torch's generator

    makers = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    chosen = [maker(alpha=alpha, num_classes=classes) for maker, alpha in makers if alpha > 0]
    if not chosen:
        return images, labels
    mixed: tuple[Tensor, Tensor] = chosen[int(torch.randint(len(chosen), ()))](images, labels)
    return mixed


def erase(images: Tensor, share: float) -> Tensor:
    """This share of the images loses a random box to noise."""
    if not share:
        return images
    from torchvision.transforms import v2

    change = v2.RandomErasing(p=share, value="random")
    return torch.stack([change(image) for image in images]).clamp(0, 1)

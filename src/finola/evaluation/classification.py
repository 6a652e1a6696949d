"""Accuracy of a classifier on a data set whose classes are matched by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from finola.data import make_loader
from finola.errors import InputError
from finola.heads import ranks

if TYPE_CHECKING:
    from finola.data import Batch, PhotoDataset
    from finola.heads import Classifier


def shared_classes(model: Classifier, dataset: PhotoDataset) -> list[str]:
    """Classes of the data set that the model knows. Raises InputError if there are none."""
    shared = [name for name in dataset.class_names if name in model.classes]
    if not shared:
        raise InputError(
            f"{dataset.source.where} has none of the classes of the model ({', '.join(model.classes[:5])}, …). "
            "Use data with matching class names."
        )
    return shared


@torch.inference_mode()
def classify(
    model: Classifier,
    dataset: PhotoDataset,
    batch: int = 64,
    progress: Callable[[Iterable[Batch]], Iterable[Batch]] = iter,
) -> list[dict[str, Any]]:
    """Return one row per readable photo of a known class: true class, predicted class, and rank of the true class."""
    device = next(model.parameters()).device
    number = {name: index for index, name in enumerate(model.classes)}
    own = torch.tensor([number.get(name, -1) for name in dataset.class_names])
    if dataset.class_names == model.classes:  # class names may be ambiguous
        own = torch.arange(len(model.classes))
    rows = []
    for item in progress(make_loader(dataset, batch, shuffle=False)):
        labels = torch.where(item.labels >= 0, own[item.labels.clamp_min(0)], -1)
        known = (labels >= 0) & ~item.replaced
        if not known.any():
            continue
        logits = model(item.images[known].to(device)).cpu()
        chosen = zip(item.indices[known], labels[known], logits.argmax(1), ranks(logits, labels[known]), strict=True)
        for index, label, best, rank in chosen:
            named = {"photo": dataset.name(int(index)), "class": model.classes[int(label)]}
            rows.append(named | {"found": model.classes[int(best)], "rank": 1 + int(rank)})
    if not rows:
        raise InputError(f"{dataset.source.where} has no readable photo of a known class.")
    return rows


def accuracy(rows: list[dict[str, Any]], first: int = 1) -> float | None:
    """Share of photos whose true class is among the `first` predictions; None without photos.

    >>> accuracy([{"rank": 1}, {"rank": 3}]), accuracy([{"rank": 1}, {"rank": 3}], first=5), accuracy([])
    (0.5, 1.0, None)
    """
    return round(sum(row["rank"] <= first for row in rows) / len(rows), 4) if rows else None

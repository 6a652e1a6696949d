"""Probes on cached features: the encoder computes each photo's feature map once, and heads are trained on the maps.

Heads have the settings of the recipes in `RECIPES` and the optimiser, schedule and loss of `finola train`, which draws
a new crop of every photo in every epoch. Here a photo has two views, its centre crop and the mirrored one: a probe
takes seconds on a CPU, at slightly lower accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.data import CentreCrop, make_loader, open_data
from finola.data.sources import evenly
from finola.errors import InputError
from finola.heads import build_head
from finola.recipes.loading import load_recipe
from finola.recipes.recipe import ClassifyRecipe
from finola.training.devices import seed_all
from finola.training.optim import build_optimiser, lr_factor

RECIPES = {
    "lin": "probe/lin-w720-128",
    "tran-1": "probe/tran1-w720-128",
    "tran-4": "probe/tran1-w720-128",
}
"""Recipe with the settings of each head."""
PROBES = ("knn", *RECIPES)
Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


@dataclass(frozen=True)
class Features:
    """Feature maps (V, N, C, h, w) of V views of N labelled photos in half precision, and labels (N,)."""

    maps: Tensor
    labels: Tensor
    classes: list[str]

    @property
    def means(self) -> Tensor:
        """Mean of every map: (V, N, C)."""
        return self.maps.float().mean((3, 4))


def extract(
    encoder: nn.Module,
    data: str | None,
    split: str,
    size: int,
    *,
    mirrored: bool = False,
    limit: int | None = None,
    like: str | None = None,
    progress: Progress | None = None,
) -> Features:
    """Compute features of the labelled photos of a split from centre crops of `size` pixels.

    With `mirrored`, the mirrored crop is a second view. `like` is the split that numbers the classes: that of training.
    """
    dataset = open_data(data, split, transform=CentreCrop(size))
    if not dataset.classes:
        raise InputError(f"{dataset.source.where} has no labels. Use class folders or a label column.")
    if like is not None:
        dataset.number_like(open_data(data, like))
    dataset.source = evenly(dataset.source, limit)
    device = next(encoder.parameters()).device
    was_training = encoder.training
    encoder.eval()
    loader = make_loader(dataset, 64, shuffle=False)
    batches = progress(loader, len(loader), f"encoding {split}") if progress else loader
    maps, labels = [], []
    with torch.inference_mode():
        for batch in batches:
            known = (batch.labels >= 0) & ~batch.replaced
            images = batch.images[known].to(device)
            views = [images, images.flip(3)] if mirrored else [images]
            maps.append(torch.stack([encoder(view).half().cpu() for view in views]))
            labels.append(batch.labels[known])
    encoder.train(was_training)
    if not any(len(some) for some in labels):
        raise InputError(f"{dataset.source.where} ({split}) has no readable photo of a known class.")
    return Features(torch.cat(maps, 1), torch.cat(labels), dataset.class_names)


def knn(train: Features, test: Features, neighbours: int = 20, temperature: float = 0.07) -> float:
    """Accuracy of the weighted vote of the nearest neighbours.

    Cosine similarity of the maps' means, votes weighted by exp(similarity / temperature), as is usual since InstDisc.
    """
    # Standardisation by the training set makes features comparable that were trained with very different losses.
    base = train.means[0]
    centre, scale = base.mean(0), base.std(0) + 1e-6
    keys, queries = (F.normalize((means - centre) / scale, dim=1) for means in (base, test.means[0]))
    correct = 0
    for query, label in zip(queries.split(1024), test.labels.split(1024), strict=True):
        similarity, nearest = (query @ keys.T).topk(min(neighbours, len(keys)), dim=1)
        votes = torch.zeros(len(query), len(train.classes))
        votes.scatter_add_(1, train.labels[nearest], (similarity / temperature).exp())
        correct += int((votes.argmax(1) == label).sum())
    return correct / len(test.labels)


def head_recipe(kind: str, *, epochs: int | None = None, seed: int = 0) -> ClassifyRecipe:
    """Recipe of a head, with its number of epochs unless `epochs` is given.

    >>> head_recipe("lin").optimiser.kind
    'sgd'
    """
    words = [f"head.kind={kind}", f"seed={seed}", *([f"schedule.epochs={epochs}"] if epochs else [])]
    recipe = load_recipe(RECIPES[kind], words)
    assert isinstance(recipe, ClassifyRecipe)
    return recipe


def train_head(recipe: ClassifyRecipe, train: Features, progress: Progress | None = None) -> nn.Module:
    """Train the head of a recipe on cached features and return it in evaluation mode."""
    seed_all(recipe.seed)
    views, count, channels = train.maps.shape[:3]
    kind, batch, epochs = recipe.head.kind, recipe.data.batch_size, range(recipe.schedule.epochs)
    head = build_head(kind, channels, len(train.classes), dropout=recipe.head.dropout).train()
    # `lin` depends on the mean of the map only, which is a map of one position.
    inputs = train.means[..., None, None] if kind == "lin" else train.maps
    steps = max(1, count // batch)
    optimiser = build_optimiser(head, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lr_factor(recipe.schedule, steps))
    for _ in progress(epochs, len(epochs), f"training {kind}") if progress else epochs:
        order = torch.randperm(count)
        for chosen in order[: batch * steps].split(batch):
            view = torch.randint(views, (len(chosen),))
            logits = head(inputs[view, chosen].float())
            loss = F.cross_entropy(logits, train.labels[chosen], label_smoothing=recipe.head.label_smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return head.eval()


@torch.inference_mode()
def accuracy(head: nn.Module, test: Features) -> float:
    """Top-1 accuracy of a head."""
    correct = 0
    for maps, labels in zip(test.maps[0].split(250), test.labels.split(250), strict=True):
        correct += int((head(maps.float()).argmax(1) == labels).sum())
    return correct / len(test.labels)

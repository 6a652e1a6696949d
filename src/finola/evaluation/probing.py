"""Probes on kept features: every photo goes through a frozen encoder once, and heads are trained on what came out.

The recipes of `probe/` are the paper's protocol, with a new crop of every photo in every epoch. Here a photo is seen as
it is and mirrored, and its map is kept: a probe takes seconds on a CPU, and is a little below the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.config import HEADS
from finola.data import CentreCrop, make_loader, open_data
from finola.data.sources import evenly
from finola.heads import build_head

PROBES = ("knn", *HEADS["classify"])
Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


@dataclass(frozen=True)
class Features:
    """What an encoder makes of labelled photos: maps (V, N, C, h, w) in half precision, V views, and labels (N,)."""

    maps: Tensor
    labels: Tensor
    classes: list[str]

    @property
    def means(self) -> Tensor:
        """The mean of every map: (V, N, C)."""
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
    """Features of the labelled photos of a split, centre crops of `size` pixels; with `mirrored`, both ways round.

    `like` is the split whose numbers the classes have: that of training.
    """
    dataset = open_data(data, split, transform=CentreCrop(size))
    if not dataset.classes:
        raise ValueError(f"{dataset.source.where} has no labels to probe with: give class folders or a label column.")
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
        raise ValueError(f"no photo of {dataset.source.where} ({split}) has a class that can be probed for.")
    return Features(torch.cat(maps, 1), torch.cat(labels), dataset.class_names)


def knn(train: Features, test: Features, neighbours: int = 20, temperature: float = 0.07) -> float:
    """The share of test photos whose class the weighted vote of their nearest neighbours names.

    Cosine similarity of the maps' means, votes weighted by exp(similarity / temperature), as is usual since InstDisc.
    """
    # The training set's own mean and deviation make features comparable that were trained with very different losses.
    base = train.means[0]
    centre, scale = base.mean(0), base.std(0) + 1e-6
    keys, queries = (F.normalize((means - centre) / scale, dim=1) for means in (base, test.means[0]))
    right = 0
    for query, label in zip(queries.split(1024), test.labels.split(1024), strict=True):
        likeness, found = (query @ keys.T).topk(min(neighbours, len(keys)), dim=1)
        votes = torch.zeros(len(query), len(train.classes))
        votes.scatter_add_(1, train.labels[found], (likeness / temperature).exp())
        right += int((votes.argmax(1) == label).sum())
    return right / len(test.labels)


def train_head(
    kind: str, train: Features, *, epochs: int | None = None, seed: int = 0, progress: Progress | None = None
) -> nn.Module:
    """A head trained on kept features with the paper's optimisers: SGD for `lin`, AdamW and label smoothing else."""
    torch.manual_seed(seed)
    views, count, channels = train.maps.shape[:3]
    linear = kind == "lin"
    head = build_head(kind, channels, len(train.classes), dropout=0.0 if linear else 0.1).train()
    # `lin` reads the map's mean alone, which is a map of one position.
    inputs = train.means[..., None, None] if linear else train.maps
    total, batch = epochs or (90 if linear else 10), 250 if linear else 100
    steps = total * max(1, count // batch)
    if linear:
        optimiser: torch.optim.Optimizer = torch.optim.SGD(head.parameters(), lr=0.1 * batch / 256, momentum=0.9)
    else:
        optimiser = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, [group["lr"] for group in optimiser.param_groups], total_steps=steps + 1, pct_start=0.1
    )
    numbers = range(total)
    for _ in progress(numbers, total, f"training {kind}") if progress else numbers:
        order = torch.randperm(count)
        for chosen in order[: batch * max(1, count // batch)].split(batch):
            view = torch.randint(views, (len(chosen),))
            logits = head(inputs[view, chosen].float())
            loss = F.cross_entropy(logits, train.labels[chosen], label_smoothing=0.0 if linear else 0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return head.eval()


@torch.inference_mode()
def accuracy(head: nn.Module, test: Features) -> float:
    """The share of photos whose class the head names."""
    right = 0
    for maps, labels in zip(test.maps[0].split(250), test.labels.split(250), strict=True):
        right += int((head(maps.float()).argmax(1) == labels).sum())
    return right / len(test.labels)

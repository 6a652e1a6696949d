"""Set loss of DETR: Hungarian matching assigns each object to one query; the other queries predict "no object"."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor

from finola.heads.mf_decoder import Predictions

EPS = 1e-7  # boxes may be empty
CLASS, L1, GIOU = 1.0, 5.0, 2.0
"""Weights of the three terms in the matching cost and in the loss."""
NO_OBJECT = 0.1
"""Weight of the "no object" class in the cross-entropy, because most queries are unmatched."""


@torch.no_grad()
def costs(logits: Tensor, boxes: Tensor, target: dict[str, Any]) -> Tensor:
    """Matching cost (Q, T) of Q queries and T objects, in the precision of the boxes.

    `target` has `labels` (T,) and `boxes` (T, 4). Boxes are centre and size as fractions of the image.
    """
    from torchvision.ops import generalized_box_iou

    class_cost = -logits.softmax(-1)[:, target["labels"]]
    true = target["boxes"].to(boxes)
    l1_cost = torch.cdist(boxes, true, p=1)
    giou_cost: Tensor = -generalized_box_iou(_corners(boxes), _corners(true))
    return CLASS * class_cost + L1 * l1_cost + GIOU * giou_cost


@torch.no_grad()
def match(predictions: Predictions, targets: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Assignment of minimum cost in every block and image: indices of the queries and of their objects.

    Queries are counted over blocks, images and queries, objects over the images. Each object of an image has its own
    query in every block; if there are more objects than queries, each query has its own object. The solver runs on
    the CPU: the costs of all blocks and images are copied to it together.
    """
    from scipy.optimize import linear_sum_assignment

    logits, boxes = predictions
    blocks, images, queries = logits.shape[:3]
    # The solver needs finite costs; a loss that is not finite is reported by the trainer.
    every = costs(logits.flatten(0, 2).float(), boxes.flatten(0, 2).float(), joined(targets))
    table = every.nan_to_num(1e6, 1e6, -1e6).view(blocks * images, queries, -1).cpu().numpy()
    counts = [len(target["labels"]) for target in targets]
    found: list[tuple[int, int]] = []
    for number, costs_of_image in enumerate(table):
        image = number % images
        first = sum(counts[:image])
        pairs = zip(*linear_sum_assignment(costs_of_image[:, first : first + counts[image]]), strict=True)
        found += [(number * queries + query, first + own) for query, own in pairs]
    indices = torch.tensor(found, dtype=torch.int64).reshape(-1, 2).to(logits.device, non_blocking=True)
    return indices[:, 0], indices[:, 1]


def joined(targets: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Labels and boxes of the objects of all images."""
    return {name: torch.cat([target[name] for target in targets]) for name in ("labels", "boxes")}


def detection_losses(predictions: Predictions, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Weighted cross-entropy, L1 and GIoU losses, each summed over the blocks (auxiliary losses).

    L1 and GIoU are averaged over all objects of the step in all processes.

    >>> one = {"labels": torch.tensor([0]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}
    >>> sure = Predictions(torch.tensor([[[[9.0, -9.0]]]]), one["boxes"][None, None])
    >>> {name: round(float(value), 4) for name, value in detection_losses(sure, [one]).items()}
    {'class': 0.0, 'l1': 0.0, 'giou': 0.0}
    """
    logits, boxes = predictions
    no_object = logits.shape[-1] - 1
    objects, count = joined(targets), _objects_per_process(targets, boxes.device)
    queries, numbers = match(predictions, targets)
    labels = torch.full(logits.shape[:3], no_object, device=logits.device)
    labels.view(-1)[queries] = objects["labels"][numbers]
    weight = torch.ones(no_object + 1, device=logits.device, dtype=logits.dtype)
    weight[no_object] = NO_OBJECT
    entropies = [F.cross_entropy(*block, weight) for block in zip(logits.flatten(1, 2), labels.flatten(1), strict=True)]
    matched, expected = boxes.flatten(0, 2)[queries], objects["boxes"][numbers]
    return {
        "class": CLASS * torch.stack(entropies).sum(),
        "l1": L1 * F.l1_loss(matched, expected, reduction="sum") / count,
        "giou": GIOU * giou_losses(_corners(matched), _corners(expected)).sum() / count,
    }


def giou_losses(first: Tensor, second: Tensor) -> Tensor:
    """1 − GIoU of each pair of boxes (K, 4), given by their corners; torchvision's loss waits for the device.

    >>> giou_losses(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[0.0, 0.0, 2.0, 1.0]]))
    tensor([0.5000])
    """
    overlap = (torch.min(first, second)[:, 2:] - torch.max(first, second)[:, :2]).clamp(min=0).prod(1)
    union = sum(((boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first, second)), -overlap)
    hull = (torch.max(first, second)[:, 2:] - torch.min(first, second)[:, :2]).prod(1)
    return 1 - overlap / (union + EPS) + (hull - union) / (hull + EPS)


def _objects_per_process(targets: list[dict[str, Any]], device: torch.device) -> Tensor:
    """Mean number of objects per process, at least 1."""
    count = torch.tensor(float(sum(len(target["labels"]) for target in targets)), device=device)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(count)
        count = count / torch.distributed.get_world_size()
    return count.clamp(min=1)


def _corners(boxes: Tensor) -> Tensor:
    from torchvision.ops import box_convert

    corners: Tensor = box_convert(boxes, "cxcywh", "xyxy")
    return corners

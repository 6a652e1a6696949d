"""Set loss of DETR: Hungarian matching assigns each object to one query; the other queries predict "no object"."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor

from finola.heads.mf_decoder import Predictions

CLASS, L1, GIOU = 1.0, 5.0, 2.0
"""Weights of the three terms in the matching cost and in the loss."""
NO_OBJECT = 0.1
"""Weight of the "no object" class in the cross-entropy, because most queries are unmatched."""


@torch.no_grad()
def costs(logits: Tensor, boxes: Tensor, target: dict[str, Any]) -> Tensor:
    """Matching cost (Q, T) of Q queries and T objects.

    `target` has `labels` (T,) and `boxes` (T, 4). Boxes are centre and size as fractions of the image.
    """
    from torchvision.ops import generalized_box_iou

    class_cost = -logits.softmax(-1)[:, target["labels"]]
    l1_cost = torch.cdist(boxes, target["boxes"], p=1)
    giou_cost: Tensor = -generalized_box_iou(_corners(boxes), _corners(target["boxes"]))
    return CLASS * class_cost + L1 * l1_cost + GIOU * giou_cost


@torch.no_grad()
def match(logits: Tensor, boxes: Tensor, target: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Assignment of minimum cost in one image: indices of the queries and of their objects.

    Each object has its own query. If there are more objects than queries, each query has its own object.
    """
    from scipy.optimize import linear_sum_assignment

    # The solver needs finite costs; a loss that is not finite is reported by the trainer.
    cost = costs(logits.float(), boxes.to(target["boxes"].dtype), target).nan_to_num(1e6, 1e6, -1e6)
    queries, objects = linear_sum_assignment(cost.cpu().numpy())
    return torch.as_tensor(queries, device=logits.device), torch.as_tensor(objects, device=logits.device)


def detection_losses(predictions: Predictions, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Weighted cross-entropy, L1 and GIoU losses, each summed over the blocks (auxiliary losses).

    L1 and GIoU are averaged over all objects of the step in all processes.

    >>> one = {"labels": torch.tensor([0]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}
    >>> sure = Predictions(torch.tensor([[[[9.0, -9.0]]]]), one["boxes"][None, None])
    >>> {name: round(float(value), 4) for name, value in detection_losses(sure, [one]).items()}
    {'class': 0.0, 'l1': 0.0, 'giou': 0.0}
    """
    total = {"class": predictions.logits.new_zeros(()), "l1": predictions.boxes.new_zeros(())}
    total["giou"] = predictions.boxes.new_zeros(())
    objects = _objects_per_process(targets, predictions.boxes.device)
    for logits, boxes in zip(predictions.logits, predictions.boxes, strict=True):
        for name, value in _block_losses(logits, boxes, targets, objects).items():
            total[name] = total[name] + value
    return {"class": CLASS * total["class"], "l1": L1 * total["l1"], "giou": GIOU * total["giou"]}


def _block_losses(logits: Tensor, boxes: Tensor, targets: list[dict[str, Any]], objects: Tensor) -> dict[str, Tensor]:
    from torchvision.ops import generalized_box_iou_loss

    no_object = logits.shape[-1] - 1
    labels = torch.full(logits.shape[:2], no_object, device=logits.device)
    predicted, true = [], []
    for image, target in enumerate(targets):
        queries, numbers = match(logits[image], boxes[image], target)
        labels[image, queries] = target["labels"][numbers]
        predicted.append(boxes[image, queries])
        true.append(target["boxes"][numbers])
    weight = torch.ones(no_object + 1, device=logits.device, dtype=logits.dtype)
    weight[no_object] = NO_OBJECT
    matched, expected = torch.cat(predicted), torch.cat(true)
    overlap = generalized_box_iou_loss(_corners(matched), _corners(expected), reduction="sum")
    return {
        "class": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight),
        "l1": F.l1_loss(matched, expected, reduction="sum") / objects,
        "giou": overlap / objects,
    }


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

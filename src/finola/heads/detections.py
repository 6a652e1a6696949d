"""Detections of an image and their conversion to the original image size and to COCO format."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Found(NamedTuple):
    """K detections of one image in pixels, sorted by decreasing score."""

    boxes: Tensor  # (K, 4) left, top, right, bottom
    scores: Tensor  # (K,) in [0, 1]
    labels: Tensor  # (K,) indices of the model's classes
    masks: Tensor | None = None  # (K, H, W) bool, from a segmenter

    def above(self, score: float) -> Found:
        """Detections with at least this score."""
        kept = self.scores >= score
        masks = None if self.masks is None else self.masks[kept]
        return Found(self.boxes[kept], self.scores[kept], self.labels[kept], masks)

    def resized(self, size: tuple[int, int], to: tuple[int, int]) -> Found:
        """Rescale detections from an image of `size` to the size `to`, both (height, width).

        >>> found = Found(torch.tensor([[0.0, 0.0, 4.0, 2.0]]), torch.ones(1), torch.zeros(1, dtype=torch.int64))
        >>> found.resized((2, 4), to=(4, 8)).boxes.tolist()
        [[0.0, 0.0, 8.0, 4.0]]
        """
        (height, width), (tall, wide) = size, to
        scale = torch.tensor([wide / width, tall / height] * 2, device=self.boxes.device)
        most = torch.tensor([wide, tall] * 2, device=self.boxes.device)
        boxes = torch.minimum((self.boxes * scale).clamp(min=0), most)
        masks = self.masks
        if masks is not None and size != to:
            grown = [F.interpolate(mask[None, None].float(), to, mode="bilinear")[0, 0] >= 0.5 for mask in masks]
            masks = torch.stack(grown) if grown else masks.new_zeros(0, *to)  # one by one to save memory
        return Found(boxes, self.scores, self.labels, masks)

    def as_coco(self, image_id: int, categories: list[int]) -> list[dict[str, Any]]:
        """COCO result entries; `categories` maps labels to COCO category ids. Masks are run-length encoded."""
        entries: list[dict[str, Any]] = []
        for number, (label, score) in enumerate(zip(self.labels.tolist(), self.scores.tolist(), strict=True)):
            left, top, right, bottom = self.boxes[number].tolist()
            box = [round(value, 3) for value in (left, top, right - left, bottom - top)]
            entry = {"image_id": image_id, "category_id": categories[label], "bbox": box, "score": round(score, 6)}
            if self.masks is not None:
                entry["segmentation"] = run_lengths(self.masks[number])
            entries.append(entry)
        return entries


def run_lengths(mask: Tensor) -> dict[str, Any]:
    """Encode a mask (H, W) in COCO's compressed run-length format.

    >>> run_lengths(torch.ones(2, 3, dtype=torch.bool))
    {'size': [2, 3], 'counts': '06'}
    """
    import numpy as np
    from pycocotools import mask as coco_mask

    encoded = coco_mask.encode(np.asfortranarray(mask.cpu().numpy().astype(np.uint8)))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode()}

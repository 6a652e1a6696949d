"""Base class of the detector and the segmenter, and the detections that both return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.encoders import build_encoder
from finola.errors import InputError, require
from finola.layers import BATCH_NORMS
from finola.serialization import Pretrained


class Detections(NamedTuple):
    """K detections of one image in pixels, sorted by decreasing score."""

    boxes: Tensor  # (K, 4) left, top, right, bottom
    scores: Tensor  # (K,) in [0, 1]
    labels: Tensor  # (K,) indices of the model's classes
    masks: Tensor | None = None  # (K, H, W) bool, from a segmenter

    def cpu(self) -> Detections:
        """The same detections on the CPU."""
        masks = None if self.masks is None else self.masks.cpu()
        return Detections(self.boxes.cpu(), self.scores.cpu(), self.labels.cpu(), masks)

    def above(self, score: float) -> Detections:
        """Detections with at least this score."""
        selected = self.scores >= score
        masks = None if self.masks is None else self.masks[selected]
        return Detections(self.boxes[selected], self.scores[selected], self.labels[selected], masks)

    def resized(self, size: tuple[int, int], to: tuple[int, int]) -> Detections:
        """Rescale detections from an image of `size` to the size `to`, both (height, width).

        >>> detections = Detections(torch.tensor([[0.0, 0.0, 4.0, 2.0]]), torch.ones(1), torch.tensor([0]))
        >>> detections.resized((2, 4), to=(4, 8)).boxes.tolist()
        [[0.0, 0.0, 8.0, 4.0]]
        """
        (height, width), (tall, wide) = size, to
        scale = torch.tensor([wide / width, tall / height] * 2, device=self.boxes.device)
        most = torch.tensor([wide, tall] * 2, device=self.boxes.device)
        boxes = torch.minimum((self.boxes * scale).clamp(min=0), most)
        masks = self.masks
        if masks is not None and size != to:
            resized = [F.interpolate(mask[None, None].float(), to, mode="bilinear")[0, 0] >= 0.5 for mask in masks]
            masks = torch.stack(resized) if resized else masks.new_zeros(0, *to)  # one by one to save memory
        return Detections(boxes, self.scores, self.labels, masks)

    def to_coco(self, image_id: int, categories: list[int]) -> list[dict[str, Any]]:
        """COCO result entries; `categories` maps labels to COCO category ids. Masks are run-length encoded."""
        entries: list[dict[str, Any]] = []
        for number, (label, score) in enumerate(zip(self.labels.tolist(), self.scores.tolist(), strict=True)):
            left, top, right, bottom = self.boxes[number].tolist()
            box = [round(value, 3) for value in (left, top, right - left, bottom - top)]
            entry = {"image_id": image_id, "category_id": categories[label], "bbox": box, "score": round(score, 6)}
            if self.masks is not None:
                entry["segmentation"] = encode_mask(self.masks[number])
            entries.append(entry)
        return entries


def encode_mask(mask: Tensor) -> dict[str, Any]:
    """Encode a mask (H, W) in COCO's compressed run-length format.

    >>> encode_mask(torch.ones(2, 3, dtype=torch.bool))
    {'size': [2, 3], 'counts': '06'}
    """
    require("pycocotools")
    import numpy as np
    from pycocotools import mask as coco_mask

    encoded = coco_mask.encode(np.asfortranarray(mask.cpu().numpy().astype(np.uint8)))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode()}


class DetectionModel(nn.Module, Pretrained, ABC):
    """Encoder with a detection or segmentation head.

    With `frozen` the encoder is fixed. Otherwise its batch norms still use their running statistics unless
    `encoder_norms` is set, because batches of two large images are too small for batch statistics. `size` is the input
    size: the short side and the maximum long side.
    """

    head: nn.Module

    def __init__(
        self,
        encoder: str,
        head: str,
        classes: Sequence[str],
        *,
        frozen: bool = True,
        encoder_norms: bool = False,
        size: Sequence[int] = (800, 1333),
    ) -> None:
        super().__init__()
        if not classes:
            raise InputError(f"{type(self).__name__} needs at least one class name, got 0.")
        self.encoder_name, self.head_name, self.classes = encoder, head, list(classes)
        self.frozen, self.encoder_norms = frozen, encoder_norms
        if len(size) != 2 or min(size) < 1:
            raise InputError(f"size is {list(size)}; expected the short side and the maximum long side in pixels.")
        self.size = (int(size[0]), int(size[1]))
        self.encoder = build_encoder(encoder, (256, 256))
        if frozen:
            self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen encoder, or batch norms without `encoder_norms`, stay in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        elif not self.encoder_norms:
            for module in self.encoder.modules():
                if isinstance(module, BATCH_NORMS):
                    module.eval()
        return self

    @abstractmethod
    def losses(self, images: Tensor, sizes: Tensor | None, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Losses of a batch by name; a target has `labels` (K,) and `boxes` (K, 4), corners in pixels."""

    @abstractmethod
    def detect(self, images: Tensor, sizes: Tensor | None = None) -> list[Detections]:
        """Detections of each image in pixels, sorted by decreasing score."""

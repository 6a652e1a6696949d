"""DETR on any encoder: feature maps at 1/8 and 1/16 and the Mobile-Former decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from finola.errors import InputError
from finola.heads.criterion import detection_losses
from finola.heads.detection_model import DetectionModel, Detections
from finola.heads.mf_decoder import MobileFormerDecoder, Predictions


class Detector(DetectionModel):
    """Object detector of an encoder and a Mobile-Former decoder; see `DetectionModel` for the arguments.

    >>> model = Detector("mf-w720", "mf-dec-211", ["cat", "dog"]).eval()
    >>> [detections] = model.detect(torch.rand(1, 3, 64, 96))
    >>> detections.boxes.shape
    torch.Size([100, 4])
    """

    model_type = "detector"

    def __init__(
        self,
        encoder: str = "mf-w720",
        head: str = "mf-dec-211",
        classes: Sequence[str] = ("object",),
        *,
        frozen: bool = True,
        encoder_norms: bool = False,
        dropout: float = 0.1,
        size: Sequence[int] = (800, 1333),
    ) -> None:
        super().__init__(encoder, head, classes, frozen=frozen, encoder_norms=encoder_norms, size=size)
        self.head = MobileFormerDecoder(head, decoder_channels(self.encoder, encoder), len(self.classes), dropout)

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Feature maps at 1/8 and 1/16, the inputs of the head; those of a frozen encoder can be cached."""
        eighth, sixteenth = self.encoder.stages(images)[-2:]  # type: ignore[operator]
        return eighth, sixteenth

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Predictions:
        """Predict from images (N, 3, H, W) in [0, 1]; `sizes` (N, 2) are height and width without padding."""
        return self.predict(self.maps(images), sizes)

    def predict(self, maps: tuple[Tensor, Tensor], sizes: Tensor | None = None) -> Predictions:
        """Predictions of the head from the feature maps."""
        fractions = valid_fractions(16 * maps[1].shape[-2], 16 * maps[1].shape[-1], sizes)
        predictions: Predictions = self.head(*maps, None if fractions is None else fractions.to(maps[1].device))
        return predictions

    def losses(self, images: Tensor, sizes: Tensor | None, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Losses of a batch by name; a target has `labels` (K,) and `boxes` (K, 4), corners in pixels."""
        own = torch.tensor([images.shape[-2:]] * len(images), device=images.device) if sizes is None else sizes
        return detection_losses(self(images, sizes), normalise_boxes(targets, own))

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Tensor | None = None) -> list[Detections]:
        """Detections of all queries of each image in pixels, sorted by decreasing score."""
        return to_detections(self(images, sizes), image_sizes(images, sizes))


def decoder_channels(encoder: nn.Module, name: str) -> tuple[int, int]:
    """Channels of the feature maps at 1/8 and 1/16."""
    stages: list[int] = encoder.stage_channels  # type: ignore[assignment]
    if encoder.reduction != 16 or len(stages) < 2:
        raise InputError(
            f"Encoder {name} has a final stride of {encoder.reduction} and {len(stages)} stages, but a detector needs "
            "feature maps at 1/8 and 1/16."
        )
    return stages[-2], stages[-1]


def image_sizes(images: Tensor, sizes: Tensor | None) -> list[tuple[int, int]]:
    """Size (height, width) of each image without padding."""
    if sizes is None:
        return [(images.shape[-2], images.shape[-1])] * len(images)
    return [(int(height), int(width)) for height, width in sizes.tolist()]


def valid_fractions(height: int, width: int, sizes: Tensor | None) -> Tensor | None:
    """Fractions (N, 2) of height and width that are not padding; None if nothing is known to be padded.

    Sizes on another device than the CPU are not read, since reading them would make the device wait.
    """
    if sizes is None or (sizes.is_cpu and all(size == [height, width] for size in sizes.tolist())):
        return None
    return sizes / sizes.new_tensor([height, width])


def normalise_boxes(targets: list[dict[str, Any]], sizes: Tensor) -> list[dict[str, Any]]:
    """Convert boxes from corners in pixels to centre and size as fractions of their images of `sizes` (N, 2)."""
    from torchvision.ops import box_convert

    scaled = []
    for target, size in zip(targets, sizes, strict=True):
        boxes = box_convert(target["boxes"], "xyxy", "cxcywh") / size.flip(0).repeat(2).to(target["boxes"])
        scaled.append({"labels": target["labels"], "boxes": boxes})
    return scaled


def to_detections(predictions: Predictions, sizes: list[tuple[int, int]]) -> list[Detections]:
    """Detections of the last block in pixels, with the most probable class of each query."""
    from torchvision.ops import box_convert

    scores, labels = predictions.logits[-1].softmax(-1)[..., :-1].max(-1)  # (N, Q)
    corners = box_convert(predictions.boxes[-1], "cxcywh", "xyxy").clamp(0, 1)
    batch = []
    for image, (height, width) in enumerate(sizes):
        order = scores[image].argsort(descending=True)
        boxes = corners[image, order] * corners.new_tensor([width, height, width, height])
        batch.append(Detections(boxes, scores[image, order], labels[image, order]))
    return batch

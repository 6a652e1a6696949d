"""Mask R-CNN of torchvision on any encoder, with a feature pyramid over its stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.errors import InputError, UnknownNameError
from finola.heads.detection_model import DetectionModel, Detections
from finola.heads.detector import image_sizes
from finola.layers import at_least_float32

HEAD = "mask-rcnn"
WIDTH, LEVELS = 256, ("1/4", "1/8", "1/16", "1/32", "1/64")


class Segmenter(DetectionModel):
    """Instance segmentation with an encoder and Mask R-CNN; see `DetectionModel` for the arguments.

    Anchors and the canonical scale of the RoI pooling are proportional to `size`, with the standard values at 800.

    >>> model = Segmenter("mf-w720", classes=["cat", "dog"], size=(64, 96)).eval()
    >>> [detections] = model.detect(torch.rand(1, 3, 64, 96))
    >>> detections.masks.shape[1:]
    torch.Size([64, 96])
    """

    model_type = "segmenter"

    def __init__(
        self,
        encoder: str = "mf-w720",
        head: str = HEAD,
        classes: Sequence[str] = ("object",),
        *,
        frozen: bool = True,
        encoder_norms: bool = False,
        size: Sequence[int] = (800, 1333),
    ) -> None:
        if head != HEAD:
            raise UnknownNameError(f"Unknown segmentation head {head!r}; use {HEAD}.")
        super().__init__(encoder, head, classes, frozen=frozen, encoder_norms=encoder_norms, size=size)
        self.head = MaskRCNNHead(self.encoder, encoder, len(self.classes), self.size[0])

    def losses(self, images: Tensor, sizes: Tensor | None, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Five losses of Mask R-CNN; a target has `labels` (K,), `boxes` (K, 4) in pixels and `masks` (K, h, w)."""
        if any("masks" not in target for target in targets):
            raise InputError("The targets have no masks, which a segmenter needs. Train a detector instead.")
        precision = torch.promote_types(images.dtype, torch.float32)
        converted = [
            {
                "boxes": target["boxes"].to(precision),
                "labels": target["labels"] + 1,
                "masks": target["masks"].to(torch.uint8),
            }
            for target in targets
        ]
        stages = self.encoder.stages(images)  # type: ignore[operator]
        _, losses = self.head(images, stages, image_sizes(images, sizes), converted)
        return {name.removeprefix("loss_"): value for name, value in losses.items()}

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Tensor | None = None) -> list[Detections]:
        """At most 100 detections of each image in pixels, sorted by decreasing score."""
        from torchvision.models.detection.roi_heads import paste_masks_in_image

        own = image_sizes(images, sizes)
        results, _ = self.head(images, self.encoder.stages(images), own)  # type: ignore[operator]
        batch = []
        for result, size in zip(results, own, strict=True):
            masks = paste_masks_in_image(result["masks"], result["boxes"], size)[:, 0] >= 0.5
            batch.append(Detections(result["boxes"], result["scores"], result["labels"] - 1, masks))
        return batch


class MaskRCNNHead(nn.Module):
    """Mask R-CNN without the encoder: feature pyramid, proposals, boxes and masks."""

    def __init__(self, encoder: nn.Module, name: str, classes: int, short: int) -> None:
        super().__init__()
        from torchvision.models.detection import MaskRCNN
        from torchvision.models.detection.rpn import AnchorGenerator
        from torchvision.ops import MultiScaleRoIAlign

        self.pyramid = Pyramid(encoder, name)
        unit = short / 800
        anchors = tuple((max(4, round(side * unit)),) for side in (32, 64, 128, 256, 512))
        scale = max(1, round(224 * unit))
        parts = MaskRCNN(
            self.pyramid,
            num_classes=classes + 1,  # the first is background
            rpn_anchor_generator=AnchorGenerator(anchors, ((0.5, 1.0, 2.0),) * len(anchors)),
            box_roi_pool=MultiScaleRoIAlign(list(LEVELS[:4]), 7, 2, canonical_scale=scale),
            mask_roi_pool=MultiScaleRoIAlign(list(LEVELS[:4]), 14, 2, canonical_scale=scale),
        )
        # Only the RPN and the RoI heads are used; MaskRCNN.transform would resize and normalise the images again.
        self.proposals, self.regions = parts.rpn, parts.roi_heads

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MaskRCNNHead:
        """Apply `fn`, but keep proposals and regions in at least float32: non-maximum suppression takes no less."""
        self.pyramid._apply(fn)  # type: ignore[no-untyped-call]
        for part in (self.proposals, self.regions):
            part._apply(at_least_float32(fn))
        return self

    def forward(
        self, images: Tensor, stages: Sequence[Tensor], sizes: list[tuple[int, int]], targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return detections, and in training also losses."""
        from torchvision.models.detection.image_list import ImageList

        precision = torch.promote_types(images.dtype, torch.float32)
        maps = OrderedDict((level, own.to(precision)) for level, own in self.pyramid(stages).items())
        images = images.to(precision)
        proposals, first = self.proposals(ImageList(images, sizes), maps, targets)
        results, second = self.regions(maps, proposals, sizes, targets)
        return results, {**first, **second}


class Pyramid(nn.Module):
    """FPN over the feature maps at 1/4, 1/8 and 1/16, and two coarser levels pooled from the last."""

    out_channels = WIDTH

    def __init__(self, encoder: nn.Module, name: str) -> None:
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork

        channels: list[int] = encoder.stage_channels  # type: ignore[assignment]
        if encoder.reduction != 16 or len(channels) < 3:
            raise InputError(f"Encoder {name} has no feature maps at 1/4, 1/8 and 1/16, which a segmenter needs.")
        self.fpn = FeaturePyramidNetwork(channels[-3:], WIDTH)

    def forward(self, stages: Sequence[Tensor]) -> OrderedDict[str, Tensor]:
        maps: OrderedDict[str, Tensor] = self.fpn(OrderedDict(zip(LEVELS, stages[-3:], strict=False)))
        for finer, level in (("1/16", "1/32"), ("1/32", "1/64")):
            maps[level] = F.max_pool2d(maps[finer], 1, 2)
        return maps

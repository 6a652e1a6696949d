"""Mask R-CNN, torchvision's, on any encoder of the package, over a feature pyramid of its stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.heads.detection_model import Finder
from finola.heads.detections import Found
from finola.heads.detector import image_sizes

HEAD = "mask-rcnn"
WIDTH, LEVELS = 256, ("1/4", "1/8", "1/16", "1/32", "1/64")


class Segmenter(Finder):
    """An encoder and Mask R-CNN: names, boxes and masks; arguments are those of `Finder`.

    Anchors and the scale at which boxes change levels follow `size`, and are the usual ones at 800.

    >>> model = Segmenter("mf-w720", classes=["cat", "dog"], size=(64, 96)).eval()
    >>> [found] = model.find(torch.rand(1, 3, 64, 96))
    >>> found.masks.shape[1:]
    torch.Size([64, 96])
    """

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
            raise ValueError(f"there is no segmentation head {head!r}: use {HEAD}.")
        super().__init__(encoder, head, classes, frozen=frozen, encoder_norms=encoder_norms, size=size)
        self.head = MaskRCNNHead(self.encoder, encoder, len(self.classes), self.size[0])

    def losses(self, images: Tensor, sizes: Tensor | None, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Mask R-CNN's five losses; a target has `labels` (K,), `boxes` (K, 4) in pixels and `masks` (K, h, w)."""
        if any("masks" not in target for target in targets):
            raise ValueError("a segmenter learns from masks, and these photos have boxes only; train a detector.")
        wanted = [
            {"boxes": target["boxes"], "labels": target["labels"] + 1, "masks": target["masks"].to(torch.uint8)}
            for target in targets
        ]
        stages = self.encoder.stages(images)  # type: ignore[operator]
        _, losses = self.head(images, stages, image_sizes(images, sizes), wanted)
        return {name.removeprefix("loss_"): value for name, value in losses.items()}

    @torch.no_grad()
    def find(self, images: Tensor, sizes: Tensor | None = None) -> list[Found]:
        """At most 100 objects in each image, the surest first, in its pixels."""
        from torchvision.models.detection.roi_heads import paste_masks_in_image

        own = image_sizes(images, sizes)
        results, _ = self.head(images, self.encoder.stages(images), own)  # type: ignore[operator]
        found = []
        for result, size in zip(results, own, strict=True):
            masks = paste_masks_in_image(result["masks"], result["boxes"], size)[:, 0] >= 0.5
            found.append(Found(result["boxes"], result["scores"], result["labels"] - 1, masks))
        return found


class MaskRCNNHead(nn.Module):
    """All of Mask R-CNN behind the encoder: pyramid, proposals, boxes and masks."""

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
        # Its own resizing and normalising would come on top of ours.
        self.proposals, self.regions = parts.rpn, parts.roi_heads

    def forward(
        self, images: Tensor, stages: Sequence[Tensor], sizes: list[tuple[int, int]], targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """What was found, and in training the losses."""
        from torchvision.models.detection.image_list import ImageList

        maps = self.pyramid(stages)
        proposals, first = self.proposals(ImageList(images, sizes), maps, targets)
        results, second = self.regions(maps, proposals, sizes, targets)
        return results, {**first, **second}


class Pyramid(nn.Module):
    """FPN over an encoder's maps at 1/4, 1/8 and 1/16; two coarser ones are pooled from the last."""

    out_channels = WIDTH

    def __init__(self, encoder: nn.Module, name: str) -> None:
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork

        channels: list[int] = encoder.stage_channels  # type: ignore[assignment]
        if encoder.reduction != 16 or len(channels) < 3:
            raise ValueError(f"{name} has no maps at 1/4, 1/8 and 1/16, which a segmenter needs.")
        self.fpn = FeaturePyramidNetwork(channels[-3:], WIDTH)

    def forward(self, stages: Sequence[Tensor]) -> OrderedDict[str, Tensor]:
        maps: OrderedDict[str, Tensor] = self.fpn(OrderedDict(zip(LEVELS, stages[-3:], strict=False)))
        for finer, level in (("1/16", "1/32"), ("1/32", "1/64")):
            maps[level] = F.max_pool2d(maps[finer], 1, 2)
        return maps

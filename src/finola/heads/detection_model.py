"""Base class of the detector and the segmenter: an encoder by name, frozen or trained, and the input size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor, nn

from finola.encoders import build_encoder
from finola.errors import InputError
from finola.heads.detections import Found
from finola.serialization import Pretrained


class Finder(nn.Module, Pretrained, ABC):
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
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    @abstractmethod
    def losses(self, images: Tensor, sizes: Tensor | None, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Losses of a batch by name; a target has `labels` (K,) and `boxes` (K, 4), corners in pixels."""

    @abstractmethod
    def find(self, images: Tensor, sizes: Tensor | None = None) -> list[Found]:
        """Detections of each image in pixels, sorted by decreasing score."""

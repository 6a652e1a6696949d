"""What a detector and a segmenter share: an encoder by name, frozen or trained, and photos resized alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor, nn

from finola.encoders import build_encoder
from finola.errors import InputError
from finola.heads.detections import Found
from finola.pretrained import Pretrained


class Finder(nn.Module, Pretrained, ABC):
    """An encoder and a head that finds objects.

    `frozen` keeps the encoder as it is. A trained encoder keeps its batch norms' statistics all the same, unless
    `encoder_norms` is on: batches of two large photos are too few for them. `size` is what photos are resized to: the
    short side, and the most that the long one may have.
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
            raise ValueError(f"a {type(self).__name__.lower()} needs the names of its classes, and got none.")
        self.encoder_name, self.head_name, self.classes = encoder, head, list(classes)
        self.frozen, self.encoder_norms = frozen, encoder_norms
        if len(size) != 2 or min(size) < 1:
            raise InputError(f"size is {list(size)}; it is the short side and the largest long side in pixels.")
        self.size = (int(size[0]), int(size[1]))
        self.encoder = build_encoder(encoder, (256, 256))
        if frozen:
            self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """A frozen encoder is always in evaluation mode, and so are the batch norms of another unless told."""
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
        """Named losses of a batch; a target has `labels` (K,) and `boxes` (K, 4), corners in the image's pixels."""

    @abstractmethod
    def find(self, images: Tensor, sizes: Tensor | None = None) -> list[Found]:
        """What was found in each image, the surest first, in its pixels."""

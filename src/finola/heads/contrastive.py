"""MoCo-v2 on the encoders of this package: projection head and momentum encoder."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from finola.encoders import build_encoder
from finola.errors import require
from finola.serialization import Pretrained


class MoCo(nn.Module, Pretrained, tags=["finola", "self-supervised"]):
    """An encoder with projection head, and the momentum copies of both that compute keys."""

    model_type = "encoder"

    def __init__(self, encoder: str, image_size: int = 224, size: int = 128) -> None:
        super().__init__()
        require("lightly")
        from lightly.models.modules import MoCoProjectionHead

        self.encoder = build_encoder(encoder, (image_size, image_size))
        channels = int(self.encoder.channels)  # type: ignore[arg-type]
        self.projection = MoCoProjectionHead(channels, channels, size)
        self.slow = nn.ModuleList([copy.deepcopy(self.encoder), copy.deepcopy(self.projection)]).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Compute normalised queries (N, size)."""
        return _embed(self.encoder, self.projection, images)

    @torch.no_grad()
    def keys(self, images: Tensor) -> Tensor:
        """Compute normalised keys (N, size) with the momentum encoder."""
        return _embed(self.slow[0], self.slow[1], images)

    def update_momentum_encoder(self, momentum: float) -> None:
        """Update the momentum copies of encoder and projection head."""
        from lightly.models.utils import update_momentum

        update_momentum(self.encoder, self.slow[0], momentum)
        update_momentum(self.projection, self.slow[1], momentum)


def _embed(encoder: nn.Module, projection: nn.Module, images: Tensor) -> Tensor:
    return nn.functional.normalize(projection(encoder(images).mean((2, 3))), dim=1)

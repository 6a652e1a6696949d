"""MoCo-v2 on the same encoders, for comparison: two views of a photo, told apart from a queue of others."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from finola.data import Batch
from finola.encoders import build_encoder
from finola.pretrained import Pretrained
from finola.training.config import Recipe
from finola.training.initial_weights import begin_encoder, encoder_of
from finola.training.tasks.base import Task


class MoCo(nn.Module, Pretrained, tags=["finola", "self-supervised"]):
    """An encoder, its projection head, and the slow copies of both that make the keys."""

    def __init__(self, encoder: str, image_size: int = 224, size: int = 128) -> None:
        super().__init__()
        from lightly.models.modules import MoCoProjectionHead  # MoCo-v2 as its users know it

        self.encoder = build_encoder(encoder, (image_size, image_size))
        channels = int(self.encoder.channels)  # type: ignore[arg-type]
        self.projection = MoCoProjectionHead(channels, channels, size)
        self.slow = nn.ModuleList([copy.deepcopy(self.encoder), copy.deepcopy(self.projection)]).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Queries (N, size) of length 1."""
        out: Tensor = self.projection(self.encoder(images).mean((2, 3)))
        return nn.functional.normalize(out, dim=1)

    @torch.no_grad()
    def keys(self, images: Tensor) -> Tensor:
        """Keys (N, size) of length 1."""
        encoder, projection = self.slow
        out: Tensor = projection(encoder(images).mean((2, 3)))
        return nn.functional.normalize(out, dim=1)

    def follow(self, momentum: float) -> None:
        """The slow copies take a small step towards the encoder and its head."""
        from lightly.models.utils import update_momentum

        update_momentum(self.encoder, self.slow[0], momentum)
        update_momentum(self.projection, self.slow[1], momentum)


class Contrast(Task):
    """A `MoCo` trained on lightly's InfoNCE; validated by how often a photo's other view is the nearest of a batch."""

    figure: ClassVar[str] = "found"
    model: MoCo

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, figures=("found",))
        from lightly.loss import NTXentLoss

        if recipe.data.crops_per_image != 2:
            raise ValueError(
                f"data.crops_per_image is {recipe.data.crops_per_image}; the task moco compares 2 views of each photo."
            )
        section, (name, weights) = recipe.moco, encoder_of(recipe.model)
        self.model = MoCo(name, recipe.data.size or 0, section.size)
        if weights is not None:
            for encoder in (self.model.encoder, self.model.slow[0]):
                begin_encoder(encoder, weights)
        self.loss = NTXentLoss(section.temperature, memory_bank_size=(section.queue, section.size))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """lightly leaves the queue out of its state; a resumed run goes on with the same keys."""
        bank = self.loss.memory_bank
        checkpoint["queue"] = {"keys": bank.bank, "next": bank.bank_ptr}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        bank, queue = self.loss.memory_bank, checkpoint["queue"]
        bank.bank, bank.bank_ptr = queue["keys"], queue["next"]

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        self.model.follow(self.recipe.moco.momentum)
        return {"contrast": self.loss(self.model(images[0::2]), self.model.keys(images[1::2]))}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        images = batch.images
        likeness = self.model(images) @ self.model.keys(images.flip(3)).T
        right = likeness.argmax(1) == torch.arange(len(likeness), device=likeness.device)
        self.log_figure("found", right[~batch.replaced].float())

"""MoCo-v2 on the same encoders, for comparison: contrastive learning with two views per photo and a queue of keys."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from finola.data import Batch
from finola.encoders import build_encoder
from finola.errors import require
from finola.serialization import Pretrained
from finola.training.config import MocoRecipe
from finola.training.initial_weights import initialise_encoder
from finola.training.tasks.base import Task


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
        out: Tensor = self.projection(self.encoder(images).mean((2, 3)))
        return nn.functional.normalize(out, dim=1)

    @torch.no_grad()
    def keys(self, images: Tensor) -> Tensor:
        """Compute normalised keys (N, size) with the momentum encoder."""
        encoder, projection = self.slow
        out: Tensor = projection(encoder(images).mean((2, 3)))
        return nn.functional.normalize(out, dim=1)

    def update_momentum_encoder(self, momentum: float) -> None:
        """Update the momentum copies of encoder and projection head."""
        from lightly.models.utils import update_momentum

        update_momentum(self.encoder, self.slow[0], momentum)
        update_momentum(self.projection, self.slow[1], momentum)


class Contrast(Task):
    """Train a `MoCo` on lightly's InfoNCE loss; validate by retrieval accuracy.

    Retrieval is correct if the key most similar to a photo's query is that of its mirrored view, within a batch.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("retrieval_accuracy",)
    monitor: ClassVar[str] = "retrieval_accuracy"
    model: MoCo
    recipe: MocoRecipe

    def __init__(self, recipe: MocoRecipe, initialise: bool = True) -> None:
        super().__init__(recipe, initialise)
        from lightly.loss import NTXentLoss

        section = recipe.moco
        self.loss = NTXentLoss(section.temperature, memory_bank_size=(section.queue_size, section.projection_dim))

    @staticmethod
    def build(recipe: MocoRecipe, initialise: bool = True) -> MoCo:
        model = MoCo(recipe.model.name, recipe.data.size or 0, recipe.moco.projection_dim)
        if initialise:
            for encoder in (model.encoder, model.slow[0]):
                initialise_encoder(encoder, recipe.model)
        return model

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the queue, which lightly does not include in its state, so that resuming is exact."""
        bank = self.loss.memory_bank
        checkpoint["queue"] = {"keys": bank.bank, "next": bank.bank_ptr}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        bank, queue = self.loss.memory_bank, checkpoint["queue"]
        bank.bank, bank.bank_ptr = queue["keys"], queue["next"]

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        self.model.update_momentum_encoder(self.recipe.moco.momentum)
        return {"contrast": self.loss(self.model(images[0::2]), self.model.keys(images[1::2]))}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.skip_validation:
            return
        images = batch.images
        similarity = self.model(images) @ self.model.keys(images.flip(3)).T
        correct = similarity.argmax(1) == torch.arange(len(similarity), device=similarity.device)
        self.log_metric("retrieval_accuracy", correct[~batch.replaced].float())

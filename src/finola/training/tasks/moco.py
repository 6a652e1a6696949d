"""MoCo-v2 on the same encoders, for comparison: contrastive learning with two views per photo and a queue of keys."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from finola.data import Batch
from finola.heads.contrastive import MoCo
from finola.recipes.recipe import MocoRecipe
from finola.training.devices import is_distributed
from finola.training.init import initialise_encoder
from finola.training.tasks.base import Task


class Contrast(Task):
    """Train a `MoCo` on the InfoNCE loss with one queue of keys over all processes; validate by retrieval accuracy.

    Retrieval is correct if the key most similar to a photo's query is that of its mirrored view, within a batch.

    Instead of the shuffling batch norm of the published code, queries and keys are computed in groups of
    `moco.norm_batch_size` photos, each with its own batch-norm statistics: consecutive photos of the step for queries,
    every n-th photo for keys. Photos are already in random order, so a random permutation is not needed, and the
    groups do not depend on the number of processes.
    """

    monitor: ClassVar[str] = "retrieval_accuracy"
    model: MoCo
    recipe: MocoRecipe
    queue: Tensor  # (queue_size, projection_dim), normalised keys
    position: Tensor  # index of the oldest key

    def __init__(self, recipe: MocoRecipe, initialise: bool = True) -> None:
        super().__init__(recipe, initialise)
        shape = (recipe.moco.queue_size, recipe.moco.projection_dim)
        random = torch.randn(shape, generator=torch.Generator().manual_seed(recipe.seed))  # equal in all processes
        self.register_buffer("queue", F.normalize(random, dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def build(recipe: MocoRecipe, initialise: bool = True) -> MoCo:
        model = MoCo(recipe.model.name, recipe.data.size or 0, recipe.moco.projection_dim)
        if initialise:
            for encoder in (model.encoder, model.slow[0]):
                initialise_encoder(encoder, recipe.model)
        return model

    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        section, rank = self.recipe.moco, dist.get_rank() if is_distributed() else 0
        self.model.update_momentum_encoder(section.momentum)
        first, second = images[0::2], images[1::2]
        photos = len(first)
        groups = max(1, photos // section.norm_batch_size)
        queries = torch.cat([self.model(group) for group in first.chunk(groups)])
        views = _gathered(second)  # the sampler gives consecutive photos of a step to each process
        of_step, stride, own = views.flatten(0, 1), groups * len(views), range(rank * groups, (rank + 1) * groups)
        keys = _gathered(torch.stack([self.model.keys(of_step[group::stride]) for group in own]))
        keys = keys.flatten(0, 1).transpose(0, 1).flatten(0, 1)  # in the order of the step
        positive = (queries * keys[rank * photos : (rank + 1) * photos]).sum(1, keepdim=True)
        logits = torch.cat([positive, queries @ self.queue.T.clone()], 1) / section.temperature
        target = torch.zeros(photos, dtype=torch.int64, device=logits.device)
        self._enqueue(keys)
        return {"contrast": F.cross_entropy(logits, target)}

    def _enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys."""
        size = len(self.queue)
        keys = keys[-size:]
        index = (self.position + torch.arange(len(keys), device=keys.device)) % size
        self.queue[index] = keys.to(self.queue.dtype)
        self.position.add_(len(keys)).remainder_(size)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        similarity = self.model(batch.images) @ self.model.keys(batch.images.flip(3)).T
        correct = similarity.argmax(1) == torch.arange(len(similarity), device=similarity.device)
        return {"retrieval_accuracy": correct[~batch.replaced].float()}


def _gathered(x: Tensor) -> Tensor:
    """Stack the tensors of all processes: (N, …) → (processes, N, …), without gradient."""
    if not is_distributed():
        return x[None]
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.stack(parts)

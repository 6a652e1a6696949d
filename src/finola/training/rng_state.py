"""Random generator states of every process, stored in checkpoints as tensors and plain numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer


class RandomState(Callback):
    """Seed every process from (seed, rank) at the start of a run, and restore generator states on resume."""

    state_key = "RandomState"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._loaded: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        states = [] if self._loaded is None else self._loaded["ranks"]
        if trainer.global_rank < len(states):
            restore(states[trainer.global_rank])
        else:
            seed_all(self.seed + 7919 * (trainer.global_rank + 1) + trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        own = capture()
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return {"ranks": [own]}
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, own)
        return {"ranks": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture() -> dict[str, Any]:
    """Return the generator states of this process as tensors, numbers and lists."""
    version, internal, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
        "numpy": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
        "numpy_rest": [int(numpy["state"]["pos"]), int(numpy["has_gauss"]), float(numpy["gauss"])],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore generator states returned by `capture`."""
    torch.set_rng_state(state["torch"].cpu())
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(("MT19937", state["numpy"].cpu().numpy().astype(np.uint32), *state["numpy_rest"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())

"""Exponential moving average (EMA) of the weights, validated and exported if `trainer.ema` is set."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from finola.errors import CorruptFileError
from finola.training.initial_weights import same_shapes

KEY = "EMA"


class EMA(Callback):
    """Update mean ← d·mean + (1 − d)·weights after every step, where d increases from about 0.1 to `decay`.

    Validation uses the averaged weights. Checkpoints contain both.
    """

    state_key = KEY

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.mean: dict[str, Tensor] = {}
        self._trained_weights: dict[str, Tensor] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights = _weights(pl_module)
        loaded = self.mean or weights
        if not same_shapes(loaded, weights):
            raise CorruptFileError(
                "The EMA weights in the checkpoint do not match the names and shapes of the model's weights."
            )
        self.mean = {name: loaded[name].detach().clone().to(value.device) for name, value in weights.items()}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step == self.steps:  # gradients are still being accumulated
            return
        self.steps = trainer.global_step
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, value in _weights(pl_module).items():
            if value.is_floating_point():
                self.mean[name].lerp_(value, 1 - decay)
            else:
                self.mean[name].copy_(value)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.mean:
            self._trained_weights = {name: value.detach().clone() for name, value in _weights(pl_module).items()}
            _load(pl_module, self.mean)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._trained_weights:
            _load(pl_module, self._trained_weights)
            self._trained_weights = {}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "mean": self.mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.mean = state_dict["steps"], state_dict["mean"]


def _weights(module: LightningModule) -> dict[str, Tensor]:
    model = module.model
    assert isinstance(model, nn.Module)
    return model.state_dict()


@torch.no_grad()
def _load(module: LightningModule, weights: dict[str, Tensor]) -> None:
    for name, value in _weights(module).items():
        value.copy_(weights[name])

"""Callbacks: time limit, exponential moving average of the weights, random generator states, sample images.

Two of them replace callbacks of Lightning. Its `Timer` reads `time.monotonic` directly, so tests cannot inject a clock,
and it does not share the time of rank 0, on which `schedule.clock=time` depends. Its `EMAWeightAveraging` averages
every buffer of the task, MoCo's queue of keys included, and restores the trained weights before
`on_validation_epoch_end`, where AP, health metrics and sample images are computed.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from finola.errors import CorruptFileError
from finola.image_io import save_photo
from finola.training.initial_weights import same_shapes
from finola.training.sharding import divide_like, gather


def now() -> float:
    """Return monotonic time in seconds. All training code uses this function, so that tests can replace it."""
    return time.monotonic()


class Clock(Callback):
    """Accumulate wall-clock time over all parts of a resumed run and stop training at the time limit.

    With several processes, the time of rank 0 is used everywhere.
    """

    state_key = "Clock"

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._previous = 0.0
        self._start: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, including validation."""
        return self._previous + (0.0 if self._start is None else now() - self._start)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = now()
        self._update(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._update(trainer, pl_module)

    def _update(self, trainer: Trainer, pl_module: LightningModule) -> None:
        share = self.elapsed / self.limit
        if trainer.world_size > 1:
            share = float(trainer.strategy.broadcast(share))
        pl_module.share_of_time = share  # type: ignore[assignment]
        if share >= 1:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed": self.elapsed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._previous = float(state_dict["elapsed"])


EMA_KEY = "EMA"


class EMA(Callback):
    """Update mean ← d·mean + (1 − d)·weights after every step, where d increases from about 0.1 to `decay`.

    Validation uses the averaged weights. Checkpoints contain both.
    """

    state_key = EMA_KEY

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.mean: dict[str, Tensor] = {}
        self._trained_weights: dict[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights = _weights(pl_module)
        loaded = self.mean or weights
        if not same_shapes(loaded, weights):
            raise CorruptFileError(
                "The EMA weights in the checkpoint do not match the names and shapes of the model's weights."
            )
        self.mean = {name: divide_like(loaded[name].detach().clone(), value) for name, value in weights.items()}

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
        return {"steps": self.steps, "mean": {name: gather(value) for name, value in self.mean.items()}}

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


class SampleImages(Callback):
    """Save the first validation photos above their reconstructions, computed with the validated weights."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder / "samples", count

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        samples = getattr(pl_module, "samples", None)
        if not trainer.is_global_zero or samples is None or not self.count:
            return
        images = samples[: self.count]
        sheet = contact_sheet(images, pl_module.sample_images(images))  # type: ignore[operator]
        self.folder.mkdir(parents=True, exist_ok=True)
        save_photo(sheet, self.folder / f"step-{trainer.global_step:07d}.png")
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image("samples", sheet, trainer.global_step)
            elif hasattr(logger, "log_image"):
                logger.log_image("samples", [sheet], step=trainer.global_step)


def contact_sheet(originals: Tensor, reconstructions: Tensor, gap: int = 2) -> Tensor:
    """Arrange a row of originals above a row of reconstructions on white: (3, H, W) in [0, 1].

    >>> contact_sheet(torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16)).shape
    torch.Size([3, 34, 70])
    """
    count, _, height, width = originals.shape
    sheet = torch.ones(3, 2 * height + gap, count * (width + gap) - gap)
    for row, images in enumerate((originals, reconstructions)):
        for column, image in enumerate(images.detach().float().cpu().clamp(0, 1)):
            top, left = row * (height + gap), column * (width + gap)
            sheet[:, top : top + height, left : left + width] = image
    return sheet

"""The state of a run: everything that training changes, and so everything that a checkpoint stores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from finola.errors import CorruptFileError
from finola.recipes.sections import seconds
from finola.training.data import Photos
from finola.training.devices import divide_like, gather, gather_objects, seed_all, unshard
from finola.training.init import same_shapes
from finola.training.optim import build_optimiser, lr_factor
from finola.training.tasks.base import Diverged, Task

if TYPE_CHECKING:
    from finola.recipes.recipe import Recipe

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
COUNTERS = ("step", "epoch", "batch", "seconds", "best", "best_step", "validated_step", "metrics")


class State:
    """Weights, optimiser, average of the weights, position in the data, time and metrics of a run.

    `task` is the module itself, `module` the same wrapped by Fabric, which synchronises gradients and sets the
    precision; `stepping` is the wrapped optimiser.
    """

    def __init__(self, fabric: Fabric, recipe: Recipe, task: Task, photos: Photos) -> None:
        self.fabric, self.recipe, self.photos, self.task = fabric, recipe, photos, task
        self.module = fabric.setup_module(task)
        self.optimiser = build_optimiser(task.model, recipe, on_gpu=fabric.device.type == "cuda")
        self.stepping: Any = fabric.setup_optimizers(self.optimiser)
        self._peaks = [group["lr"] for group in self.optimiser.param_groups]
        self._factor = lr_factor(recipe.schedule, photos.steps_per_epoch)
        self.average = Average(recipe.trainer.ema_decay, task) if recipe.trainer.ema_decay is not None else None
        self.step = self.epoch = self.batch = 0  # optimisation steps, epochs, and batches of this epoch that are done
        self.seconds = 0.0  # of training so far, on rank 0
        self.best: float | None = None
        self.best_step, self.validated_step = 0, -1
        self.metrics: dict[str, float] = {}  # of the last validation
        self._bad = torch.zeros(2, dtype=torch.int64, device=fabric.device)  # the step, and 1 for loss, 2 for gradient

    @property
    def share_of_time(self) -> float:
        """Used part of the time limit; 0 without a limit."""
        limit = self.recipe.trainer.max_time
        return self.seconds / seconds(limit) if limit is not None else 0.0

    @property
    def finished(self) -> bool:
        """Whether the number of epochs, the number of steps or the time limit is reached."""
        steps, epochs = self.recipe.trainer.max_steps, self.recipe.schedule.epochs
        return self.epoch >= epochs or (steps is not None and self.step >= steps) or self.share_of_time >= 1

    def set_learning_rates(self) -> None:
        """Set the learning rates of the next step."""
        factor = self._factor(self.step, self.share_of_time)
        for group, peak in zip(self.optimiser.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor

    def note_finite(self, loss: Tensor, norm: Tensor) -> None:
        """Note whether the loss and the norm of the gradients are finite, without waiting for the device.

        On the CPU, Diverged is raised at once, before the weights change.
        """
        scaled = self.recipe.trainer.precision == "16-mixed"  # the gradient scaler skips infinite gradients
        kind = torch.where(loss.isfinite(), 0 if scaled else 2 * (~norm.isfinite()).long(), 1)
        found = torch.stack([torch.full_like(kind, self.step + 1), kind])
        self._bad = torch.where(self._bad[1] == 0, found * (kind > 0), self._bad)
        if self._bad.is_cpu:
            self.check_finite()

    def check_finite(self) -> None:
        """Raise Diverged if a loss or gradient was not finite. An accelerator must finish its work first."""
        step, kind = self._bad.tolist()
        if kind:
            raise Diverged("loss" if kind == 1 else "gradient", step, self.epoch + 1)

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Evaluation mode with the whole, averaged weights. Afterwards, everything is as before."""
        modes = {module: module.training for module in self.task.modules()}
        generators = capture()
        for buffer in self.task.buffers() if self.fabric.world_size > 1 else ():
            torch.distributed.broadcast(buffer, src=0)  # running statistics differ among processes
        trained = self.average.exchange(self.task) if self.average is not None else None
        unshard(self.task, whole=True)
        self.task.eval()
        try:
            with torch.no_grad(), self.fabric.autocast():
                yield
        finally:
            unshard(self.task, whole=False)
            if trained is not None:
                load_weights(self.task, trained)
            for module, mode in modes.items():
                module.training = mode
            restore(generators)

    def note(self, metrics: dict[str, float]) -> bool:
        """Store the metrics of a validation, and return whether they are the best so far."""
        self.metrics, self.validated_step = metrics, self.step
        value = metrics.get(f"val/{self.task.monitor}")
        if value is None or (self.best is not None and value <= self.best):
            return False
        self.best, self.best_step = value, self.step
        return True

    def state_dict(self) -> dict[str, Any]:
        """The content of a checkpoint: whole tensors on the CPU, alike for one process, DDP and FSDP."""
        optimiser = None
        if self.optimiser.state:  # PyTorch would take a step to fill an empty one
            optimiser = get_optimizer_state_dict(self.task, self.optimiser, options=WHOLE)
        return {name: getattr(self, name) for name in COUNTERS} | {
            "task": get_model_state_dict(self.task, options=WHOLE),
            "optimiser": optimiser,
            "average": None if self.average is None else self.average.state_dict(),
            "random": gather_objects(capture()),  # of every rank
        }

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Continue from a checkpoint. Ranks that it does not know get new random numbers."""
        set_model_state_dict(self.task, content["task"], options=WHOLE)
        if content["optimiser"] is not None:
            set_optimizer_state_dict(self.task, self.optimiser, content["optimiser"], options=WHOLE)
        if self.average is not None:
            self.average.load_state_dict(content["average"], self.task)
        for name in COUNTERS:
            setattr(self, name, content[name])
        if self.fabric.global_rank < len(content["random"]):
            restore(content["random"][self.fabric.global_rank])
        else:
            self.seed()

    def seed(self) -> None:
        """Seed this process by the seed of the recipe, its rank and the step."""
        seed_all(self.recipe.seed + 7919 * (self.fabric.global_rank + 1) + self.step)


class Average:
    """Exponential moving average of weights and buffers: mean ← d·mean + (1 − d)·weights, d rising to `decay`.

    torch.optim.swa_utils.AveragedModel gives the same numbers, but reads its counter from the device in every step and
    copies the module, which FSDP has divided.
    """

    def __init__(self, decay: float, task: Task) -> None:
        self.decay = decay
        self.mean = {name: value.detach().clone() for name, value in task.model.state_dict().items()}

    @torch.no_grad()
    def update(self, task: Task, step: int) -> None:
        """Add the weights after `step` steps; d is at most (1 + step) / (10 + step)."""
        weights = task.model.state_dict()
        averaged = [name for name, value in weights.items() if value.is_floating_point()]
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([self.mean[name] for name in averaged], [weights[name] for name in averaged], weight)
        for name in weights.keys() - set(averaged):
            self.mean[name].copy_(weights[name])

    def exchange(self, task: Task) -> dict[str, Tensor]:
        """Set the weights of a task to the average, and return a copy of the trained ones."""
        trained = {name: value.detach().clone() for name, value in task.model.state_dict().items()}
        load_weights(task, self.mean)
        return trained

    def state_dict(self) -> dict[str, Tensor]:
        """The average as whole tensors."""
        return {name: gather(value).cpu() for name, value in self.mean.items()}

    def load_state_dict(self, mean: dict[str, Tensor], task: Task) -> None:
        """Continue from the average in a checkpoint."""
        weights = task.model.state_dict()
        if not same_shapes(mean, weights):
            raise CorruptFileError(
                "The EMA weights in the checkpoint do not match the names and shapes of the model's weights."
            )
        self.mean = {name: divide_like(value, weights[name]) for name, value in mean.items()}


@torch.no_grad()
def load_weights(task: Task, weights: dict[str, Tensor]) -> None:
    """Copy weights and buffers into the model of a task."""
    for name, value in task.model.state_dict().items():
        value.copy_(weights[name])


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

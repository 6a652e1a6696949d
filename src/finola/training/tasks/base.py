"""Base class of tasks: a model, its losses, and the metrics that validate it."""

from __future__ import annotations

import importlib
import math
from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar

from torch import Tensor, nn

from finola.data import Batch, PhotoDataset
from finola.errors import InputError
from finola.metrics import quality
from finola.recipes.recipe import Recipe
from finola.training.data import Photos
from finola.training.devices import gather_objects
from finola.training.init import resolve_encoder
from finola.training.optim import freeze, matches


class Diverged(RuntimeError):
    """Raised when a loss, gradient or q is not finite. No checkpoint contains weights after this step."""

    def __init__(self, what: str, step: int, epoch: int) -> None:
        super().__init__(f"the {what} is NaN or infinite at step {step} (epoch {epoch})")
        self.step = step


class Task(nn.Module):
    """A model and its training objective. Subclasses define `build`, `losses` and `measure`."""

    monitor: ClassVar[str] = "psnr"  # validation metric that selects the best checkpoint
    model: nn.Module
    samples: Tensor | None = None  # first validation photos, for sample images

    def __init__(self, recipe: Any, initialise: bool = True) -> None:
        super().__init__()
        self.recipe = recipe
        self.model = self.build(recipe, initialise)

    @staticmethod
    @abstractmethod
    def build(recipe: Any, initialise: bool = True) -> nn.Module:
        """Build the model of a recipe. Without `initialise`, the weights of `model.weights` are not read."""

    @classmethod
    def open(cls, recipe: Any) -> tuple[Recipe, Photos]:
        """Open the data of a run, and return the recipe completed with the classes of the data."""
        return recipe, Photos(recipe)

    def prepare(self, photos: Photos) -> None:
        """Set what is measured on the training photos, once before the first step of a run."""

    @abstractmethod
    def losses(self, images: Tensor, batch: Any) -> dict[str, Tensor]:
        """Named scalar losses of one batch; their sum is minimised."""

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """The losses of a batch, called through the wrapper that synchronises gradients."""
        return self.losses(batch.images, batch)

    @abstractmethod
    def measure(self, batch: Any) -> dict[str, Tensor]:
        """Validation metrics of one batch, each with a value per image."""

    def validate(self, batches: Iterator[Any], dataset: PhotoDataset) -> dict[str, float]:
        """Validation metrics `val/…` of the batches of `dataset`: means over the images of all processes."""
        measured = [
            (name, values.tolist())
            for batch in self.keeping_samples(batches)
            for name, values in self.measure(batch).items()
        ]
        collected: dict[str, list[float]] = {}
        for name, values in chain(*gather_objects(measured)):
            collected.setdefault(name, []).extend(values)
        return {f"val/{name}": sum(values) / max(1, len(values)) for name, values in collected.items()}

    def keeping_samples(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and keep the images of the first one for sample images."""
        for number, batch in enumerate(batches):
            if number == 0:
                self.samples = batch.images
            yield batch

    def sample_images(self, images: Tensor) -> Tensor:
        """Compute the sample images shown below the validation photos, (N, 3, H, W)."""
        drawn: Tensor = self.model(images)
        return drawn

    def describe_loss(self, loss: float) -> str:
        """Format a training loss for the progress bar: as PSNR if it is a mean squared error on [0, 1]."""
        return f"{-10 * math.log10(max(loss, 1e-12)):.2f} dB" if self.monitor == "psnr" else f"loss {loss:.3g}"

    def set_training_mode(self) -> None:
        """Training mode, except for modules with only frozen parameters: their batch-norm statistics stay fixed."""
        self.train()
        patterns = self.recipe.model.frozen
        for name, module in self.model.named_modules() if patterns else ():
            inside = [f"{name}.{key}".removeprefix(".") for key, _ in module.named_parameters()]
            if inside and all(matches(key, patterns) for key in inside):
                module.eval()


def measure_images(out: Tensor, batch: Batch) -> dict[str, Tensor]:
    """PSNR, SSIM and MS-SSIM of reconstructions, without photos that replace unreadable ones."""
    found = quality(out.float(), batch.images.float())
    return {name: values[~batch.replaced] for name, values in found.items()}


def build_task(recipe: Recipe, initialise: bool = True) -> Task:
    """Build the task of a recipe. Without `initialise`, the weights of `model.weights` are not read."""
    recipe = resolve_encoder(recipe)
    task = task_class(recipe)(recipe, initialise)
    freeze(task.model, recipe.model.frozen)
    if recipe.model.grad_checkpointing:
        supporting = [part for part in (task.model, task.model.encoder) if hasattr(part, "set_grad_checkpointing")]
        if not supporting:
            raise InputError(
                "model.grad_checkpointing is true, but this encoder does not support gradient checkpointing. Remove it."
            )
        supporting[0].set_grad_checkpointing()  # type: ignore[operator]
    return task


def task_class(recipe: Recipe) -> type[Task]:
    """Class of the task of a recipe."""
    module, _, name = recipe.module.partition(":")
    kind: type[Task] = getattr(importlib.import_module(module), name)
    return kind

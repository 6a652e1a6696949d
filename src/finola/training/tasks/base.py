"""Base class of tasks: optimiser and schedule of the recipe, validation metrics, and detection of NaN and infinity."""

from __future__ import annotations

import importlib
import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torchmetrics import MeanMetric

from finola.config import nearest
from finola.data import Batch
from finola.errors import InputError
from finola.training.config import Recipe
from finola.training.data_module import Photos
from finola.training.initial_weights import freeze, is_frozen, resolve_encoder
from finola.training.optim import build_optimiser, lr_factor
from finola.training.sharding import gather, shard


class Diverged(RuntimeError):
    """Raised when a loss, gradient or q is not finite. The weights are those before this step."""

    def __init__(self, what: str, step: int, epoch: int) -> None:
        super().__init__(f"the {what} is NaN or infinite at step {step} (epoch {epoch})")
        self.step = step


class Task(LightningModule):
    """A model and its training objective. Subclasses define `build`, `losses` and `validation_step`."""

    metric_names: ClassVar[tuple[str, ...]] = ()  # validation metrics that are means over images
    monitor: ClassVar[str] = "psnr"  # validation metric that selects the best checkpoint
    model: nn.Module
    samples: Tensor | None = None  # first validation photos, for sample images
    share_of_time: float = 0.0  # used fraction of trainer.max_time, set by the Clock callback
    skip_validation: bool = False  # set when a signal stops the run during validation

    def __init__(self, recipe: Any, initialise: bool = True) -> None:
        super().__init__()
        self.recipe = recipe
        # Lightning's own mean over processes would truncate the number of images to an integer per process.
        self.metrics = nn.ModuleDict({name: MeanMetric() for name in self.metric_names})
        self._finite = torch.tensor(True)
        self.model = self.build(recipe, initialise)

    @staticmethod
    @abstractmethod
    def build(recipe: Any, initialise: bool = True) -> nn.Module:
        """Build the model of a recipe. Without `initialise`, the weights of `model.weights` are not read."""

    def configure_model(self) -> None:
        """Divide the parameters among the processes if the strategy is FSDP, which is the one with a device mesh."""
        if self.device_mesh is not None and not isinstance(self, FSDPModule):
            shard(self, self.device_mesh["data_parallel"])

    def on_train_start(self) -> None:
        """Set modules with only frozen parameters to evaluation mode, to keep their batch-norm statistics fixed."""
        patterns = self.recipe.model.frozen
        for name, module in self.model.named_modules() if patterns else ():
            inside = [f"{name}.{key}".removeprefix(".") for key, _ in module.named_parameters()]
            if inside and all(is_frozen(key, patterns) for key in inside):
                module.eval()

    @classmethod
    def open(cls, recipe: Any) -> tuple[Recipe, Photos]:
        """Open the data of a run, and return the recipe completed with the classes of the data."""
        return recipe, Photos(recipe)

    def prepare(self, photos: Photos) -> None:
        """Set what is measured on the training photos, once before the first step of a run."""

    @abstractmethod
    def losses(self, images: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Named scalar losses of one batch; their sum is minimised."""

    def sample_images(self, images: Tensor) -> Tensor:
        """Compute the sample images shown below the validation photos, (N, 3, H, W)."""
        drawn: Tensor = self.model(images)
        return drawn

    def describe_loss(self, loss: float) -> str:
        """Format a training loss for the progress bar: as PSNR if it is a mean squared error on [0, 1]."""
        return f"{-10 * math.log10(max(loss, 1e-12)):.2f} dB" if self.monitor == "psnr" else f"loss {loss:.3g}"

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        try:
            losses = self.losses(batch.images, batch)
        except ValueError as error:
            if "NaN" not in str(error):
                raise
            raise self._diverged("vector q") from error
        loss = torch.stack(list(losses.values())).sum()
        self._finite = loss.detach().isfinite()
        logged = {"train/loss": loss.detach()}
        if len(losses) > 1:
            logged |= {f"train/{name}": value.detach() for name, value in losses.items()}
        self.log_dict(logged, batch_size=len(batch.images), sync_dist=True)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise Diverged for a non-finite loss or gradient, before the weights change.

        Gradients are already synchronised, so all processes raise together.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = gather(torch.nn.utils.get_total_norm(gradients, foreach=None))
        scaled = self.recipe.trainer.precision == "16-mixed"  # the gradient scaler skips infinite gradients
        if not bool(self._finite):
            raise self._diverged("loss")
        if not scaled and not bool(norm.isfinite()):
            raise self._diverged("gradient")
        rates = {f"lr/{group['name']}": float(group["lr"]) for group in optimizer.param_groups}
        self.log_dict({"train/gradient_norm": norm, **rates})

    def configure_optimizers(self) -> Any:
        optimiser = build_optimiser(self.model, self.recipe)
        # Lightning's estimated_stepping_batches would open the loader before the resumed position is restored.
        per_epoch = self.trainer.datamodule.steps_per_epoch  # type: ignore[attr-defined]
        factor = lr_factor(self.recipe.schedule, per_epoch, lambda: self.share_of_time)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def log_metric(self, name: str, values: Tensor) -> None:
        """Log a validation metric given per image, averaged over the images of all processes."""
        if name not in self.metrics:
            raise ValueError(f"Unknown metric {name!r}: {nearest(name, self.metrics)}")
        self.metrics[name].update(values)  # type: ignore[operator]
        self.log(f"val/{name}", self.metrics[name], on_step=False, on_epoch=True)  # type: ignore[arg-type]

    def _diverged(self, what: str) -> Diverged:
        return Diverged(what, self.trainer.global_step + 1, self.trainer.current_epoch + 1)


def build_task(recipe: Recipe, initialise: bool = True) -> Task:
    """Build the Lightning module of a recipe. Without `initialise`, the weights of `model.weights` are not read."""
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

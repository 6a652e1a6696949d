"""One process or many, by configuration: what Lightning's Trainer is told about devices, nodes and how they speak."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
import torch.distributed
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from finola.training.config import TrainerSection


def trainer_options(section: TrainerSection) -> dict[str, Any]:
    """Accelerator, devices, nodes and strategy; several processes are DDP unless the recipe says otherwise."""
    devices = count_devices(section)
    strategy: Any = section.strategy
    if strategy == "ddp" or (strategy == "auto" and devices * section.nodes > 1):
        # Running statistics are shared before validation, not in every step: ranks may have unequal last batches there.
        known = inspect.signature(DistributedDataParallel).parameters
        option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        strategy = DDPStrategy(**{option: False})  # type: ignore[arg-type]
    return {
        "accelerator": section.accelerator,
        "devices": devices,
        "num_nodes": section.nodes,
        "strategy": strategy,
        "sync_batchnorm": synchronises(section),
        # Every rank's loader takes its own share already.
        "use_distributed_sampler": False,
    }


def synchronises(section: TrainerSection) -> bool:
    """Whether batch norms use the statistics of all processes' images, as one process with the whole batch would.

    PyTorch's SyncBatchNorm needs CUDA. `SharedBuffers` says so where batch norms are not synchronised.
    """
    several = count_devices(section) * section.nodes > 1
    return several and _on_gpus(section) and section.sync_batchnorm is not False


def is_first_process() -> bool:
    """Whether this process is the one that speaks, by what the launcher said before anything was set up."""
    return getattr(rank_zero_only, "rank", None) in (None, 0)


def say(sentence: str) -> None:
    """Print a sentence on standard error, from the first process only."""
    if is_first_process():
        print(sentence, file=sys.stderr, flush=True)


def count_devices(section: TrainerSection) -> int:
    """Processes on this node: as the recipe says, or one per GPU, or one."""
    if section.devices != "auto":
        return int(section.devices)
    return torch.cuda.device_count() if _on_gpus(section) else 1


def _on_gpus(section: TrainerSection) -> bool:
    return section.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def environment_plugins() -> list[Any]:
    """On SLURM a signal writes an ordinary checkpoint and ends the job; the job script resumes it."""
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def _has_own_statistics(module: nn.Module) -> bool:
    batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    return batch_norm and module.training


class SharedBuffers(Callback):
    """Before validation every process takes the first one's running statistics, which are the ones that get saved.

    Says when training starts where batch norms are not synchronised, so that more processes train differently.
    """

    def __init__(self) -> None:
        self._said = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._said or trainer.world_size == 1:
            return
        self._said = True
        count = sum(_has_own_statistics(module) for module in pl_module.modules())
        if count:
            say(
                f"{count} batch norms take their statistics from each process's own images, so this run is not the "
                f"same as one with fewer processes: SyncBatchNorm needs CUDA and trainer.sync_batchnorm."
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1 and torch.distributed.is_initialized():
            for buffer in pl_module.buffers():
                torch.distributed.broadcast(buffer, src=0)

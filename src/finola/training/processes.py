"""Distributed training: number of processes, rank 0, and batch-norm synchronisation."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from finola.layers import BATCH_NORMS
from finola.training.sections import TrainerSection


def uses_sync_batchnorm(section: TrainerSection) -> bool:
    """Whether batch norms compute statistics over all processes, which equals one process with the whole batch.

    PyTorch's SyncBatchNorm needs CUDA. `SharedBuffers` prints a warning if batch norms are not synchronised.
    """
    several = count_devices(section) * section.num_nodes > 1
    return several and _on_gpus(section) and section.sync_batchnorm is not False


def is_first_process() -> bool:
    """Whether this process has rank 0 according to the launcher. Works before the process group is initialised."""
    return getattr(rank_zero_only, "rank", None) in (None, 0)


def print_on_rank_zero(message: str) -> None:
    """Print a message on standard error in the process of rank 0 only."""
    if is_first_process():
        print(message, file=sys.stderr, flush=True)


def count_devices(section: TrainerSection) -> int:
    """Number of processes per node: as configured, otherwise one per GPU, or one on the CPU."""
    if section.devices != "auto":
        return int(section.devices)
    return torch.cuda.device_count() if _on_gpus(section) else 1


def _on_gpus(section: TrainerSection) -> bool:
    return section.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def environment_plugins() -> list[Any]:
    """Disable requeueing on SLURM: a signal writes a checkpoint and ends the job, and the job script resumes it."""
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def _is_unsynchronised(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORMS) and not isinstance(module, nn.SyncBatchNorm) and module.training


class SharedBuffers(Callback):
    """Broadcast the buffers of rank 0, which are those saved in checkpoints, to all processes before validation.

    Prints a warning at the start of training if batch norms are not synchronised, because results then depend on the
    number of processes.
    """

    def __init__(self) -> None:
        self._warned = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._warned or trainer.world_size == 1:
            return
        self._warned = True
        count = sum(_is_unsynchronised(module) for module in pl_module.modules())
        if count:
            print_on_rank_zero(
                f"{count} batch norms compute statistics per process, so results depend on the number of processes. "
                "SyncBatchNorm needs CUDA and trainer.sync_batchnorm=true."
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1 and torch.distributed.is_initialized():
            for buffer in pl_module.buffers():
                torch.distributed.broadcast(buffer, src=0)

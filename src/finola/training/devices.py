"""Devices and processes of a run: `lightning.fabric` from a recipe, and reductions over all processes."""

from __future__ import annotations

import inspect
import logging
import os
import random
import sys
import time
import warnings
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from finola.errors import InputError
from finola.layers import BATCH_NORMS
from finola.recipes.sections import TrainerSection

T = TypeVar("T", bound=nn.Module)


clock = time.monotonic
"""The clock of all training code; tests replace it."""


def now() -> float:
    """Return monotonic time in seconds."""
    return clock()


def build_fabric(section: TrainerSection) -> Fabric:
    """Build the Fabric of a run: accelerator, devices, precision, and DDP or FSDP for several processes.

    On CUDA, matrix products of float32 tensors use TF32.
    """
    if section.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise InputError(
            f"trainer.accelerator is {section.accelerator}, but PyTorch finds no GPU. Use trainer.accelerator=auto."
        )
    torch.use_deterministic_algorithms(section.deterministic)
    devices, on_gpus = count_devices(section), _on_gpus(section)
    processes = devices * section.num_nodes
    strategy: Any = "auto"
    if section.strategy == "fsdp":
        strategy = ModelParallelStrategy(_shard, data_parallel_size=processes, tensor_parallel_size=1)
    elif section.strategy == "ddp" or processes > 1:
        # Running statistics are broadcast before validation; ranks may have unequal numbers of batches in it.
        known = inspect.signature(DistributedDataParallel).parameters  # newer versions of PyTorch renamed the option
        option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: Any = {option: False}
        strategy = DDPStrategy(**options)
    if on_gpus:
        torch.set_float32_matmul_precision("high")
        print_on_rank_zero("Matrix products of float32 tensors use TF32.")
    for name in ("lightning.fabric", "lightning.pytorch"):  # both report the processes that are started
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*available but not used.*")
        return Fabric(
            accelerator=section.accelerator,
            devices=devices,
            num_nodes=section.num_nodes,
            strategy=strategy,
            precision=precision_of(section),  # type: ignore[arg-type]
        )


def _shard(task: Any, mesh: Any) -> Any:
    """Divide the parameters of a task among processes. During a step and during validation they are whole.

    The task is one unit, because its parts are not called as modules only: propagation reads the matrices A and B.
    """
    return fully_shard(task, mesh=mesh["data_parallel"])


def precision_of(section: TrainerSection) -> str:
    """Precision of a run. `auto` is bf16-mixed on CUDA and float32 elsewhere.

    >>> precision_of(TrainerSection(precision="auto", accelerator="cpu"))
    '32-true'
    """
    if section.precision != "auto":
        return section.precision
    return "bf16-mixed" if _on_gpus(section) else "32-true"


def count_devices(section: TrainerSection) -> int:
    """Number of processes per node: as configured, otherwise one per GPU, or one on the CPU."""
    if section.devices != "auto":
        return int(section.devices)
    return torch.cuda.device_count() if _on_gpus(section) else 1


def _on_gpus(section: TrainerSection) -> bool:
    return section.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def synchronise_norms(task: T, section: TrainerSection) -> T:
    """Make batch norms compute statistics over all processes, which equals one process with the whole batch.

    PyTorch's SyncBatchNorm needs CUDA. A message reports batch norms that are not synchronised.
    """
    if count_devices(section) * section.num_nodes == 1:
        return task
    if _on_gpus(section) and section.sync_batchnorm is not False:
        return cast("T", nn.SyncBatchNorm.convert_sync_batchnorm(task))
    count = sum(
        isinstance(module, BATCH_NORMS) and not isinstance(module, nn.SyncBatchNorm) and module.training
        for module in task.modules()
    )
    if count:
        print_on_rank_zero(
            f"{count} batch norms compute statistics per process, so results depend on the number of processes. "
            "SyncBatchNorm needs CUDA and trainer.sync_batchnorm=true."
        )
    return task


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def is_first_process() -> bool:
    """Whether this process has rank 0 according to the launcher. Works before the process group is initialised."""
    return int(os.environ.get("RANK", getattr(rank_zero_only, "rank", None) or 0)) == 0


def print_on_rank_zero(message: str) -> None:
    """Print a message on standard error in the process of rank 0 only."""
    if is_first_process():
        print(message, file=sys.stderr, flush=True)


def is_distributed() -> bool:
    """Whether this process is one of several that communicate."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_objects(own: Any) -> list[Any]:
    """The objects of all processes, by rank."""
    if not is_distributed():
        return [own]
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, own)
    return objects


def gather(tensor: Tensor) -> Tensor:
    """The whole of a divided tensor; other tensors are returned unchanged. All processes must call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divide_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """Divide a whole tensor, identical in all processes, as `reference` is. All processes must call it together."""
    tensor = tensor.to(reference.device)
    if isinstance(tensor, DTensor) or not isinstance(reference, DTensor) or tensor.shape != reference.shape:
        return tensor
    return distribute_tensor(tensor, reference.device_mesh, reference.placements)


def unshard(task: nn.Module, whole: bool) -> None:
    """Make the parameters of a divided task whole, as validation needs them, or divide them again."""
    if isinstance(task, FSDPModule):
        task.unshard() if whole else task.reshard()

"""FSDP: division of a task's parameters among processes, and conversion between whole and divided tensors."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(task: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the parameters of a task, in place. During a step and during validation they are whole.

    The task is one unit, because its parts are not called as modules only: propagation reads the matrices A and B.
    """
    fully_shard(task, mesh=mesh)
    for method in ("training_step", "validation_step"):
        register_fsdp_forward_method(task, method)


def gather(tensor: Tensor) -> Tensor:
    """The whole of a divided tensor; other tensors are returned unchanged. All processes must call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divide_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """Divide a whole tensor, identical in all processes, as `reference` is. All processes must call it together."""
    tensor = tensor.to(reference.device)
    if isinstance(tensor, DTensor) or not isinstance(reference, DTensor) or tensor.shape != reference.shape:
        return tensor
    return distribute_tensor(tensor, reference.device_mesh, reference.placements)


def gather_optimiser(state: dict[str, Any]) -> dict[str, Any]:
    """State of an optimiser with whole tensors on the CPU, in the format of `Optimizer.state_dict`."""
    whole = {
        number: {key: gather(value).cpu() if isinstance(value, Tensor) else value for key, value in entry.items()}
        for number, entry in state["state"].items()
    }
    return state | {"state": whole}


def divide_optimiser(state: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
    """State of an optimiser whose tensors are divided as the parameters are."""
    parts = {
        number: {
            key: divide_like(value, parameters[number]) if isinstance(value, Tensor) else value
            for key, value in entry.items()
        }
        for number, entry in state["state"].items()
    }
    return state | {"state": parts}


class WholeWeights(Callback):
    """Make the parameters whole during validation, so that metrics of the weights and sample images can use them.

    It must be listed before the EMA callback, which exchanges the weights while they are divided.
    """

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, FSDPModule):
            pl_module.unshard()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, FSDPModule):
            pl_module.reshard()

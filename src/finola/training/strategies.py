"""Strategies of Lightning's Trainer: DDP and FSDP, whose processes are watched by a `RankMonitor`."""

from __future__ import annotations

import inspect
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from finola.training.monitor import RankMonitor
from finola.training.processes import count_devices, uses_sync_batchnorm
from finola.training.sections import TrainerSection
from finola.training.sharding import divide_like, divide_optimiser, gather, gather_optimiser


def trainer_options(section: TrainerSection, monitor: RankMonitor) -> dict[str, Any]:
    """Trainer options for accelerator, devices, nodes and strategy. The default for several processes is DDP."""
    devices = count_devices(section)
    processes = devices * section.num_nodes
    strategy: Any = section.strategy
    if strategy == "fsdp":
        strategy = MonitoredFSDP(monitor, processes)
    elif strategy == "ddp" or processes > 1:
        strategy = build_ddp(monitor)
    return {
        "accelerator": section.accelerator,
        "devices": devices,
        "num_nodes": section.num_nodes,
        "strategy": strategy,
        "sync_batchnorm": uses_sync_batchnorm(section),
        # The data loader already selects the samples of its rank.
        "use_distributed_sampler": False,
    }


def build_ddp(monitor: RankMonitor) -> DDPStrategy:
    """Build the DDP strategy."""
    # SharedBuffers synchronises running statistics before validation; during it, ranks may have unequal batches.
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return MonitoredDDP(monitor, **{option: False})


class MonitoredDDP(DDPStrategy):
    """DDP: every process has the whole model and a part of each batch."""

    def __init__(self, monitor: RankMonitor, **options: Any) -> None:
        super().__init__(**options)
        self.monitor = monitor

    def setup_environment(self) -> None:
        _adopt_processes(self, self.monitor)
        super().setup_environment()
        self.monitor.start(self.global_rank, self.world_size, self.broadcast)


class MonitoredFSDP(ModelParallelStrategy):
    """FSDP: parameters, gradients and optimiser state are divided among the processes.

    Lightning's `ModelParallelStrategy` with PyTorch's `fully_shard` (FSDP2) is used, because `FSDPStrategy` needs a GPU
    and wraps the first version, which PyTorch no longer develops. A checkpoint is one file with the whole state, the
    same as of DDP or of one process; so a run can be resumed with another strategy.
    """

    def __init__(self, monitor: RankMonitor, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False)
        self.monitor = monitor

    def setup_environment(self) -> None:
        _adopt_processes(self, self.monitor)
        super().setup_environment()
        self.monitor.start(self.global_rank, self.world_size, self.broadcast)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return self._on_rank_zero({key: gather(value) for key, value in self.lightning_module.state_dict().items()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return self._on_rank_zero(gather_optimiser(super(ModelParallelStrategy, self).optimizer_state(optimizer)))

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint in every process, which takes its part of the weights and of the optimiser state."""
        content: dict[str, Any] = self.checkpoint_io.load_checkpoint(self.broadcast(checkpoint_path))
        task = self.lightning_module
        assert task is not None
        own = task.state_dict()
        weights = {
            key: divide_like(value, own[key]) if key in own else value for key, value in content["state_dict"].items()
        }
        task.load_state_dict(weights)
        for optimiser, state in zip(self.optimizers, content["optimizer_states"], strict=True):
            parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
            optimiser.load_state_dict(divide_optimiser(state, parameters))
        return content

    def _on_rank_zero(self, state: dict[str, Any]) -> dict[str, Any]:
        """Only rank 0 writes a checkpoint; the others release what they gathered."""
        return state if self.is_global_zero else {}


def _adopt_processes(strategy: ParallelStrategy, monitor: RankMonitor) -> None:
    launcher: Any = strategy.launcher
    children = getattr(launcher, "procs", None)
    if children:
        monitor.adopt(children, strategy.node_rank * launcher.num_processes)

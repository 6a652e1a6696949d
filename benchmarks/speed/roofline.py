"""Roofline model: each operation takes as long as its arithmetic or its memory traffic, whichever is longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from speed.machine import convolution_backward_flops, timed

FREE = ("view", "expand", "permute", "transpose", "slice", "select", "detach", "alias", "unsqueeze", "squeeze", "t")
"""Operations that move no bytes."""


def bandwidth(device: torch.device, repeats: int = 8) -> float:
    """Bytes per second of adding one large tensor to another, the best of several: two are read, one is written."""
    a, b = torch.zeros(1 << 24, device=device), torch.zeros(1 << 24, device=device)
    out = torch.empty_like(a)
    return 3 * a.nbytes / min(timed(lambda: torch.add(a, b, out=out), device) for _ in range(repeats + 1))


class Roofline(TorchDispatchMode):
    """Counts FLOPs and bytes of every operation inside it, by kind.

    >>> with Roofline() as counted:
    ...     _ = torch.ones(4, 8) @ torch.ones(8, 2)
    >>> counted.flops["mm"], counted.bytes["mm"]
    (128, 224)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch annotates no argument of it
        self.flops: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = defaultdict(int)
        self.calls: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = func._schema.name.removeprefix("aten::").rstrip("_")
        if kind in FREE or func._schema.name.endswith(("_unsafe_view", "::view", "::reshape")):
            return result
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        moved = sum({id(t): t.nbytes for t in tensors if t.layout == torch.strided}.values())
        work = self._flops_of(func, args, kwargs or {}, result)
        kind = _kind(kind, args)
        self.flops[kind] += work
        self.bytes[kind] += moved
        self.calls.append((kind, work, moved))
        return result

    @staticmethod
    def _flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> int:
        if func.overloadpacket is torch.ops.aten.convolution_backward:
            gradient, images, weight = (tensor.shape for tensor in args[:3])
            return convolution_backward_flops(gradient, images, weight, *args[3:])
        count = flop_registry.get(func.overloadpacket)
        return int(count(*args, **kwargs, out_val=result)) if count else 0

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> dict[str, float]:
        """The least time by kind: every call takes as long as its arithmetic or its memory traffic, the longer."""
        times: dict[str, float] = defaultdict(float)
        for kind, work, moved in self.calls:
            times[kind] += max(work / flops_per_second, moved / bytes_per_second)
        return dict(times)


def bounds(work: Callable[[], object], seconds: float, flops_per_second: float, device: torch.device) -> dict[str, Any]:
    """How near a call of `seconds` comes to the roofline, and which kinds of operation make the most of it."""
    with Roofline() as counted:
        work()
    rate = bandwidth(device)
    times = counted.seconds(flops_per_second, rate)
    least = sum(times.values())
    arithmetic = sum(counted.flops.values()) / flops_per_second
    return {
        "bytes_per_second": rate,
        "roofline_seconds": least,
        "share_of_roofline": least / seconds,
        "arithmetic_seconds": arithmetic,
        "memory_bound_share": 1 - arithmetic / least,
        "kinds": {
            kind: {"seconds": time, "gflop": counted.flops[kind] / 1e9, "megabytes": counted.bytes[kind] / 1e6}
            for kind, time in sorted(times.items(), key=lambda entry: -entry[1])[:8]
        },
    }


def _kind(name: str, args: Any) -> str:
    """Depthwise convolutions apart from the others: next to no arithmetic for as many bytes."""
    if name.startswith("convolution"):
        weight = args[2] if name == "convolution_backward" else args[1]
        if weight.shape[1] == 1 and weight.shape[0] > 1:
            return f"depthwise {name}"
    return name

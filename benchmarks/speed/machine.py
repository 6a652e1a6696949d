"""GEMM throughput of the machine; FLOPs and peak tensor memory of a computation."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


def gemm_rate(device: torch.device, rows: int, channels: int, repeats: int = 8) -> float:
    """FLOP/s of the product (rows × C)·(C × C), the best of several: what every share is of.

    With rows = N·M·W it is the largest product that the recurrence's chain allows.
    """
    a, b = torch.randn(rows, channels, device=device), torch.randn(channels, channels, device=device)
    out = torch.empty(rows, channels, device=device)
    best = min(timed(lambda: torch.mm(a, b, out=out), device) for _ in range(repeats + 1))
    return 2 * rows * channels**2 / best


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, on an accelerator until it has really finished."""
    synchronise(device)
    begin = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - begin


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def flops(work: Callable[[], object]) -> int:
    """FLOPs (two per multiply–add) of the matrix products and convolutions in one call.

    >>> flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    own: dict[Any, Callable[..., int]] = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    counter = FlopCounterMode(display=False, custom_mapping=own)
    with counter:
        work()
    return counter.get_total_flops()


def convolution_backward_flops(
    gradient: Sequence[int], images: Sequence[int], weight: Sequence[int], *rest: Any, **_: Any
) -> int:
    """As many as forward for the images and for the weight; torch's own count forgets groups."""
    asked = rest[-1]  # (images, weight, bias)
    return 2 * math.prod(gradient) * math.prod(weight[1:]) * (int(asked[0]) + int(asked[1]))


class PeakMemory(TorchDispatchMode):
    """The most bytes that tensors made inside it held at any one time, on any device.

    >>> with PeakMemory() as memory:
    ...     for _ in range(3):
    ...         x = torch.zeros(1000) + 1
    >>> memory.peak  # the former x, zeros and the new x
    12000
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch annotates no argument of it
        self.held = self.peak = 0
        self._known: set[int] = set()
        self._given: set[int] = set()  # what came from outside, such as a parameter that a view is taken of

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self._note_given(leaf.untyped_storage())
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return result

    def _note_given(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known and key not in self._given:
            self._given.add(key)
            weakref.finalize(storage, self._given.discard, key)  # a later storage may get the same address

    def _count(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:  # packed for a library: no storage to ask
            self._hold(tensor, id(tensor), tensor.numel() * tensor.element_size())
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or key in self._given:
            return
        self._hold(storage, key, storage.nbytes())

    def _hold(self, owner: object, key: int, size: int) -> None:
        self._known.add(key)
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(owner, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


def peak_memory(work: Callable[[], object]) -> int:
    """Bytes that tensors made by one call held at most, beyond what was there before."""
    memory = PeakMemory()
    with memory:
        work()
    return memory.peak


def fit_line(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Slope, intercept and R² of the least-squares line.

    >>> [round(v, 6) for v in fit_line([1, 2, 3], [5, 7, 9])]
    [2.0, 3.0, 1.0]
    """
    xs, ys = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    slope = ((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum()
    intercept = ys.mean() - slope * xs.mean()
    rest = (ys - slope * xs - intercept).square().sum()
    return float(slope), float(intercept), float(1 - rest / (ys - ys.mean()).square().sum())

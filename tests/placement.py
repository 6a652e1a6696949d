"""A second device on every machine: tensors that are computed on the CPU but must not be mixed with tensors there."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = torch.device("meta")  # a name that torch accepts without hardware; the values are real, however


class Placed(Tensor):
    """Tensor on the second device, which stores its values in `value`, a tensor on the CPU."""

    value: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, value: Tensor) -> Placed:
        placed = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, value.shape, value.stride(), value.storage_offset(), dtype=value.dtype, device=ELSEWHERE
        )
        placed.value = value
        return placed

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called outside SecondDevice")


def _disable_gradients(context: Any) -> None:
    context.enabled_before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)


def _restore_gradients(context: Any, *_: object) -> None:
    torch.set_grad_enabled(context.enabled_before)


class SecondDevice(TorchDispatchMode):
    """Emulate a device named `ELSEWHERE`. An operation on tensors of both devices raises RuntimeError.

    Inference mode, which does not support such tensors, is replaced by `torch.no_grad`, and `torch.tensor` copies its
    values from the CPU.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and dynamo takes seconds to import

    def __enter__(self) -> SecondDevice:
        create = torch.tensor
        self._patches = ExitStack()
        enter = self._patches.enter_context
        enter(patch.multiple(torch.inference_mode, __enter__=_disable_gradients, __exit__=_restore_gradients))
        enter(patch.object(torch, "tensor", lambda data, *, device=None, **more: create(data, **more).to(device)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if not isinstance(tensor, Placed) and tensor.ndim]
        there = [tensor for tensor in tensors if isinstance(tensor, Placed)]
        if any(tensor.is_meta and not isinstance(tensor, Placed) for tensor in tensors):
            raise RuntimeError(f"{func}: a list of indices became a tensor without values; use a tensor of indices")
        # As on a GPU, copies cross devices, and indices may be on the CPU.
        crossing = func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy)
        indexing = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_)
        if here and there and not crossing and not (indexing and isinstance(args[0], Placed)):
            raise RuntimeError(f"{func} was called with tensors on two devices")
        target = device if device is not None else ELSEWHERE if there else torch.device("cpu")
        if func.overloadpacket is torch.ops.aten.copy_:
            target = args[0].device
        unwrapped = tree_map(lambda leaf: leaf.value if isinstance(leaf, Placed) else leaf, (args, kwargs))
        result = func(*unwrapped[0], **unwrapped[1])
        if func._schema.is_mutable and isinstance(args[0], Tensor):  # in place: the same object again
            return args[0]
        if target != ELSEWHERE:
            return result
        return tree_map(lambda leaf: Placed(leaf) if isinstance(leaf, Tensor) else leaf, result)

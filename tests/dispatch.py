"""Operations that PyTorch dispatches, counted and checked for waits for the device."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from finola.kernels.operators import OPERATORS as SIGNATURES

OPERATORS = {signature.partition("(")[0]: run for signature, run in SIGNATURES.items()}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}


class Dispatched(TorchDispatchMode):
    """Collect the names of all operations. Those whose result the host must wait for are `waits`.

    >>> import torch
    >>> with Dispatched() as dispatched:
    ...     found = bool(torch.zeros(1)), torch.rand(3)[torch.ones(3, dtype=torch.bool)]
    >>> dispatched.waits
    ['_local_scalar_dense', 'nonzero']
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if func.namespace == "finola":  # our operators run below this mode, so their operations are dispatched here
            with self:
                return OPERATORS[name](*args)
        self.names.append(name)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):  # indices may be masks
            masks = [index for index in args[1] if index is not None and not index.dtype.is_floating_point]
            self.names += ["nonzero" for index in masks if str(index.dtype) in ("torch.bool", "torch.uint8")]
        return func(*args, **(kwargs or {}))

    @property
    def waits(self) -> list[str]:
        return [name for name in self.names if name in WAITS]

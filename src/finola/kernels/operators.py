"""The recurrence as operators of PyTorch, opaque to torch.compile, with shapes on the meta device and gradients.

Gradients that are differentiated again are computed from the step-by-step form.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from finola.kernels.backward import grow_backward
from finola.kernels.forward import Matrices, Position, grow
from finola.kernels.stepwise import grow_stepwise, norm_linear
from finola.layers import without_autocast


def propagate_matrices(q: Tensor, matrices: Matrices, size: Position, starts: list[Position]) -> Tensor:
    """Mean of both orders, summed over the paths of q (N, M, C): z (N, H, W, C)."""
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, *matrices))
    flat = list(chain.from_iterable(starts))
    operators = torch.ops.finola
    z: Tensor = (
        operators.grow_recorded(q, *matrices, size, flat)[0]
        if differentiated
        else operators.grow(q, *matrices, size, flat)
    )
    return z


def _pairs(numbers: list[int]) -> list[Position]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _grown(q: Tensor, *arguments: Any) -> Tensor:
    return _run(q, *arguments, record=False)[0]


def _recorded(q: Tensor, *arguments: Any) -> list[Tensor]:
    return _run(q, *arguments, record=True)


def _run(q: Tensor, *arguments: Any, record: bool) -> list[Tensor]:
    *matrices, size, starts = arguments
    with without_autocast(q.device):
        return grow(q, tuple(matrices), _pairs(size)[0], _pairs(starts), record=record)


def _gradients(gradient: Tensor, *arguments: Any) -> list[Tensor]:
    *matrices, size, starts, states, wanted = arguments
    with without_autocast(gradient.device):
        return grow_backward(gradient, tuple(matrices), _pairs(size)[0], _pairs(starts), states, wanted)


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *tensors, ctx.size, ctx.starts = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output[1:])


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    gradient, wanted = gradients[0], ctx.needs_input_grad[:5]
    if gradient is None:
        return (None,) * 7
    saved = ctx.saved_tensors  # once: activation checkpointing allows no second access
    inputs, states = saved[:5], saved[5:]
    if torch.is_grad_enabled():
        step = partial(norm_linear, matrices=inputs[1:])
        own = [tensor for tensor, asked in zip(inputs, wanted, strict=True) if asked]
        with without_autocast(gradient.device):
            z = grow_stepwise(inputs[0], step, _pairs(ctx.size)[0], _pairs(ctx.starts))
            found = iter(torch.autograd.grad(z, own, gradient, create_graph=True, allow_unused=True))
        return *(next(found) if asked else None for asked in wanted), None, None
    of_q, *of_matrices = torch.ops.finola.grow_backward(
        gradient, *inputs[1:], ctx.size, ctx.starts, list(states), list(wanted[1:])
    )
    return of_q, *(g if asked else None for g, asked in zip(of_matrices, wanted[1:], strict=True)), None, None


# torch.library.custom_op would do the same, but imports torch._dynamo in the first call: a second and 150 MB.
INPUTS = "Tensor A, Tensor B, Tensor A_minus, Tensor B_minus, int[] size, int[] starts"
OPERATORS = {
    f"grow(Tensor q, {INPUTS}) -> Tensor": _grown,
    f"grow_recorded(Tensor q, {INPUTS}) -> Tensor[]": _recorded,
    f"grow_backward(Tensor gradient, {INPUTS}, Tensor[] states, bool[] wanted) -> Tensor[]": _gradients,
}
for signature, run in OPERATORS.items():
    name, _, rest = signature.partition("(")
    torch.library.define(f"finola::{name}", f"({rest}")
    torch.library.impl(f"finola::{name}", "CompositeExplicitAutograd", run)
    torch.library.register_fake(f"finola::{name}", run)  # the same operations, as none depends on values
torch.library.register_autograd("finola::grow_recorded", _backward, setup_context=_save)


def _flops(q: torch.Size, *arguments: Any, **_: Any) -> int:
    """Both orders take 4·C² FLOPs for each position but the start, for every path of every image."""
    images, paths, channels = q
    height, width = arguments[4]
    flops: int = 4 * channels**2 * (height * width - 1) * images * paths
    return flops


def _backward_flops(gradient: torch.Size, A: torch.Size, *arguments: Any, **_: Any) -> int:
    """As many as forward for the states, and as many for the matrices if their gradients are wanted."""
    starts, wanted = arguments[4], arguments[6]
    forward: int = 4 * A[0] ** 2 * (gradient[1] * gradient[2] - 1) * gradient[0] * (len(starts) // 2)
    return forward * (1 + any(wanted))


register_flop_formula([torch.ops.finola.grow, torch.ops.finola.grow_recorded])(_flops)
register_flop_formula(torch.ops.finola.grow_backward)(_backward_flops)

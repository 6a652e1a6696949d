"""The recurrence for any transition and either order, step by step, in operations that PyTorch differentiates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.kernels.forward import EPS, Matrices, Position

Direction = Literal["right", "left", "down", "up"]
Order = Literal["mean", "horizontal", "vertical"]
Axis = tuple[int, int, Direction, Direction]  # start index, length, step ahead, step back


class Step(Protocol):
    """One step of the recurrence on any tensor whose last axis is C."""

    def __call__(self, z: Tensor, direction: Direction) -> Tensor: ...


def normalise(z: Tensor) -> Tensor:
    """Layer norm ẑ over the channels of one position, with population σ and no affine part (Eq. 1, right)."""
    return F.layer_norm(z, z.shape[-1:], eps=EPS)


def norm_linear(z: Tensor, direction: Direction, matrices: Matrices) -> Tensor:
    """One step z + A ẑ with the matrix of `direction` (Eq. 1)."""
    return z + F.linear(normalise(z), matrices[("right", "down", "left", "up").index(direction)])


def grow_stepwise(
    q: Tensor, step: Step, size: Position, starts: Sequence[Position] | Tensor, order: Order = "mean"
) -> Tensor:
    """Map z (N, H, W, C) of the paths q (N, M, C), one start and one order after the other.

    `starts` are one cell per path, or a tensor (N, 2) of one per image.
    """
    if isinstance(starts, Tensor):
        return _grow_images(q, step, size, starts, order)
    orders = 2 if order == "mean" else 1
    z: Tensor | None = None
    for cell in dict.fromkeys(starts):  # paths that start together share every step
        own = [path for path, start in enumerate(starts) if start == cell]
        phi = q if len(own) == q.shape[1] else torch.stack([q[:, path] for path in own], 1)
        along_x: Axis = (cell[1], size[1], "right", "left")
        along_y: Axis = (cell[0], size[0], "down", "up")
        if order != "vertical":
            z = _added(z, 1, _lines(phi, step, along_x, along_y), size, orders)
        if order != "horizontal":
            z = _added(z, 2, _lines(phi, step, along_y, along_x), size, orders)
    assert z is not None
    return z


def _grow_images(q: Tensor, step: Step, size: Position, starts: Tensor, order: Order) -> Tensor:
    """Map z (N, H, W, C) of q (N, M, C), each image from its own start in `starts` (N, 2), on the CPU."""
    along_x = partial(_lines_of_images, step=step, starts=starts[:, 1], length=size[1], ways=("right", "left"))
    along_y = partial(_lines_of_images, step=step, starts=starts[:, 0], length=size[0], ways=("down", "up"))
    maps = []
    if order != "vertical":
        maps.append(along_y(along_x(q)))
    if order != "horizontal":
        maps.append(along_x(along_y(q)).transpose(1, 2))
    z = 0.5 * (maps[0] + maps[1]) if order == "mean" else maps[0]
    return z.sum(3)


def _lines_of_images(z: Tensor, step: Step, starts: Tensor, length: int, ways: tuple[Direction, Direction]) -> Tensor:
    """Extend the states z (N, …, C) at the positions `starts` (N,) of an axis to all its positions: (N, length, …, C).

    All images advance together, so that their number does not change the number of operations. If they are sorted by
    start, those still inside the map are the first ones ahead and the last ones back.
    """
    sorted_starts, images = starts.sort()
    distances = torch.arange(1, length)[:, None]
    ahead = (sorted_starts + distances < length).sum(1).tolist()  # images inside the map at each distance
    back = (sorted_starts >= distances).sum(1).tolist()
    cells = images * length + sorted_starts  # positions of the states in the result
    forward = backward = z.index_select(0, images.to(z.device, non_blocking=True))
    states, at = [forward], [cells]
    for distance, (first, last) in enumerate(zip(ahead, back, strict=True), start=1):
        forward = step(forward[:first], ways[0])
        backward = step(backward[len(backward) - last :], ways[1])
        states += [forward, backward]
        at += [cells[:first] + distance, cells[len(cells) - last :] - distance]
    order = torch.cat(at).argsort().to(z.device, non_blocking=True)
    lines: Tensor = torch.cat(states).index_select(0, order).unflatten(0, (len(z), length))
    return lines


def transformed(*tensors: Tensor) -> bool:
    """Whether a function transform (torch.func) is active, or forward-mode differentiation of one of these tensors."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or any(
        torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )


def _lines(phi: Tensor, step: Step, first: Axis, then: Axis) -> Iterator[tuple[int, Tensor]]:
    """Compute the line through the start along `first`, then yield all parallel lines, step by step along `then`."""
    cells = sorted(_walk(phi, step, first), key=lambda item: item[0])
    line = torch.stack([cell for _, cell in cells], dim=2)  # (N, M, L, C)
    yield from _walk(line, step, then)


def _walk(z: Tensor, step: Step, axis: Axis) -> Iterator[tuple[int, Tensor]]:
    start, length, ahead, back = axis
    yield start, z
    forward = z
    for index in range(start + 1, length):
        forward = step(forward, ahead)
        yield index, forward
    backward = z
    for index in range(start - 1, -1, -1):
        backward = step(backward, back)
        yield index, backward


def _added(z: Tensor | None, axis: int, lines: Iterator[tuple[int, Tensor]], size: Position, orders: int) -> Tensor:
    """Add the sum over paths of the lines (N, M, L, C) along an axis, divided by the number of orders, to z."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
        summed = sorted(((index, line.sum(1)) for index, line in lines), key=lambda item: item[0])
        grown = torch.stack([line for _, line in summed], dim=axis) / orders
        return grown if z is None else z + grown
    # Without gradients each line is added to the map as soon as it is computed, so that no other map is stored.
    for index, line in lines:
        if z is None:
            z = line.new_zeros(len(line), *size, line.shape[-1])
        z.select(axis, index).add_(line.sum(1), alpha=1 / orders)
    assert z is not None
    return z

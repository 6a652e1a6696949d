"""First-order norm+linear recurrence (§2): propagate the initial conditions q to the feature map z.

    z(x+1, y) = z(x, y) + A ẑ(x, y)        z(x, y+1) = z(x, y) + B ẑ(x, y)                       (Eq. 1)
    z(x, y) = Σᵢ φᵢ(x, y),  all paths φᵢ share A, B, A₋, B₋                                       (Eq. 3)

`x` runs right, `y` down; a position is (y, x) and a size (height, width).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from finola.errors import InputError, UnknownNameError
from finola.kernels.backward import Grow
from finola.kernels.forward import EPS as EPS
from finola.kernels.forward import Position as Position
from finola.kernels.forward import grow as grow_without_gradients

Direction = Literal["right", "left", "down", "up"]
Order = Literal["mean", "horizontal", "vertical"]
CORNERS = ("top-left", "top-right", "bottom-left", "bottom-right")


class Step(Protocol):
    """One step of the recurrence on any tensor whose last axis is C."""

    def __call__(self, z: Tensor, direction: Direction) -> Tensor: ...


def normalise(z: Tensor) -> Tensor:
    """Layer norm ẑ over the channels of one position, with population σ and no affine part (Eq. 1, right)."""
    return F.layer_norm(z, z.shape[-1:], eps=EPS)


class Coefficients(NamedTuple):
    """The four C×C matrices of the recurrence. Calling them computes one norm+linear step.

    >>> C = 8
    >>> coefficients = Coefficients(*torch.randn(4, C, C))
    >>> coefficients(torch.randn(2, C), "right").shape
    torch.Size([2, 8])
    """

    A: Tensor  # right
    B: Tensor  # down
    A_minus: Tensor  # left
    B_minus: Tensor  # up

    def matrix(self, direction: Direction) -> Tensor:
        """Matrix of the step in `direction`."""
        return self[("right", "down", "left", "up").index(direction)]

    def __call__(self, z: Tensor, direction: Direction) -> Tensor:
        return z + F.linear(normalise(z), self.matrix(direction))


def start_positions(start: str | Position | Sequence[Position], size: Position, paths: int) -> list[Position]:
    """Start position (y, x) of each of the M paths.

    `start` is "center" (or "centre"), a corner such as "top-left", "scatter", one cell (y, x), or one cell per path.

    >>> start_positions("center", (16, 16), 2)
    [(8, 8), (8, 8)]
    >>> start_positions("scatter", (16, 16), 4)
    [(4, 4), (4, 12), (12, 4), (12, 12)]
    """
    height, width = size
    if start == "scatter":
        rows, columns = _grid(paths, size)
        ys = [int((i + 0.5) * height / rows) for i in range(rows)]
        xs = [int((j + 0.5) * width / columns) for j in range(columns)]
        return [(y, x) for y in ys for x in xs][:paths]
    if start in ("center", "centre"):
        return [(height // 2, width // 2)] * paths
    if isinstance(start, str):
        if start not in CORNERS:
            raise UnknownNameError(f"Unknown start {start!r}; use center, scatter, {', '.join(CORNERS)} or (y, x).")
        return [(height - 1 if "bottom" in start else 0, width - 1 if "right" in start else 0)] * paths
    cells: list[Position] = [start] * paths if isinstance(start[0], int) else list(start)  # type: ignore[list-item, arg-type]
    if len(cells) != paths:
        raise InputError(f"{len(cells)} start positions for {paths} paths; give one, or one per path.")
    for y, x in cells:
        if not (0 <= y < height and 0 <= x < width):
            raise InputError(f"Start ({y}, {x}) is outside the map of {width}×{height} positions.")
    return cells


def _grid(paths: int, size: Position) -> Position:
    """Rows and columns of the scatter grid: 2×2, 2×4, 4×4 for M = 4, 8, 16; the most square one for any other M."""
    rows = max(r for r in range(1, math.isqrt(paths) + 1) if paths % r == 0)
    if rows == 1 and paths > 3:  # a prime M: fill a near-square grid row by row
        rows = math.isqrt(paths)
    grid = rows, -(-paths // rows)
    return grid if size[0] <= size[1] else grid[::-1]


def propagate(
    q: Tensor,
    coefficients: Step,
    size: int | Position,
    start: str | Position | Sequence[Position] = "center",
    *,
    order: Order = "mean",
    checkpointing: bool = False,
) -> Tensor:
    """Propagate the initial conditions q (N, M, C) to the map z (N, C, H, W), channels-last in memory.

    The horizontal-first order computes the row of the start and then all columns in parallel, the vertical-first order
    the column and then all rows. The map is the mean of both, Figure 4 (fig:finola-parallel), or one of them with
    `order`. `coefficients` are the four matrices, or any transition called as `(z, direction) -> z_next`. `size` is
    (height, width), or one number for a square map. `checkpointing` reduces the memory of training at the cost of time.

    >>> q = torch.randn(2, 1, 16)
    >>> propagate(q, Coefficients(*torch.randn(4, 16, 16)), size=(5, 8)).shape
    torch.Size([2, 16, 5, 8])
    """
    check_initial_conditions(q, coefficients)
    size = (size, size) if isinstance(size, int) else size
    height, width = size
    if height < 1 or width < 1:
        raise InputError(f"size must be at least 1×1, got {width}×{height}.")
    if order not in ("mean", "horizontal", "vertical"):
        raise UnknownNameError(f"Unknown order {order!r}; use mean, horizontal or vertical.")

    groups: dict[Position, list[int]] = {}  # paths that start together share every product
    for path, cell in enumerate(start_positions(start, size, q.shape[1])):
        groups.setdefault(cell, []).append(path)

    recomputed = checkpointing and torch.is_grad_enabled()
    if isinstance(coefficients, Coefficients) and order == "mean" and not torch.compiler.is_exporting():
        grow: Callable[..., Tensor | None] = partial(_uncompiled(), coefficients=coefficients, size=size)
    else:
        grow = partial(_grow, step=coefficients, size=size, order=order)
    z: Tensor | None = None  # (N, H, W, C)
    for cell, paths in groups.items():
        phi = q if len(paths) == q.shape[1] else q[:, paths]
        z = checkpoint(grow, phi, z, cell, use_reentrant=False) if recomputed else grow(phi, z, cell)
    assert z is not None
    return z.permute(0, 3, 1, 2)


def _grow_fast(phi: Tensor, z: Tensor | None, cell: Position, coefficients: Coefficients, size: Position) -> Tensor:
    """Add the map of the paths phi (N, M, C) that start at `cell` to z, with few and large matrix products."""
    phi = phi.to(coefficients.A.dtype)  # under autocast, encoders return half precision
    if torch.is_grad_enabled() and (phi.requires_grad or any(matrix.requires_grad for matrix in coefficients)):
        grown: Tensor = Grow.apply(phi, *coefficients, size, cell)
        return grown if z is None else z + grown
    return grow_without_gradients(phi, coefficients, size, cell, z)


def _uncompiled() -> Callable[..., Tensor]:
    """`_grow_fast`, excluded from torch.compile: unrolling a chain of large products into one graph saves no time.

    torch.compiler.disable imports torch._dynamo, which takes a second and 150 MB; without torch.compile it is not used.
    """
    if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
        disabled: Callable[..., Tensor] = torch.compiler.disable(_grow_fast)
        return disabled
    return _grow_fast


def _grow(phi: Tensor, z: Tensor | None, cell: Position, step: Step, size: Position, order: Order) -> Tensor | None:
    """The same for any transition, one order after the other."""
    for weight, lines in _orders(phi, step, size, cell, order):
        z = _gather(lines, z, weight, phi, size)
    return z


def check_initial_conditions(q: Tensor, coefficients: Step) -> None:
    """Raise InputError unless q has the shape (N, M, C) that the coefficients need and is finite."""
    if q.ndim != 3 or 0 in q.shape:
        raise InputError(f"q must have shape (N, M, C) without empty axes, got {tuple(q.shape)}.")
    if isinstance(coefficients, Coefficients):
        for name, matrix in coefficients._asdict().items():
            if matrix.shape != (q.shape[-1], q.shape[-1]):
                raise InputError(f"q has {q.shape[-1]} channels, but {name} is {' x '.join(map(str, matrix.shape))}.")
    channels = getattr(coefficients, "channels", q.shape[-1])
    if channels != q.shape[-1]:
        raise InputError(f"q has {q.shape[-1]} channels, but the transition has {channels}.")
    if not torch.compiler.is_compiling() and q.device.type != "meta" and not bool(torch.isfinite(q).all()):
        raise InputError("q contains NaN or infinite values.")


class _Lines(NamedTuple):
    """Lines of one order, along axis 1 (rows) or 2 (columns) of a map (N, H, W, C), in the order of computation."""

    axis: int
    lines: Iterator[tuple[int, Tensor]]  # (index, (N, M, L, C))


def _orders(phi: Tensor, step: Step, size: Position, cell: Position, order: Order) -> list[tuple[float, _Lines]]:
    weight = 0.5 if order == "mean" else 1.0
    (height, width), (y, x) = size, cell
    along_x: Axis = (x, width, "right", "left")
    along_y: Axis = (y, height, "down", "up")
    orders = []
    if order != "vertical":
        orders.append((weight, _Lines(1, _grow_lines(phi, step, along_x, along_y))))
    if order != "horizontal":
        orders.append((weight, _Lines(2, _grow_lines(phi, step, along_y, along_x))))
    return orders


Axis = tuple[int, int, Direction, Direction]  # start index, length, step ahead, step back


def _grow_lines(phi: Tensor, step: Step, first: Axis, then: Axis) -> Iterator[tuple[int, Tensor]]:
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


def _gather(lines: _Lines, z: Tensor | None, weight: float, phi: Tensor, size: Position) -> Tensor:
    """Add `weight` times the sum over paths of these lines to the map z (N, H, W, C)."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        summed = sorted(((index, line.sum(1)) for index, line in lines.lines), key=lambda item: item[0])
        grown = weight * torch.stack([line for _, line in summed], dim=lines.axis)
        return grown if z is None else z + grown
    # Without gradients each line is added to the map as soon as it is computed, so that no other map is stored.
    out = phi.new_zeros(phi.shape[0], *size, phi.shape[-1]) if z is None else z
    for index, line in lines.lines:
        out.select(lines.axis, index).add_(line.sum(1), alpha=weight)
    return out

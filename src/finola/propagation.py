"""q → z, the heart (§2): a first-order norm+linear recurrence regrows the whole map from its initial conditions.

    z(x+1, y) = z(x, y) + A ẑ(x, y)        z(x, y+1) = z(x, y) + B ẑ(x, y)                       (Eq. 1)
    z(x, y) = Σᵢ φᵢ(x, y),  every path φᵢ growing by the same A, B, A₋, B₋                        (Eq. 3)

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
    """ẑ: layer norm over the channels of one position, population σ, no affine part (Eq. 1, right)."""
    return F.layer_norm(z, z.shape[-1:], eps=EPS)


class Coefficients(NamedTuple):
    """The four C×C matrices of the recurrence. Called, they take one norm+linear step.

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
        """The matrix that steps in `direction`."""
        return self[("right", "down", "left", "up").index(direction)]

    def __call__(self, z: Tensor, direction: Direction) -> Tensor:
        return z + F.linear(normalise(z), self.matrix(direction))


def start_positions(start: str | Position | Sequence[Position], size: Position, paths: int) -> list[Position]:
    """Where each of the M paths starts: one (y, x) per path.

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
            raise ValueError(
                f"start {start!r} is not known: use center, scatter, {', '.join(CORNERS)} or a cell (y, x)."
            )
        return [(height - 1 if "bottom" in start else 0, width - 1 if "right" in start else 0)] * paths
    cells: list[Position] = [start] * paths if isinstance(start[0], int) else list(start)  # type: ignore[list-item, arg-type]
    if len(cells) != paths:
        raise ValueError(f"{len(cells)} start positions for {paths} paths: give one, or one per path.")
    for y, x in cells:
        if not (0 <= y < height and 0 <= x < width):
            raise ValueError(f"start ({y}, {x}) lies outside the map of {height}x{width} positions.")
    return cells


def _grid(paths: int, size: Position) -> Position:
    """Rows and columns of the scatter grid: 2×2, 2×4, 4×4 for M = 4, 8, 16; the squarest that holds any other M."""
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
    """Grow the map z (N, C, H, W), channels-last in memory, from the initial conditions q (N, M, C).

    Horizontal-first fills the start's row and then every column at once, vertical-first the other way round; the map
    is the mean of the two (Fig. 4), or with `order` one of them alone. `coefficients` are the four matrices, or any
    transition called as `(z, direction) -> z_next`. `size` is (height, width), or one number for a square map.
    `checkpointing` trades time for memory in training.

    >>> q = torch.randn(2, 1, 16)
    >>> propagate(q, Coefficients(*torch.randn(4, 16, 16)), size=(5, 8)).shape
    torch.Size([2, 16, 5, 8])
    """
    check_initial_conditions(q, coefficients)
    size = (size, size) if isinstance(size, int) else size
    height, width = size
    if height < 1 or width < 1:
        raise ValueError(f"a map of {height}x{width} positions cannot be grown: both sides are at least 1.")
    if order not in ("mean", "horizontal", "vertical"):
        raise ValueError(f"order {order!r} is not known: use mean, horizontal or vertical.")

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
    """z plus the map of the paths phi (N, M, C) that start at `cell`, in few and large products."""
    phi = phi.to(coefficients.A.dtype)  # under autocast an encoder hands over half precision
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
    """The same for any step rule, order by order."""
    for weight, lines in _orders(phi, step, size, cell, order):
        z = _gather(lines, z, weight, phi, size)
    return z


def check_initial_conditions(q: Tensor, coefficients: Step) -> None:
    """One clear sentence for a q that no map can be grown from."""
    if q.ndim != 3 or 0 in q.shape:
        raise ValueError(f"q has shape {tuple(q.shape)}; it is (N, M, C): images, paths, channels, none of them 0.")
    if isinstance(coefficients, Coefficients):
        for name, matrix in coefficients._asdict().items():
            if matrix.shape != (q.shape[-1], q.shape[-1]):
                raise ValueError(f"q has {q.shape[-1]} channels, but {name} is {' x '.join(map(str, matrix.shape))}.")
    channels = getattr(coefficients, "channels", q.shape[-1])
    if channels != q.shape[-1]:
        raise ValueError(f"q has {q.shape[-1]} channels, but the transition has {channels}.")
    if not torch.compiler.is_compiling() and q.device.type != "meta" and not bool(torch.isfinite(q).all()):
        raise ValueError("q holds NaN or infinite values: no map can be grown from it.")


class _Lines(NamedTuple):
    """The lines of one order as they grow: along axis 1 (rows) or 2 (columns) of a (N, H, W, C) map."""

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
    """Grow the line through the start along `first`, then yield every parallel line, one `then` step at a time."""
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
    # Without gradients one map is enough: every line is added where it belongs as soon as it is there.
    out = phi.new_zeros(phi.shape[0], *size, phi.shape[-1]) if z is None else z
    for index, line in lines.lines:
        out.select(lines.axis, index).add_(line.sum(1), alpha=weight)
    return out

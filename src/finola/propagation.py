"""First-order norm+linear recurrence (§2): propagate the initial conditions q to the feature map z.

    z(x+1, y) = z(x, y) + A ẑ(x, y)        z(x, y+1) = z(x, y) + B ẑ(x, y)                       (Eq. 1)
    z(x, y) = Σᵢ φᵢ(x, y),  all paths φᵢ share A, B, A₋, B₋                                       (Eq. 3)

`x` runs right, `y` down; a position is (y, x) and a size (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from finola.checks import can_read
from finola.errors import InputError, UnknownNameError
from finola.kernels.forward import EPS as EPS
from finola.kernels.forward import Matrices
from finola.kernels.forward import Position as Position
from finola.kernels.operators import propagate_matrices
from finola.kernels.stepwise import Direction as Direction
from finola.kernels.stepwise import Order as Order
from finola.kernels.stepwise import Step as Step
from finola.kernels.stepwise import grow_stepwise, norm_linear, transformed
from finola.kernels.stepwise import normalise as normalise
from finola.layers import autocast_enabled, without_autocast

CORNERS = ("top-left", "top-right", "bottom-left", "bottom-right")


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
        return norm_linear(z, direction, self)


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
    one = isinstance(start, tuple | list) and len(start) == 2 and all(isinstance(side, int) for side in start)
    given: Any = [start] * paths if one else start
    try:
        cells = [(index(y), index(x)) for y, x in given]
    except (TypeError, ValueError) as error:
        raise InputError(f"start is {start!r}; give a name, a cell (y, x), or one cell per path.") from error
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
    coefficients: Step | Matrices,
    size: int | Position,
    start: str | Position | Sequence[Position] | Tensor = "center",
    *,
    order: Order = "mean",
    checkpointing: bool = False,
) -> Tensor:
    """Propagate the initial conditions q (N, M, C) to the map z (N, C, H, W), channels-last in memory.

    The horizontal-first order computes the row of the start and then all columns in parallel, the vertical-first order
    the column and then all rows. The map is the mean of both, Figure 4 (fig:finola-parallel), or one of them with
    `order`. `coefficients` are the four matrices, or any transition called as `(z, direction) -> z_next`. `size` is
    (height, width), or one number for a square map. `start` is that of `start_positions`, or a tensor (N, 2) of one
    cell per image, best on the CPU. `checkpointing` reduces the memory of training at the cost of time.

    >>> q = torch.randn(2, 1, 16)
    >>> propagate(q, Coefficients(*torch.randn(4, 16, 16)), size=(5, 8)).shape
    torch.Size([2, 16, 5, 8])
    """
    if isinstance(coefficients, tuple | list) and not isinstance(coefficients, Coefficients):
        if len(coefficients) != 4:
            raise InputError(f"coefficients are {len(coefficients)} matrices; give four: A, B, A_minus, B_minus.")
        coefficients = Coefficients(*coefficients)
    if not callable(coefficients):
        given = f"a tensor {tuple(coefficients.shape)}" if isinstance(coefficients, Tensor) else repr(coefficients)
        raise InputError(f"coefficients are {given}; give (A, B, A_minus, B_minus) or a transition.")
    check_initial_conditions(q, coefficients)
    size = _checked_size(size)
    if order not in ("mean", "horizontal", "vertical"):
        raise UnknownNameError(f"Unknown order {order!r}; use mean, horizontal or vertical.")

    starts: list[Position] | Tensor = (
        _checked_cells(start, size, len(q)) if isinstance(start, Tensor) else start_positions(start, size, q.shape[1])
    )
    grow: Callable[[Tensor], Tensor]
    if isinstance(coefficients, Coefficients):
        # At least float32: in bfloat16 a walk of 64 steps loses two digits (docs/speed.md).
        precision = torch.promote_types(coefficients.A.dtype, torch.float32)
        matrices = Coefficients(*(matrix.to(precision) for matrix in coefficients))
        stepwise = order != "mean" or torch.compiler.is_exporting() or transformed(q, *matrices)
        if isinstance(starts, Tensor) or stepwise:
            grow = partial(_without_autocast, step=matrices, size=size, starts=starts, order=order)
        else:
            grow = partial(propagate_matrices, matrices=matrices, size=size, starts=starts)
        q = q.to(precision)
    else:
        grow = partial(grow_stepwise, step=coefficients, size=size, starts=starts, order=order)
        if autocast_enabled(q.device):
            q = q.float()  # autocast rounds the products of a step, but not the sum of all steps
    recomputed = checkpointing and torch.is_grad_enabled()
    z: Tensor = checkpoint(grow, q, use_reentrant=False) if recomputed else grow(q)
    if isinstance(coefficients, Coefficients):
        z = z.to(coefficients.A.dtype)
    return z.permute(0, 3, 1, 2)


def _without_autocast(q: Tensor, step: Step, size: Position, starts: list[Position] | Tensor, order: Order) -> Tensor:
    with without_autocast(q.device):
        return grow_stepwise(q, step, size, starts, order)


def _checked_cells(start: Tensor, size: Position, images: int) -> Tensor:
    """Start cells (N, 2) of the images, on the CPU."""
    cells = start.cpu()
    if cells.shape != (images, 2) or cells.is_floating_point():
        raise InputError(
            f"start is a tensor {tuple(cells.shape)} of {cells.dtype}; give whole numbers (y, x) for each of the "
            f"{images} images."
        )
    outside = ((cells < 0) | (cells >= cells.new_tensor(size))).any(1).tolist()
    if any(outside):
        (y, x), (height, width) = cells[outside.index(True)].tolist(), size
        raise InputError(f"Start ({y}, {x}) is outside the map of {width}×{height} positions.")
    return cells


def _checked_size(size: int | Position) -> Position:
    """(height, width) of a size given as one number or two."""
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, tuple | list) or len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise InputError(f"size is {size!r}; give a whole number, or two: (height, width).")
    height, width = sides
    if height < 1 or width < 1:
        raise InputError(f"size must be at least 1×1, got {width}×{height}.")
    return height, width


def check_initial_conditions(q: Tensor, coefficients: Step) -> None:
    """Raise InputError unless q has the shape (N, M, C) that the coefficients need and, as far as known, is finite.

    Values are read only on the CPU and without gradients, since reading them would make another device wait.
    """
    if not isinstance(q, Tensor):
        raise InputError(f"q must be a tensor (N, M, C), got {type(q).__name__}.")
    if q.ndim == 2:
        raise InputError(f"q must have shape (N, M, C), got {tuple(q.shape)}; for one path per image give q[:, None].")
    if q.ndim != 3 or 0 in q.shape:
        raise InputError(f"q must have shape (N, M, C) without empty axes, got {tuple(q.shape)}.")
    matrices = coefficients if isinstance(coefficients, Coefficients) else ()
    for name, matrix in zip(Coefficients._fields, matrices, strict=False):
        if not isinstance(matrix, Tensor) or matrix.shape != (q.shape[-1], q.shape[-1]):
            given = " x ".join(map(str, matrix.shape)) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise InputError(f"q has {q.shape[-1]} channels, but {name} is {given}.")
    channels = getattr(coefficients, "channels", q.shape[-1])
    if channels != q.shape[-1]:
        raise InputError(f"q has {q.shape[-1]} channels, but the transition has {channels}.")
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, *matrices))
    if not differentiated and can_read(q) and not bool(torch.isfinite(q).all()):
        raise InputError("q contains NaN or infinite values.")

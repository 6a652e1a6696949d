"""The recurrence at the speed of its matrix products: the same map as `propagation`, with few and large products.

Both orders agree on the start's row and column, so one row is walked position by position, the rows
above and below it are swept from it, and the columns to its left and right are swept from the column that sweep made.
Lines are kept contiguous, (R, L, C) with R = images × paths, so that every step is one layer norm and one product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finola.propagation import EPS, Coefficients, Position

aten = torch.ops.aten
Keep = Callable[[int, Tensor], None]
SMALL = 256  # channels, up to which two products in one call beat two calls
ROWS = 2048  # of a weight gradient's product: as efficient as a whole map, and a fraction of its memory


class Sweep(NamedTuple):
    """A walk from line `start` to line `stop` by one matrix: lines start, start ± 1, …, stop."""

    matrix: int  # its place in Coefficients
    start: int
    stop: int

    def steps(self) -> Iterator[tuple[int, int]]:
        """(from, to) of every step."""
        sign = 1 if self.stop >= self.start else -1
        for line in range(self.start, self.stop, sign):
            yield line, line + sign


def along_x(x: int, width: int) -> tuple[Sweep, Sweep]:
    """Right by A, left by A₋."""
    return Sweep(0, x, width - 1), Sweep(2, x, 0)


def along_y(y: int, height: int) -> tuple[Sweep, Sweep]:
    """Down by B, up by B₋."""
    return Sweep(1, y, height - 1), Sweep(3, y, 0)


def step(z: Tensor, matrix: Tensor, out: Tensor, share: float = 1.0) -> Tensor:
    """z + matrix ẑ for rows z (…, rows, C) into `out`, or `share` of it where z is `share` of the state.

    ẑ does not see a common factor if ε shrinks with its square, so half a state walks as well as a whole one. Products
    with an `out` are left alone by autocast: the recurrence keeps the precision of its matrices.
    """
    z_hat = aten.native_layer_norm(z, z.shape[-1:], None, None, EPS * share * share)[0]
    product = torch.addmm if z.ndim == 2 else torch.baddbmm
    return product(z, z_hat, matrix.transpose(-1, -2), alpha=share, out=out)


def grow(q: Tensor, coefficients: Coefficients, size: Position, start: Position, z: Tensor | None) -> Tensor:
    """The mean of both orders, summed over the paths of q (N, M, C), added to z (N, H, W, C) if there is one.

    Without gradients. Half a state is walked in each order, so that the two add up to their mean; besides z only a few
    lines are alive.
    """
    n, paths, channels = q.shape
    (height, width), (y, x) = size, start
    fresh = z is None
    z = q.new_empty(n, height, width, channels) if z is None else z
    row = _walk_line(0.5 * q, coefficients, along_x(x, width), width, share=0.5)  # (R, W, C)
    column = q.new_empty(n * paths, height, channels)

    def keep_row(index: int, line: Tensor) -> None:
        _put(z[:, index], line, paths, fresh)
        column[:, index] = line.view(-1, width, channels)[:, x]

    def keep_column(index: int, line: Tensor) -> None:
        _put(z[:, :, index], line, paths, False)

    _sweep(row.view(-1, channels), coefficients, along_y(y, height), keep_row)
    _sweep(column.view(-1, channels), coefficients, along_x(x, width), keep_column)
    return z


def _put(place: Tensor, line: Tensor, paths: int, fresh: bool) -> None:
    """A line (N·M·L, C), summed over its paths, into or onto its place (N, L, C) in the map."""
    by_path = line.view(place.shape[0], paths, *place.shape[1:])
    summed = by_path.sum(1) if paths > 1 else by_path[:, 0]
    if fresh:
        place.copy_(summed)
    else:
        place.add_(summed)


def _sweep(first: Tensor, coefficients: Coefficients, sweeps: tuple[Sweep, Sweep], keep: Keep) -> None:
    """Walk from the line `first` (rows, C), half a state, both ways; hand every line to `keep`."""
    keep(sweeps[0].start, first)
    ahead, back = (list(sweep.steps()) for sweep in sweeps)
    together = min(len(ahead), len(back)) if first.shape[-1] <= SMALL else 0
    ends = [first, first]
    if together:  # small products: both ways in one call
        matrices = torch.stack([coefficients[sweep.matrix] for sweep in sweeps])
        here, there = torch.stack(ends), first.new_empty(2, *first.shape)
        for (_, up), (_, down) in zip(ahead[:together], back[:together], strict=True):
            step(here, matrices, out=there, share=0.5)
            keep(up, there[0])
            keep(down, there[1])
            here, there = there, here
        ends = list(here)
    for end, steps, sweep in zip(ends, (ahead, back), sweeps, strict=True):
        here, buffers = end, [torch.empty_like(first), torch.empty_like(first)]
        for number, (_, index) in enumerate(steps[together:]):
            here = step(here, coefficients[sweep.matrix], out=buffers[number % 2], share=0.5)
            keep(index, here)


def _walk_line(
    q: Tensor, coefficients: Coefficients, sweeps: tuple[Sweep, Sweep], length: int, share: float = 1.0
) -> Tensor:
    """The line through the start, (R, L, C), position by position."""
    start = q.reshape(-1, q.shape[-1])
    line = start.new_empty(start.shape[0], length, start.shape[1])
    line[:, sweeps[0].start] = start
    for sweep in sweeps:
        here = start
        for _, index in sweep.steps():
            here = step(here, coefficients[sweep.matrix], out=torch.empty_like(here), share=share)
            line[:, index] = here
    return line


class Grow(torch.autograd.Function):
    """`grow` with a backward that keeps the lines alone, recomputes ẑ, and gathers large weight-gradient products."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, A: Tensor, B: Tensor, A_minus: Tensor, B_minus: Tensor, size: Position, start: Position
    ) -> Tensor:
        coefficients = Coefficients(A, B, A_minus, B_minus)
        n, paths, channels = q.shape
        (height, width), (y, x) = size, start
        row = _walk_line(q, coefficients, along_x(x, width), width)
        rows = _lines(row, coefficients, along_y(y, height), height)  # (H, R, W, C)
        columns = _lines(rows[:, :, x].transpose(0, 1), coefficients, along_x(x, width), width)  # (W, R, H, C)
        ctx.save_for_backward(rows, columns, *coefficients)
        ctx.shape, ctx.start = (n, paths, channels), start
        z = q.new_empty(n, height, width, channels)
        horizontal = _sum_paths(rows, paths).permute(1, 0, 2, 3)
        vertical = _sum_paths(columns, paths).permute(1, 2, 0, 3)
        return torch.add(horizontal, vertical, out=z).mul_(0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        rows, columns, *matrices = ctx.saved_tensors
        coefficients = Coefficients(*matrices)
        n, paths, channels = ctx.shape
        height, _, width, _ = rows.shape
        y, x = ctx.start
        weights = [torch.zeros_like(m) if ctx.needs_input_grad[i + 1] else None for i, m in enumerate(matrices)]
        half = 0.5 * gradient  # (N, H, W, C), the same for every path

        def of_column(index: int) -> Tensor:
            return half[:, :, index].repeat_interleave(paths, 0)  # (R, H, C)

        column = _backward(columns, of_column, coefficients, along_x(x, width), weights)  # (R, H, C)

        def of_row(index: int) -> Tensor:
            line = half[:, index].repeat_interleave(paths, 0)  # (R, W, C)
            line[:, x] += column[:, index]
            return line

        row = _backward(rows, of_row, coefficients, along_y(y, height), weights)  # (R, W, C)
        cells = rows[y].transpose(0, 1)  # (W, R, C)
        q = _backward(cells, lambda index: row[:, index], coefficients, along_x(x, width), weights)
        return q.view(n, paths, channels), *weights, None, None


def _sum_paths(lines: Tensor, paths: int) -> Tensor:
    """(lines, N·M, L, C) → (lines, N, L, C)."""
    by_path = lines.unflatten(1, (-1, paths))
    return by_path.sum(2) if paths > 1 else by_path[:, :, 0]


def _lines(first: Tensor, coefficients: Coefficients, sweeps: tuple[Sweep, Sweep], count: int) -> Tensor:
    """All lines swept from `first` (R, L, C): (count, R, L, C)."""
    lines = first.new_empty(count, *first.shape)
    lines[sweeps[0].start] = first
    flat = lines.view(count, -1, first.shape[-1])
    for sweep in sweeps:
        for here, there in sweep.steps():
            step(flat[here], coefficients[sweep.matrix], out=flat[there])
    return lines


def _backward(
    lines: Tensor,
    gradient_of: Any,
    coefficients: Coefficients,
    sweeps: tuple[Sweep, Sweep],
    weights: list[Tensor | None],
) -> Tensor:
    """The gradient of the first line, and, added to `weights`, those of the matrices that swept the others from it."""
    channels = lines.shape[-1]
    total = gradient_of(sweeps[0].start)
    for sweep in sweeps:
        steps = list(sweep.steps())
        if not steps:
            continue
        weight, matrix = weights[sweep.matrix], coefficients[sweep.matrix]
        pending: list[tuple[Tensor, Tensor]] = []
        g = gradient_of(sweep.stop).reshape(-1, channels)
        for here, _ in reversed(steps):
            z = lines[here].reshape(-1, channels)
            z_hat, mean, rstd = aten.native_layer_norm(z, (channels,), None, None, EPS)
            if weight is not None:
                pending.append((g, z_hat))
                if len(pending) * len(g) >= ROWS or here == sweep.start:
                    weight.addmm_(torch.cat([a for a, _ in pending]).T, torch.cat([b for _, b in pending]))
                    pending.clear()
            d = g @ matrix
            d = aten.native_layer_norm_backward(d, z, (channels,), mean, rstd, None, None, [True, False, False])[0]
            d += g
            g = d if here == sweep.start else d.add_(gradient_of(here).reshape(-1, channels))
        total = total + g.view_as(total)
    return total

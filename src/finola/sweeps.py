"""The recurrence at the speed of its matrix products: the same map as `propagation`, with few and large products.

Both orders agree on the start's row and column, so one row is walked position by position, the rows
above and below it are swept from it, and the columns to its left and right are swept from the column that sweep made.
Lines are kept contiguous, (R, L, C) with R = images × paths, so that every step is one layer norm and one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finola.propagation import EPS, Coefficients, Position

aten = torch.ops.aten
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


def step(z: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
    """z + matrix ẑ for rows z (rows, C)."""
    z_hat = aten.native_layer_norm(z, z.shape[-1:], None, None, EPS)[0]
    return torch.addmm(z, z_hat, matrix.T) if out is None else torch.addmm(z, z_hat, matrix.T, out=out)


def grow(q: Tensor, coefficients: Coefficients, start: Position, z: Tensor) -> None:
    """Add the mean of both orders, summed over the paths of q (N, M, C), to the map z (N, H, W, C).

    Without gradients: besides z only a few lines are alive.
    """
    n, paths, channels = q.shape
    (height, width), (y, x) = z.shape[1:3], start
    row = _first_line(q, coefficients, along_x(x, width), width)  # (R, W, C)
    column = q.new_empty(n * paths, height, channels)

    def keep_row(index: int, line: Tensor) -> None:
        z[:, index].add_(_sum_paths(line, n, paths), alpha=0.5)
        column[:, index] = line.view(-1, width, channels)[:, x]

    def keep_column(index: int, line: Tensor) -> None:
        z[:, :, index].add_(_sum_paths(line, n, paths), alpha=0.5)

    for lines, sweeps, keep in ((row, along_y(y, height), keep_row), (column, along_x(x, width), keep_column)):
        first = lines.view(-1, channels)
        keep(sweeps[0].start, first)
        for sweep in sweeps:
            here, there = first, torch.empty_like(first)
            spare = torch.empty_like(first)
            for _, index in sweep.steps():
                step(here, coefficients[sweep.matrix], out=there)
                keep(index, there)
                here, there = there, (spare if here is first else here)


def _sum_paths(line: Tensor, n: int, paths: int) -> Tensor:
    """(N·M·L, C) → (N, L, C)."""
    by_path = line.view(n, paths, -1, line.shape[-1])
    return by_path.sum(1) if paths > 1 else by_path[:, 0]


def _first_line(q: Tensor, coefficients: Coefficients, sweeps: tuple[Sweep, Sweep], length: int) -> Tensor:
    start = q.reshape(-1, q.shape[-1])
    line = start.new_empty(start.shape[0], length, start.shape[1])
    line[:, sweeps[0].start] = start
    for sweep in sweeps:
        here = start
        for _, index in sweep.steps():
            here = step(here, coefficients[sweep.matrix])
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
        row = _first_line(q, coefficients, along_x(x, width), width)
        rows = _lines(row, coefficients, along_y(y, height), height)  # (H, R, W, C)
        columns = _lines(rows[:, :, x].transpose(0, 1), coefficients, along_x(x, width), width)  # (W, R, H, C)
        ctx.save_for_backward(rows, columns, *coefficients)
        ctx.shape, ctx.start = (n, paths, channels), start
        horizontal = rows.view(height, n, paths, width, channels).sum(2).permute(1, 0, 2, 3)
        vertical = columns.view(width, n, paths, height, channels).sum(2).permute(1, 2, 0, 3)
        return torch.add(horizontal, vertical).mul_(0.5).contiguous()  # (N, H, W, C)

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

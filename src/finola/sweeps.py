"""The recurrence at the speed of its matrix products: the same map as `propagation`, with few and large products.

Both orders agree on the start's row and column, so one row is walked position by position, the rows above and below it
are swept from it, and the columns to its left and right are swept from the column that this sweep made. A line is
(rows, C) with rows = images × paths × positions. The step ahead (right, down) and the step back (left, up) are one
batched product while both go on.

Every state is walked at half its size, h = z / 2, so that the two orders add up to their mean. With m the mean of h
over its channels and r = 1 / √(4 var h + ε), one step z + A ẑ reads

    h' = h + r · A (h − m)        ẑ = 2 r (h − m)                                                    (half of Eq. 1)

and costs, besides its product, four passes over a line that stays in the cache. A constant q has no direction to grow
in: its value is taken off, so that it walks as exact zeros, and put back. docs/speed.md tells what was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finola.propagation import EPS, Coefficients, Position

Keep = Callable[[int, Tensor], None]
Multiply = Callable[[Tensor, Tensor], Tensor]  # rows and a place for their product → the product
PAIRED = 512  # channels, up to which two products in one call repay copying their matrices side by side
PACKED = 4  # steps, from which a large matrix is worth laying out for MKL once instead of at every product
ROWS = 256  # of a weight gradient's product: as efficient as a whole map, and a fraction of its memory


class Sweep(NamedTuple):
    """Lines `start`, `start` + 1, … of `length` by one matrix, and `start` − 1, … by the other."""

    start: int
    length: int
    matrices: tuple[Tensor, Tensor]  # ahead, back
    stacked: Tensor | None  # both, (2, C, C)

    @property
    def ahead(self) -> int:
        return self.length - 1 - self.start

    @property
    def together(self) -> int:
        """Steps that both ways take at once."""
        return min(self.ahead, self.start) if self.stacked is not None else 0

    def alone(self) -> list[tuple[int, list[int]]]:
        """(way, indices) of the lines that each way goes on to alone; way 0 is ahead."""
        ways = [range(self.start + self.together + 1, self.length), range(self.start - self.together - 1, -1, -1)]
        return [(way, list(indices)) for way, indices in enumerate(ways)]


def sweeps_of(coefficients: Coefficients, size: Position, start: Position) -> tuple[Sweep, Sweep]:
    """Along x by A and A₋, along y by B and B₋."""
    A, B, A_minus, B_minus = coefficients
    (height, width), (y, x) = size, start
    small = len(A) <= PAIRED
    return (
        Sweep(x, width, (A, A_minus), torch.stack([A, A_minus]) if small and 0 < x < width - 1 else None),
        Sweep(y, height, (B, B_minus), torch.stack([B, B_minus]) if small and 0 < y < height - 1 else None),
    )


class Moments(NamedTuple):
    """Of every row of half states h: the mean m, and r = 1 / √(4 var h + ε)."""

    mean: Tensor
    r: Tensor


def multiplier(matrix: Tensor, rows: int, steps: int) -> Multiply:
    """How to multiply `rows` rows by one matrix `steps` times, or two batches of rows by two matrices.

    Products with an `out` are left alone by autocast: the recurrence keeps the precision of its matrices. MKL's packed
    product is what torch.compile uses on CPUs; where PyTorch comes without it, the plain one does.
    """
    if matrix.ndim == 3:
        return lambda h, out: torch.bmm(h, matrix.mT, out=out)
    plain = matrix.device.type == "cpu" and matrix.dtype == torch.float32 and torch.backends.mkl.is_available()
    if plain and len(matrix) > PAIRED and steps >= PACKED and rows > 1 and hasattr(torch.ops.mkl, "_mkl_linear"):
        packed = torch.ops.mkl._mkl_reorder_linear_weight(matrix.contiguous(), rows)
        return lambda h, out: torch.ops.mkl._mkl_linear(h, packed, matrix, None, rows)
    return lambda h, out: torch.mm(h, matrix.mT, out=out)


def advance(h: Tensor, multiply: Multiply, out: Tensor, centred: Tensor, product: Tensor) -> Moments:
    """h + r · A (h − m) into `out`, for h (rows, C), or (2, rows, C) with two matrices."""
    mean = h.mean(-1, keepdim=True)
    torch.sub(h, mean, out=centred)
    wide = torch.float64 if h.dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(centred, dim=-1, keepdim=True, dtype=wide).mul_(2 / math.sqrt(h.shape[-1]))
    r = norm.square_().add_(EPS).rsqrt_().to(h.dtype)
    torch.addcmul(h, multiply(centred, product), r, out=out)
    return Moments(mean, r)


def grow(q: Tensor, coefficients: Coefficients, size: Position, start: Position, z: Tensor | None) -> Tensor:
    """The mean of both orders, summed over the paths of q (N, M, C), added to z (N, H, W, C) if there is one.

    Without gradients; besides z only a few lines are alive.
    """
    n, paths, channels = q.shape
    (height, width), (_, x) = size, start
    fresh = z is None
    z = q.new_empty(n, height, width, channels) if z is None else z
    along_x, along_y = sweeps_of(coefficients, size, start)
    row = q.new_empty(n * paths, width, channels)
    column = q.new_empty(n * paths, height, channels)

    def keep_cell(index: int, cell: Tensor) -> None:
        row[:, index] = cell

    def keep_row(index: int, line: Tensor) -> None:
        _put(z[:, index], line, paths, fresh, level)
        column[:, index] = line.view(-1, width, channels)[:, x]

    def keep_column(index: int, line: Tensor) -> None:
        _put(z[:, :, index], line, paths, False)

    first, level = halves(q)
    _walk(first, along_x, keep_cell)
    _walk(row.view(-1, channels), along_y, keep_row)
    _walk(column.view(-1, channels), along_x, keep_column)
    return z


def halves(q: Tensor) -> tuple[Tensor, Tensor]:
    """Half of q (N, M, C) as rows, zero where all its channels are one value; that value, summed over paths: (N, 1, 1).

    Adding one number to all channels of q adds it to all of z and changes nothing else.
    """
    level = q[..., :1] * (q == q[..., :1]).all(-1, keepdim=True)
    return (0.5 * (q - level)).reshape(-1, q.shape[-1]), level.sum(1, keepdim=True)


def _put(place: Tensor, line: Tensor, paths: int, fresh: bool, level: Tensor | None = None) -> None:
    """A line (N·M·L, C), summed over its paths, with the level that was taken off, into or onto its place (N, L, C)."""
    by_path = line.view(place.shape[0], paths, *place.shape[1:])
    if fresh and level is not None:
        torch.add(by_path[:, 0], level, out=place)
    else:
        place.add_(by_path[:, 0])
        if level is not None:
            place.add_(level)
    for path in range(1, paths):
        place.add_(by_path[:, path])


def _walk(first: Tensor, sweep: Sweep, keep: Keep) -> None:
    """Walk from the line `first` (rows, C) both ways; hand every line to `keep`."""
    keep(sweep.start, first)
    ends = [first, first]
    if sweep.together:
        assert sweep.stacked is not None
        here = first.expand(2, *first.shape)
        buffers = first.new_empty(4, 2, *first.shape)
        multiply = multiplier(sweep.stacked, len(first), sweep.together)
        for step in range(sweep.together):
            advance(here, multiply, buffers[step % 2], buffers[2], buffers[3])
            here = buffers[step % 2]
            keep(sweep.start + step + 1, here[0])
            keep(sweep.start - step - 1, here[1])
        ends = list(here.clone())
    buffers = first.new_empty(4, *first.shape)
    for way, indices in sweep.alone():
        here, multiply = ends[way], multiplier(sweep.matrices[way], len(first), len(indices))
        for step, index in enumerate(indices):
            advance(here, multiply, buffers[step % 2], buffers[2], buffers[3])
            here = buffers[step % 2]
            keep(index, here)


class Grow(torch.autograd.Function):
    """`grow` with a backward that keeps the lines alone, recomputes ẑ, and gathers large weight-gradient products."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, A: Tensor, B: Tensor, A_minus: Tensor, B_minus: Tensor, size: Position, start: Position
    ) -> Tensor:
        n, paths, channels = q.shape
        (height, width), (_, x) = size, start
        along_x, along_y = sweeps_of(Coefficients(A, B, A_minus, B_minus), size, start)
        first, level = halves(q)
        cells = Tape.record(first, along_x)
        line = torch.stack([cells.line(index) for index in range(width)], dim=1)  # (R, W, C)
        rows = Tape.record(line.view(-1, channels), along_y)
        line = torch.stack([rows.line(index).view(-1, width, channels)[:, x] for index in range(height)], dim=1)
        columns = Tape.record(line.view(-1, channels), along_x)
        del line
        z = q.new_empty(n, height, width, channels)
        for index in range(height):
            _put(z[:, index], rows.line(index), paths, fresh=True, level=level)
        for index in range(width):
            _put(z[:, :, index], columns.line(index), paths, fresh=False)
        tapes = [tape.tensors() for tape in (cells, rows, columns)]
        ctx.save_for_backward(A, B, A_minus, B_minus, *(tensor for tensors in tapes for tensor in tensors))
        ctx.paths, ctx.size, ctx.start, ctx.kept = paths, size, start, [len(tensors) for tensors in tapes]
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        A, B, A_minus, B_minus, *kept = ctx.saved_tensors
        (height, width), (_, x), paths = ctx.size, ctx.start, ctx.paths
        along_x, along_y = sweeps_of(Coefficients(A, B, A_minus, B_minus), ctx.size, ctx.start)
        tensors = iter(kept)
        cells, rows, columns = (
            Tape.restore(sweep, [next(tensors) for _ in range(count)])
            for sweep, count in zip((along_x, along_y, along_x), ctx.kept, strict=True)
        )
        n, channels = len(gradient), gradient.shape[-1]
        wanted = ctx.needs_input_grad[1:5]
        x_weights, y_weights = ([torch.zeros_like(A) if w else None for w in wanted[i::2]] for i in (0, 1))

        def add_column(index: int, g: Tensor) -> None:
            g.view(n, paths, height, channels).add_(gradient[:, None, :, index])

        column = columns.backward(add_column, x_weights).view(-1, height, channels)

        def add_row(index: int, g: Tensor) -> None:
            g.view(n, paths, width, channels).add_(gradient[:, None, index])
            g.view(-1, width, channels)[:, x] += column[:, index]

        row = rows.backward(add_row, y_weights).view(-1, width, channels)

        def add_cell(index: int, g: Tensor) -> None:
            g.add_(row[:, index])

        q = cells.backward(add_cell, x_weights).mul_(0.5)
        return q.view(n, paths, channels), x_weights[0], y_weights[0], x_weights[1], y_weights[1], None, None


class Run(NamedTuple):
    """Steps by one matrix, or by two at once: their states, and the moments of all states but the last."""

    states: Tensor  # (T + 1, [2,] rows, C)
    mean: Tensor  # (T, [2,] rows, 1)
    r: Tensor

    @classmethod
    def record(cls, first: Tensor, matrix: Tensor, steps: int) -> Run:
        if not steps:
            return cls(first[None], first[:0], first[:0])
        states = first.new_empty(steps + 1, *first.shape)
        mean, r = first.new_empty(2, steps, *first.shape[:-1], 1)
        centred, product = first.new_empty(2, *first.shape)
        states[0] = first
        multiply = multiplier(matrix, first.shape[-2], steps)
        for step in range(steps):
            mean[step], r[step] = advance(states[step], multiply, states[step + 1], centred, product)
        return cls(states, mean, r)

    def backward(
        self, g: Tensor, matrix: Tensor, add_gradient: Callable[[int, Tensor], None], weights: list[Tensor | None]
    ) -> Tensor:
        """The gradient of the first state from that of the last, g; `add_gradient(step, g)` adds what else reaches one.

        With d = g A, the gradient of h is g + r (d − mean d − ẑ · mean(d ẑ)), and that of A is the sum of ½ gᵀ ẑ.
        """
        steps, (*ways, rows, channels) = len(self.r), g.shape
        chunk = min(steps, -(-ROWS // rows))
        gs, z_hats = g.new_empty(2, *ways, chunk, rows, channels)
        product = torch.empty_like(g)
        multiply = torch.bmm if ways else torch.mm
        slot = 0
        gs[..., slot, :, :] = g
        for step in reversed(range(steps)):
            g, z_hat = gs[..., slot, :, :], z_hats[..., slot, :, :]
            mean, r = self.mean[step], self.r[step]
            torch.addcmul(-2 * mean * r, self.states[step], 2 * r, out=z_hat)
            d = multiply(g, matrix, out=product)
            rest = r * d.mean(-1, keepdim=True)
            along = -r / channels * torch.linalg.vecdot(d, z_hat)[..., None]
            slot += 1
            if slot == chunk or step == 0:
                _add_products(weights, gs[..., :slot, :, :], z_hats[..., :slot, :, :])
                slot = 0
            before = gs[..., slot, :, :]
            torch.addcmul(g, d, r, out=before).addcmul_(z_hat, along).sub_(rest)
            if step:
                add_gradient(step, before)
        return before


def _add_products(weights: list[Tensor | None], g: Tensor, z_hat: Tensor) -> None:
    """½ gᵀ ẑ over all rows, onto each way's weight gradient."""
    channels = g.shape[-1]
    for way, weight in enumerate(weights):
        if weight is not None:
            own_g, own_z_hat = (t[way] if len(weights) > 1 else t for t in (g, z_hat))
            weight.addmm_(own_g.reshape(-1, channels).T, own_z_hat.reshape(-1, channels), alpha=0.5)


class Tape(NamedTuple):
    """All lines of one sweep: both ways together while both go on, then each way alone."""

    sweep: Sweep
    pair: Run | None
    alone: tuple[Run, Run]  # ahead, back

    @classmethod
    def record(cls, first: Tensor, sweep: Sweep) -> Tape:
        pair = None
        ends = [first, first]
        if sweep.stacked is not None:
            pair = Run.record(first.expand(2, *first.shape), sweep.stacked, sweep.together)
            ends = list(pair.states[-1])
        ahead, back = (Run.record(ends[way], sweep.matrices[way], len(indices)) for way, indices in sweep.alone())
        return cls(sweep, pair, (ahead, back))

    def tensors(self) -> list[Tensor]:
        return [tensor for run in (self.pair, *self.alone) if run is not None for tensor in run]

    @classmethod
    def restore(cls, sweep: Sweep, tensors: list[Tensor]) -> Tape:
        *pair, ahead, back = (Run(*tensors[i : i + 3]) for i in range(0, len(tensors), 3))
        return cls(sweep, pair[0] if pair else None, (ahead, back))

    def line(self, index: int) -> Tensor:
        """The line (rows, C) at an index."""
        steps, way = abs(index - self.sweep.start), int(index < self.sweep.start)
        if self.pair is not None and steps <= self.sweep.together:
            return self.pair.states[steps, way]
        return self.alone[way].states[steps - self.sweep.together]

    def backward(self, add_gradient: Keep, weights: list[Tensor | None]) -> Tensor:
        """The gradient of the first line (rows, C); those of the two matrices are added to `weights`.

        `add_gradient(index, g)` adds to g what reaches the line at an index from outside.
        """
        start, together = self.sweep.start, self.sweep.together
        ends: list[Tensor] = []  # of the two ways alone: the gradients of their first states
        for way, (run, sign) in enumerate(zip(self.alone, (1, -1), strict=True)):
            origin = start + sign * together
            g = torch.zeros_like(run.states[0])
            if len(run.r):
                add_gradient(origin + sign * len(run.r), g)
                inside = partial(_shifted, add_gradient, origin, sign)
                g = run.backward(g, self.sweep.matrices[way], inside, weights[way : way + 1])
            ends.append(g)
        total = torch.zeros_like(ends[0])
        if self.pair is not None:
            assert self.sweep.stacked is not None

            def both(step: int, g: Tensor) -> None:
                add_gradient(start + step, g[0])
                add_gradient(start - step, g[1])

            g = torch.stack(ends)
            both(together, g)
            ends = list(self.pair.backward(g, self.sweep.stacked, both, weights))
        add_gradient(start, total)
        return total.add_(ends[0]).add_(ends[1])


def _shifted(add_gradient: Keep, origin: int, sign: int, step: int, g: Tensor) -> None:
    add_gradient(origin + sign * step, g)

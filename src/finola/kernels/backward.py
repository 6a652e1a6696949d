"""Custom autograd function of the recurrence: states are stored, ẑ is recomputed, weight gradients are batched.

`Grow` is `forward.grow` with gradients. A `Trajectory` stores the lines of one sweep as `Run`s of steps with one matrix
or two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from finola.kernels.forward import (
    Keep,
    Position,
    Scratch,
    Sweep,
    advance,
    halves,
    multiplier,
    put_columns,
    put_rows,
    sweeps_of,
    take_cells,
)

ROWS = 256  # rows per product of a weight gradient: as fast as the whole map, with a fraction of its memory


class Grow(torch.autograd.Function):
    """`grow` with a backward pass that stores states only, recomputes ẑ, and batches weight-gradient products."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, A: Tensor, B: Tensor, A_minus: Tensor, B_minus: Tensor, size: Position, start: Position
    ) -> Tensor:
        n, paths, channels = q.shape
        (height, width), (_, x) = size, start
        along_x, along_y = sweeps_of((A, B, A_minus, B_minus), size, start)
        first, level = halves(q)
        scratch = Scratch(q)
        cells = Trajectory.record(first, along_x, scratch)
        cells.replay(partial(take_cells, row := q.new_empty(n * paths, width, channels), 0))
        rows = Trajectory.record(row.view(-1, channels), along_y, scratch)
        rows.replay(partial(take_cells, column := q.new_empty(n * paths, height, channels), x))
        columns = Trajectory.record(column.view(-1, channels), along_x, scratch)
        z = q.new_empty(n, height, width, channels)
        rows.replay(partial(put_rows, z, paths, True))
        columns.replay(partial(put_columns, z, paths))
        if level is not None:
            z.add_(level)
        trajectories = (cells, rows, columns)
        saved = [trajectory.tensors() for trajectory in trajectories]
        ctx.save_for_backward(A, B, A_minus, B_minus, *(tensor for tensors in saved for tensor in tensors))
        ctx.paths, ctx.size, ctx.start, ctx.saved = paths, size, start, [len(tensors) for tensors in saved]
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        A, B, A_minus, B_minus, *saved = ctx.saved_tensors
        (height, width), (_, x), paths = ctx.size, ctx.start, ctx.paths
        along_x, along_y = sweeps_of((A, B, A_minus, B_minus), ctx.size, ctx.start)
        tensors = iter(saved)
        cells, rows, columns = (
            Trajectory.restore(sweep, [next(tensors) for _ in range(count)])
            for sweep, count in zip((along_x, along_y, along_x), ctx.saved, strict=True)
        )
        n, channels, scratch = len(gradient), gradient.shape[-1], Scratch(gradient)
        of_A, of_B, of_A_minus, of_B_minus = (
            torch.zeros_like(A) if wanted else None for wanted in ctx.needs_input_grad[1:5]
        )

        def add_columns(at: slice, g: Tensor) -> None:
            g.view(-1, n, paths, height, channels).add_(gradient[:, :, at].permute(2, 0, 1, 3)[:, :, None])

        column = columns.backward(add_columns, [of_A_minus, of_A], scratch).view(-1, height, channels)

        def add_rows(at: slice, g: Tensor) -> None:
            g.view(-1, n, paths, width, channels).add_(gradient[:, at].transpose(0, 1)[:, :, None])
            g.view(-1, n * paths, width, channels)[:, :, x] += column[:, at].transpose(0, 1)

        row = rows.backward(add_rows, [of_B_minus, of_B], scratch).view(-1, width, channels)

        def add_cells(at: slice, g: Tensor) -> None:
            g.add_(row[:, at].transpose(0, 1))

        q = cells.backward(add_cells, [of_A_minus, of_A], scratch).mul_(0.5)
        return q.view(n, paths, channels), of_A, of_B, of_A_minus, of_B_minus, None, None


class Run(NamedTuple):
    """Steps with one matrix, or with two in one batch: first state, following states, and moments of each step."""

    first: Tensor  # ([2,] rows, C)
    states: Tensor  # (T, [2,] rows, C)
    total: Tensor  # (T, [2,] rows, 1)
    r: Tensor

    @classmethod
    def record(cls, first: Tensor, matrix: Tensor, steps: int, scratch: Scratch) -> Run:
        states = first.new_empty(steps, *first.shape)
        total, r = first.new_empty(2, steps, *first.shape[:-1], 1)
        centred, product = scratch.lines(2, first.shape)
        multiply = multiplier(matrix)
        here = first
        for step in range(steps):
            total[step], r[step] = advance(here, multiply, states[step], centred, product)
            here = states[step]
        return cls(first, states, total, r)

    @property
    def last(self) -> Tensor:
        return self.states[-1] if len(self.states) else self.first

    def backward(
        self,
        g: Tensor,
        matrix: Tensor,
        add_gradient: Callable[[int, Tensor], None],
        weights: list[Tensor | None],
        scratch: Scratch,
    ) -> Tensor:
        """Gradient of the first state from the gradient g of the last; `add_gradient(step, g)` adds that of the map.

        With d = g A less its mean, the gradient of h is g + r (d − ẑ · mean(d ẑ)), and that of A is the sum of ½ gᵀ ẑ.
        """
        steps, (*ways, rows, channels) = len(self.r), g.shape
        chunk = min(steps, -(-ROWS // rows))
        lines = scratch.lines(2 * chunk + 1, g.shape)
        product, gs, z_hats = lines[0], *lines[1:].view(2, *ways, chunk, rows, channels)
        multiply = torch.bmm if ways else torch.mm
        matrix = matrix - matrix.mean(-1, keepdim=True)  # subtracts the mean from every d
        twice_r, along_r = 2 * self.r, self.r / -channels
        shift = self.total * twice_r / -channels
        slot = 0
        gs[..., slot, :, :] = g
        for step in reversed(range(steps)):
            g, z_hat = gs[..., slot, :, :], z_hats[..., slot, :, :]
            here = self.states[step - 1] if step else self.first
            torch.addcmul(shift[step], here, twice_r[step], out=z_hat)
            d = multiply(g, matrix, out=product)
            along = along_r[step] * torch.linalg.vecdot(d, z_hat)[..., None]
            slot += 1
            if slot == chunk or step == 0:
                _add_products(weights, gs[..., :slot, :, :], z_hats[..., :slot, :, :])
                slot = 0
            before: Tensor = gs[..., slot, :, :]
            torch.addcmul(g, d, self.r[step], out=before).addcmul_(z_hat, along)
            if step:
                add_gradient(step, before)
        return before.clone()


def _add_products(weights: list[Tensor | None], g: Tensor, z_hat: Tensor) -> None:
    """Add ½ gᵀ ẑ over all rows to the weight gradient of each direction."""
    channels = g.shape[-1]
    for way, weight in enumerate(weights):
        if weight is not None:
            own_g, own_z_hat = (t[way] if len(weights) > 1 else t for t in (g, z_hat))
            weight.addmm_(own_g.reshape(-1, channels).T, own_z_hat.reshape(-1, channels), alpha=0.5)


class Trajectory(NamedTuple):
    """All lines of one sweep: the batched steps of both directions, then the remaining ones of each."""

    sweep: Sweep
    pair: Run | None
    alone: tuple[Run, Run]  # back, ahead

    @classmethod
    def record(cls, first: Tensor, sweep: Sweep, scratch: Scratch) -> Trajectory:
        """Compute all lines from the line `first` (rows, C) in both directions."""
        pair = None
        ends = first.expand(2, *first.shape)
        if sweep.stacked is not None:
            pair = Run.record(ends, sweep.stacked, sweep.together, scratch)
            ends = pair.last
        back, ahead = (Run.record(ends[way], sweep.matrices[way], sweep.alone[way], scratch) for way in (0, 1))
        return cls(sweep, pair, (back, ahead))

    def replay(self, keep: Keep) -> None:
        """Call `keep` with every line, in the order of `_walk`."""
        keep(self.sweep.pair(0), (self.pair.first[0] if self.pair is not None else self.alone[0].first)[None])
        if self.pair is not None:
            for step, lines in enumerate(self.pair.states, start=1):
                keep(self.sweep.pair(step), lines)
        for way, run in enumerate(self.alone):
            for step, line in enumerate(run.states, start=1):
                _keep_line(keep, self.sweep, way, step, line)

    def tensors(self) -> list[Tensor]:
        return [tensor for run in (self.pair, *self.alone) if run is not None for tensor in run]

    @classmethod
    def restore(cls, sweep: Sweep, tensors: list[Tensor]) -> Trajectory:
        *pair, back, ahead = (Run(*tensors[i : i + 4]) for i in range(0, len(tensors), 4))
        return cls(sweep, pair[0] if pair else None, (back, ahead))

    def backward(self, add_gradient: Keep, weights: list[Tensor | None], scratch: Scratch) -> Tensor:
        """Gradient of the first line (rows, C); those of the two matrices are added to `weights`.

        `add_gradient` adds the gradient of the map to that of a line.
        """
        sweep = self.sweep
        ends: list[Tensor] = []  # gradients of the first states of the remaining steps
        for way, run in enumerate(self.alone):
            g = torch.zeros_like(run.first)
            if len(run.r):
                add = partial(_keep_line, add_gradient, sweep, way)
                add(len(run.r), g)
                g = run.backward(g, sweep.matrices[way], add, weights[way : way + 1], scratch)
            ends.append(g)
        total = torch.zeros_like(ends[0])
        if self.pair is not None:
            assert sweep.stacked is not None

            def add_pair(step: int, g: Tensor) -> None:
                add_gradient(sweep.pair(step), g)

            g = torch.stack(ends)
            add_pair(sweep.together, g)
            ends = list(self.pair.backward(g, sweep.stacked, add_pair, weights, scratch))
        add_gradient(sweep.pair(0), total[None])
        return total.add_(ends[0]).add_(ends[1])


def _keep_line(keep: Keep, sweep: Sweep, way: int, step: int, line: Tensor) -> None:
    """Call `keep` with a line of the remaining steps of one direction."""
    keep(sweep.line(way, sweep.together + step), line[None])

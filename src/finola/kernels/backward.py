"""Backward pass of the recurrence: ẑ is recomputed from the stored states, and weight gradients are batched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.kernels.forward import (
    EPS,
    Keep,
    Matrices,
    Plan,
    Position,
    Step,
    Sweep,
    directions,
    parted,
    split,
    within,
)

ROWS = 256  # rows per product of a weight gradient: as fast as the whole map, with a fraction of its memory


def grow_backward(
    gradient: Tensor,
    matrices: Matrices,
    size: Position,
    starts: Sequence[Position],
    states: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor]:
    """Gradients of q and of the four matrices from that of z (N, H, W, C) and the recorded states of `grow`.

    Those of matrices that are not `wanted` are empty.
    """
    plan = Plan(matrices, size, starts)
    weights = [matrix.new_zeros(matrix.shape if own else 0) for matrix, own in zip(matrices, wanted, strict=True)]
    of_A, of_B, of_A_minus, of_B_minus = weights
    cell_states, row_states, column_states = states
    rows, columns = gradient.transpose(0, 1), gradient.permute(2, 0, 1, 3)

    def add_columns(t: int, step: Step, g: Tensor) -> None:
        for group, own in split(g, step):
            own.add_(columns[group.at][:, None])

    column = walk_back(columns, column_states, plan.along_x, add_columns, (of_A_minus, of_A))
    column_cells = parted(column, plan.along_y, plan.by_x)

    def add_rows(t: int, step: Step, g: Tensor) -> None:
        for group, own in split(g, step):
            own.add_(rows[group.at][:, None])
            for there, cells in plan.crossings(own, group, column_cells[t, group.paths]):
                there.add_(cells)

    row = walk_back(rows, row_states, plan.along_y, add_rows, (of_B_minus, of_B))
    to_rows = sorted(range(len(starts)), key=lambda column: plan.by_x[column])
    row_cells = parted(row, plan.along_x, to_rows)

    def add_cells(t: int, step: Step, g: Tensor) -> None:
        g[:, :, 0] += row_cells[t, step.paths]

    cells = walk_back(row_cells[0, :, :, None], cell_states, plan.along_x, add_cells, (of_A_minus, of_A))
    by_x = [plan.by_y[row] for row in plan.by_x]
    q = torch.stack([cells[by_x.index(path), :, 0] for path in range(len(starts))], 1)
    return [0.5 * q, *weights]


def walk_back(like: Tensor, states: Tensor, sweep: Sweep, add_gradient: Keep, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Gradient of the start lines (paths, N, L, C); those of the matrices back and ahead are added to `weights`.

    `add_gradient` adds the gradient of the map to that of the lines of a step.
    """
    paths, shape = len(sweep.starts), like.shape[1:]
    total = like.new_zeros(paths, *shape)
    if len(sweep.steps) > 1:
        moving = sweep.steps[1].paths
        products = Products(weights)
        step = sweep.steps[-1]
        g = like.new_zeros(step.paths.stop - step.paths.start, *shape)
        for t in reversed(range(1, len(sweep.steps))):
            before, step = step, sweep.steps[t]
            if before.paths != step.paths:
                outside = before.paths.start - step.paths.start, step.paths.stop - before.paths.stop
                g = F.pad(g, (0, 0) * (g.ndim - 1) + outside)
            add_gradient(t, step, g)
            h = within(states[t - 1], step.paths, moving)
            z_hat, mean, inverse = torch.native_layer_norm(h, h.shape[-1:], None, None, EPS / 4)
            products.add(g, z_hat, step)
            d = sweep.transposed(g, step)
            of_norm = torch.ops.aten.native_layer_norm_backward
            d = of_norm(d, h, h.shape[-1:], mean, inverse, None, None, [True, False, False])[0]
            g = torch.add(g, d, alpha=0.5)
        products.flush()
        back = paths - moving.start
        total[moving.start :] += g[:back]
        total[: moving.stop - paths] += g[back:]
    add_gradient(0, sweep.steps[0], total)
    return total


class Products:
    """Sums ½ gᵀ ẑ of many steps in products of at least `ROWS` rows."""

    def __init__(self, weights: tuple[Tensor, Tensor]) -> None:
        self.weights = weights
        self.pending: tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]] = [], []

    def add(self, g: Tensor, z_hat: Tensor, step: Step) -> None:
        for pending, *own in zip(self.pending, directions(g, step), directions(z_hat, step), strict=True):
            pending.append((own[0], own[1]))
        if sum(len(g) for g, _ in self.pending[0]) >= ROWS or sum(len(g) for g, _ in self.pending[1]) >= ROWS:
            self.flush()

    def flush(self) -> None:
        for weight, pending in zip(self.weights, self.pending, strict=True):
            own = [pair for pair in pending if len(pair[0])]
            if own and weight.numel():
                g, z_hat = (torch.cat(rows) if len(rows) > 1 else rows[0] for rows in zip(*own, strict=True))
                weight.addmm_(g.T, z_hat, alpha=0.5)
            pending.clear()

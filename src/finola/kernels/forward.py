"""Forward pass of the recurrence with few and large matrix products; the result is that of `stepwise`.

Both orders agree on the row and the column of a start. So the row of each start is computed position by position, all
other rows from it, and all other columns from the start's column, which the rows contain. The paths, whatever their
starts, advance in lockstep: step t computes the lines at distance t from the starts of all paths, ahead (right, down)
and back (left, up), as long as they are inside the map. No decision depends on values, so the recurrence can be
captured in a CUDA graph.

States are stored at half their size, h = z / 2, so that the sum of both orders is their mean. With the normalised
state ẑ, which is the same for h and ε / 4, one step is

    h' = h + ½ A ẑ                                                                                   (half of Eq. 1)

A constant q stays constant: its value is subtracted, so that the recurrence computes exact zeros, and added to the
result. See docs/speed.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-6
"""ε of the layer norm; the paper does not give one."""

Position = tuple[int, int]
Matrices = tuple[Tensor, Tensor, Tensor, Tensor]
"""A, B, A₋, B₋, each (C, C): right, down, left, up."""

PAIRED = 512  # largest number of channels for which a batched product is faster, including stacking the matrices


class Group(NamedTuple):
    """Lines of consecutive paths at equally spaced positions, `each` paths at every one of them."""

    paths: slice  # in the list of all paths back, then all paths ahead
    each: int
    at: slice  # ascending positions


class Step(NamedTuple):
    """The lines at one distance from the starts that are inside the map."""

    paths: slice  # in the list of all paths back, then all paths ahead
    back: int  # how many of these step back
    groups: list[Group]


@lru_cache(maxsize=64)
def schedule(starts: tuple[int, ...], length: int) -> list[Step]:
    """Steps of paths with these ascending starts along an axis; step 0 are the start lines.

    Paths back are moving while start ≥ t, which are the last ones, and paths ahead while start < length − t, the first
    ones. With paths back stored before paths ahead, those that move are adjacent in memory.
    """
    count = len(starts)
    steps = [Step(slice(0, count), count, _groups(list(starts), 0))]
    for t in range(1, max(starts[-1], length - 1 - starts[0]) + 1):
        first, stop = bisect_left(starts, t), bisect_right(starts, length - 1 - t)
        positions = [start - t for start in starts[first:]] + [start + t for start in starts[:stop]]
        steps.append(Step(slice(first, count + stop), count - first, _groups(positions, first)))
    return steps


def _groups(positions: list[int], first: int) -> list[Group]:
    """Group the positions of adjacent paths, of which the first one has the number `first`."""
    groups: list[Group] = []
    index = 0
    while index < len(positions):
        stop = index
        while stop < len(positions) and positions[stop] == positions[index]:
            stop += 1
        here, paths, each = positions[index], slice(first + index, first + stop), stop - index
        group = groups[-1] if groups else None
        apart = here - (group.at.stop - 1) if group else 0
        if group and group.each == each and (apart == group.at.step or (_lines(group) == 1 and apart > 0)):
            groups[-1] = Group(slice(group.paths.start, paths.stop), each, slice(group.at.start, here + 1, apart))
        else:
            groups.append(Group(paths, each, slice(here, here + 1, 1)))
        index = stop
    return groups


def _lines(group: Group) -> int:
    return int(group.paths.stop - group.paths.start) // group.each


class Sweep:
    """Recurrence along one axis, of paths ordered by their starts, with one matrix for each direction."""

    def __init__(self, starts: Sequence[int], length: int, back: Tensor, ahead: Tensor) -> None:
        self.starts, self.length = tuple(starts), length
        self.steps = schedule(self.starts, length)
        self.matrices = back, ahead
        paired = any(step.back and step.back < step.paths.stop - step.paths.start for step in self.steps)
        self.stacked = torch.stack([back, ahead]) if paired and (len(back) <= PAIRED or not back.is_cpu) else None

    def advance(self, h: Tensor, step: Step, out: Tensor) -> None:
        """Write h + ½ A ẑ to `out` for the lines h (paths, N, L, C) that move in a step."""
        z_hat = torch.native_layer_norm(h, h.shape[-1:], None, None, EPS / 4)[0]
        if self.stacked is not None and 2 * step.back == len(h):
            torch.baddbmm(halved(h), halved(z_hat), self.stacked.mT, alpha=0.5, out=halved(out))
            return
        for matrix, here, own, target in zip(
            self.matrices, directions(h, step), directions(z_hat, step), directions(out, step), strict=True
        ):
            if len(here):
                torch.addmm(here, own, matrix.mT, alpha=0.5, out=target)

    def transposed(self, g: Tensor, step: Step) -> Tensor:
        """g A for the lines g (paths, N, L, C) that move in a step."""
        if self.stacked is not None and 2 * step.back == len(g):
            return torch.bmm(halved(g), self.stacked).view_as(g)
        d = torch.empty_like(g)
        for matrix, own, target in zip(self.matrices, directions(g, step), directions(d, step), strict=True):
            if len(own):
                torch.mm(own, matrix, out=target)
        return d


def halved(lines: Tensor) -> Tensor:
    """Lines of as many paths back as ahead: (2, rows, C)."""
    return lines.view(2, -1, lines.shape[-1])


def directions(lines: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Rows (rows, C) of the paths back and of the paths ahead."""
    rows = lines.view(-1, lines.shape[-1])
    back = step.back * (len(rows) // len(lines))
    return rows[:back], rows[back:]


Keep = Callable[[int, Step, Tensor], None]  # distance t, its step, and its lines (paths, N, L, C)


def walk(first: Tensor, sweep: Sweep, keep: Keep, *, record: bool) -> Tensor:
    """Compute all lines from the start lines (paths, N, L, C), call `keep` with each step, and return the last lines.

    With `record`, the result are the lines of all steps (T, paths that move, N, L, C); entries outside the map are
    not initialised.
    """
    keep(0, sweep.steps[0], first)
    if len(sweep.steps) == 1:
        return first[None, :0]
    moving, paths = sweep.steps[1].paths, len(first)
    states = first.new_empty(len(sweep.steps) if record else 1, moving.stop - moving.start, *first.shape[1:])
    torch.cat([first[moving.start :], first[: moving.stop - paths]], out=states[0])
    before, here = moving, states[0]
    for t, step in enumerate(sweep.steps[1:], start=1):
        here = within(here, step.paths, before)
        out = within(states[t], step.paths, moving) if record else here
        sweep.advance(here, step, out)
        keep(t, step, out)
        before, here = step.paths, out
    return states


def within(lines: Tensor, paths: slice, given: slice) -> Tensor:
    """Lines of some paths among those of `given`."""
    return lines if paths == given else lines[paths.start - given.start : paths.stop - given.start]


class Plan:
    """Sweeps of all paths. Rows and q are ordered by the start (y, x) of their path, columns by x."""

    def __init__(self, matrices: Matrices, size: Position, starts: Sequence[Position]) -> None:
        A, B, A_minus, B_minus = matrices
        self.by_y = sorted(range(len(starts)), key=lambda path: starts[path])
        self.ys, self.xs = zip(*(starts[path] for path in self.by_y), strict=True)
        self.by_x = sorted(range(len(starts)), key=lambda row: self.xs[row])  # row of every column
        self.along_x = Sweep([self.xs[row] for row in self.by_x], size[1], A_minus, A)
        self.along_y = Sweep(self.ys, size[0], B_minus, B)

    def crossings(self, lines: Tensor, group: Group, cells: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pairs of views: the positions x of the rows' own starts in lines (k, each, N, W, C), and cells (…, N, C)."""
        xs = [self.xs[path % len(self.xs)] for path in range(group.paths.start, group.paths.stop)]
        if len(set(xs)) == 1:
            return [(lines[:, :, :, xs[0]], cells.view(*lines.shape[:3], -1))]
        apart = xs[1] - xs[0]
        if group.each > 1 and apart > 0 and xs == [*range(xs[0], xs[0] + group.each * apart, apart)] * len(lines):
            diagonal = lines[:, :, :, slice(xs[0], xs[group.each - 1] + 1, apart)].diagonal(0, 1, 3)  # (k, N, C, each)
            return [(diagonal, cells.view(*lines.shape[:3], -1).permute(0, 2, 3, 1))]
        return list(zip((line[:, x] for line, x in zip(lines.flatten(0, 1), xs, strict=True)), cells, strict=True))


def grow(q: Tensor, matrices: Matrices, size: Position, starts: Sequence[Position], *, record: bool) -> list[Tensor]:
    """Mean of both orders, summed over the paths of q (N, M, C): z (N, H, W, C).

    With `record`, the lines of all steps are returned after z; otherwise only a few lines are in memory besides z.
    """
    plan = Plan(matrices, size, starts)
    n, paths, channels = q.shape
    height, width = size
    h, level = halves(q)
    z = q.new_empty(n, height, width, channels)
    rows, columns = z.transpose(0, 1), z.permute(2, 0, 1, 3)
    fresh = len(set(starts)) == 1  # every position is written once
    if not fresh:
        z.copy_(level[..., None])
    row_cells = q.new_empty(len(plan.along_x.steps), 2 * paths, n, channels)
    column_cells = q.new_empty(len(plan.along_y.steps), 2 * paths, n, channels)

    def keep_cells(t: int, step: Step, lines: Tensor) -> None:
        row_cells[t, step.paths] = lines[:, :, 0]

    def keep_rows(t: int, step: Step, lines: Tensor) -> None:
        for group, own in split(lines, step):
            total = own.sum(1) if group.each > 1 else own[:, 0]
            if fresh:
                torch.add(total, level, out=rows[group.at])
            else:
                rows[group.at].add_(total)
            for there, cells in plan.crossings(own, group, column_cells[t, group.paths]):
                cells.copy_(there)

    def keep_columns(t: int, step: Step, lines: Tensor) -> None:
        for group, own in split(lines, step):
            columns[group.at].add_(own.sum(1) if group.each > 1 else own[:, 0])

    cells = h.unbind(1)
    first = torch.stack([cells[plan.by_y[row]] for row in plan.by_x])[:, :, None]  # (M, N, 1, C)
    states = [walk(first, plan.along_x, keep_cells, record=record)]
    to_rows = sorted(range(paths), key=lambda column: plan.by_x[column])
    states.append(walk(joined(row_cells, plan.along_x, to_rows), plan.along_y, keep_rows, record=record))
    states.append(walk(joined(column_cells, plan.along_y, plan.by_x), plan.along_x, keep_columns, record=record))
    return [z, *states] if record else [z]


def halves(q: Tensor) -> tuple[Tensor, Tensor]:
    """q / 2 without the constant vectors of q, and the sum over paths of their values (N, 1, 1).

    A number added to all channels of q is added to all of z and has no other effect.
    """
    constant = (q == q[..., :1]).all(-1, keepdim=True)
    level = q[..., :1].where(constant, 0)
    return 0.5 * (q - level), level.sum(1)[..., None]


def split(lines: Tensor, step: Step) -> list[tuple[Group, Tensor]]:
    """Lines (paths, N, L, C) of a step by group: (k, each, N, L, C)."""
    return [(group, within(lines, group.paths, step.paths).unflatten(0, (-1, group.each))) for group in step.groups]


def joined(cells: Tensor, sweep: Sweep, order: Sequence[int]) -> Tensor:
    """Lines (M, N, L, C), in another order of the paths, of the cells (T, 2 M, N, C) of all steps along them."""
    paths, steps = cells.shape[1] // 2, len(cells) - 1
    canvas = torch.cat([cells[1:, :paths].flip(0), cells[:1, :paths], cells[1:, paths:]])  # the starts at index T
    lines = [canvas[steps - sweep.starts[path] :, path][: sweep.length] for path in order]
    return torch.stack(lines).transpose(1, 2).contiguous()


def parted(lines: Tensor, sweep: Sweep, order: Sequence[int]) -> Tensor:
    """The inverse of `joined` for gradients: (T, 2 M, N, C), zero outside the map."""
    paths, n, _, channels = lines.shape
    steps = len(sweep.steps) - 1
    canvas = lines.new_zeros(2 * steps + 1, paths, n, channels)
    for line, path in zip(lines.transpose(1, 2), order, strict=True):
        canvas[steps - sweep.starts[path] :, path][: sweep.length] = line
    back, ahead = canvas[: steps + 1].flip(0), canvas[steps:]
    return torch.cat([back, ahead], 1)

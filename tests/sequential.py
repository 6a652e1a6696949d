"""Reference implementation of the recurrence: one position, path and image at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from finola.propagation import Position, Step


def sequential(q: Tensor, step: Step, size: Position, starts: list[Position], order: str = "mean") -> Tensor:
    """Propagate q (N, M, C) to z (N, C, H, W); path i starts at starts[i] = (y, x)."""
    height, width = size
    images = []
    for n in range(q.shape[0]):
        rows = []
        for y in range(height):
            row = []
            for x in range(width):
                value = torch.zeros_like(q[n, 0])
                for m, start in enumerate(starts):
                    horizontal = walk(q[n, m], step, start, (y, x), horizontal_first=True)
                    vertical = walk(q[n, m], step, start, (y, x), horizontal_first=False)
                    both = {"mean": (horizontal + vertical) / 2, "horizontal": horizontal, "vertical": vertical}
                    value = value + both[order]
                row.append(value)
            rows.append(torch.stack(row))
        images.append(torch.stack(rows))
    return torch.stack(images).permute(0, 3, 1, 2)


def walk(q: Tensor, step: Step, start: tuple[int, int], end: tuple[int, int], horizontal_first: bool) -> Tensor:
    """z at `end`, reached from q at `start` along one L-shaped path."""
    dy, dx = end[0] - start[0], end[1] - start[1]
    horizontal = ["right" if dx > 0 else "left"] * abs(dx)
    vertical = ["down" if dy > 0 else "up"] * abs(dy)
    z = q[None]
    for direction in horizontal + vertical if horizontal_first else vertical + horizontal:
        z = step(z, direction)  # type: ignore[arg-type]
    return z[0]

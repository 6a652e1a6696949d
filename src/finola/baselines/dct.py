"""Block DCT: 8×8 blocks, of which the first K coefficients in zig-zag order are kept."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finola.baselines import Code, Peer
from finola.tiling import cut, join, pad_to_multiple

SIDE = 8


def matrix() -> Tensor:
    """The orthonormal DCT-II, float64: row k is cos(π(2n + 1)k / 16).

    >>> torch.allclose(matrix() @ matrix().T, torch.eye(8, dtype=torch.float64))
    True
    """
    n = torch.arange(SIDE, dtype=torch.float64)
    rows = torch.cos(math.pi * (2 * n + 1) * n[:, None] / (2 * SIDE)) * math.sqrt(2 / SIDE)
    rows[0] /= math.sqrt(2)
    return rows


def zigzag() -> list[tuple[int, int]]:
    """(row, column) of all 64 coefficients in JPEG's order.

    >>> zigzag()[:6]
    [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (0, 2)]
    """
    cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    return sorted(cells, key=lambda c: (sum(c), c[0] if sum(c) % 2 else c[1]))


def dct(kept: int) -> Peer:
    """The first `kept` coefficients of every block and colour: 3072·K latents for 256×256 pixels."""
    if not 1 <= kept <= SIDE * SIDE:
        raise ValueError(f"dct:{kept} keeps no such number of coefficients: a block has 1 to {SIDE * SIDE}.")
    basis = matrix()
    rows, columns = torch.tensor(zigzag()[:kept]).T

    def encode(image: Tensor) -> Code:
        blocks, grid = cut(pad_to_multiple(image[None].double(), (SIDE, SIDE)), (SIDE, SIDE))  # (blocks, 3, 8, 8)
        coefficients = (basis @ blocks @ basis.T)[:, :, rows, columns]
        return Code((coefficients, grid), (image.shape[-2], image.shape[-1]), latents=coefficients.numel())

    def decode(code: Code) -> Tensor:
        kept_values, grid = code.data
        coefficients = kept_values.new_zeros(*kept_values.shape[:2], SIDE, SIDE)
        coefficients[:, :, rows, columns] = kept_values
        height, width = code.size
        return join(basis.T @ coefficients @ basis, grid)[0, :, :height, :width].float()

    return Peer(f"dct:{kept}", encode, decode)

"""Block DCT: the first K coefficients, in zig-zag order, of every 8×8 block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finola.baselines import Code, Method
from finola.errors import InputError
from finola.tiling import cut, join

SIDE = 8


def matrix() -> Tensor:
    """Orthonormal DCT-II matrix (8, 8), float64: row k is cos(π(2n + 1)k / 16), normalised.

    >>> torch.allclose(matrix() @ matrix().T, torch.eye(8, dtype=torch.float64))
    True
    """
    n = torch.arange(SIDE, dtype=torch.float64)
    rows = torch.cos(math.pi * (2 * n + 1) * n[:, None] / (2 * SIDE)) * math.sqrt(2 / SIDE)
    rows[0] /= math.sqrt(2)
    return rows


def zigzag() -> list[tuple[int, int]]:
    """Return (row, column) of all 64 coefficients in the zig-zag order of JPEG.

    >>> zigzag()[:6]
    [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (0, 2)]
    """
    cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    return sorted(cells, key=lambda c: (sum(c), c[0] if sum(c) % 2 else c[1]))


def dct(count: int) -> Method:
    """Block DCT with the first `count` coefficients per block and colour: 3072·count latents for 256×256 pixels."""
    if not 1 <= count <= SIDE * SIDE:
        raise InputError(f"dct:{count}: the number of coefficients per block must be 1 to {SIDE * SIDE}.")
    basis = matrix()
    rows, columns = torch.tensor(zigzag()[:count]).T

    def encode(image: Tensor) -> Code:
        blocks, grid = cut(image[None].double(), (SIDE, SIDE))  # (blocks, 3, 8, 8)
        coefficients = (basis @ blocks @ basis.T)[:, :, rows, columns]
        return Code((coefficients, grid), (image.shape[-2], image.shape[-1]), latents=coefficients.numel())

    def decode(code: Code) -> Tensor:
        values, grid = code.data
        coefficients = values.new_zeros(*values.shape[:2], SIDE, SIDE)
        coefficients[:, :, rows, columns] = values
        return join(basis.T @ coefficients @ basis, grid, code.size)[0].float()

    return Method(f"dct:{count}", encode, decode)

"""Kingsbury's dual-tree complex wavelet transform in two dimensions, equal to `Transform2d()` of the `dtcwt` package.

Level 1 filters with `near_sym_a` without decimation. Each later level filters with the 10 taps of `qshift_a` and
decimates by two. The signal is extended by reflection. The samples of the two trees are interleaved, so the reflection
of one tree is the other tree: each later level is an orthonormal transform of a periodic signal, and its inverse is its
transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from finola.errors import InputError

# near_sym_a: each high-pass filter is the low-pass filter of the other side (analysis, synthesis), signs alternating.
H0 = [tap / 20 for tap in (-1, 5, 12, 5, -1)]
H1 = [tap / 280 for tap in (3, -15, -73, 170, -73, -15, 3)]
G0 = [tap / 280 for tap in (-3, -15, 73, 170, 73, -15, -3)]
G1 = [tap / 20 for tap in (-1, -5, 12, -5, -1)]

# qshift_a: the filters of one tree; those of the other tree are the same, reversed in time.
Q0 = [0.051130405283831656, -0.013975370246888838, -0.10983605166597087, 0.26383956105893763, 0.7666284677930372]
Q0 += [0.5636557101270515, 0.0008736226952170968, -0.1002312195074762, -0.0016896812725281543, -0.006181881892116438]
Q1 = [tap * (-1) ** (k + 1) for k, tap in enumerate(Q0)]


class DTCWT(NamedTuple):
    """Coefficients of images. The six subbands of a level have the orientations 15°, 45°, 75°, 105°, 135° and 165°."""

    lowpass: Tensor  # real (..., h, w)
    highpasses: tuple[Tensor, ...]  # complex (..., 6, h, w), the finest level first


def forward(images: Tensor, levels: int = 3) -> DTCWT:
    """Transform images (..., H, W). An odd side is made even by repeating its last row or column.

    >>> lowpass, highpasses = forward(torch.rand(3, 32, 48))
    >>> tuple(lowpass.shape), [tuple(level.shape) for level in highpasses]
    ((3, 8, 12), [(3, 6, 16, 24), (3, 6, 8, 12), (3, 6, 4, 6)])
    """
    if images.dtype not in (torch.float32, torch.float64):
        raise InputError(f"The images have dtype {images.dtype}; use torch.float32 or torch.float64.")
    if levels < 1:
        raise InputError(f"levels is {levels}; it must be at least 1.")
    low, highs = images, []
    for level in range(levels):
        A, B = (_operators(level, side)[0].to(low) for side in low.shape[-2:])
        low, high = _split(A @ low @ B.T)
        highs.append(high)
    return DTCWT(low, tuple(highs))


def inverse(coefficients: DTCWT, size: tuple[int, int] | None = None) -> Tensor:
    """Inverse transform to images of the given size (H, W); by default both sides are even.

    >>> images = torch.rand(2, 3, 9, 20)
    >>> torch.allclose(inverse(forward(images), size=(9, 20)), images, atol=1e-5)
    True
    """
    low, highs = coefficients
    sizes = [(2 * high.shape[-2], 2 * high.shape[-1]) for high in highs]
    if size is None:
        size = sizes[0]
    if (size[0] + size[0] % 2, size[1] + size[1] % 2) != sizes[0]:
        raise InputError(f"The coefficients belong to an image of size {sizes[0]}, which does not match size={size}.")
    for level, (high, sides) in reversed(list(enumerate(zip(highs, [size, *sizes[:-1]], strict=True)))):
        A, B = (_operators(level, side)[1].to(low) for side in sides)
        low = A @ _join(low, high) @ B.T
    return low


def count(coefficients: DTCWT) -> int:
    """Number of real coefficients; a complex coefficient counts as two.

    >>> count(forward(torch.zeros(3, 16, 16), levels=1)) // (3 * 16 * 16)
    4
    """
    return coefficients.lowpass.numel() + sum(2 * high.numel() for high in coefficients.highpasses)


def _split(bands: Tensor) -> tuple[Tensor, Tensor]:
    """Split real bands (..., 2 × 2h, 2 × 2w), low before high on both axes, into low (..., 2h, 2w) and complex high
    (..., 6, h, w)."""
    top, bottom = bands.chunk(2, dim=-2)
    (low, across), (down, both) = top.chunk(2, dim=-1), bottom.chunk(2, dim=-1)
    quads = torch.stack([down, both, across], dim=-3).unflatten(-2, (-1, 2)).unflatten(-1, (-1, 2)) / sqrt(2)
    a, b, c, d = quads[..., 0, :, 0], quads[..., 0, :, 1], quads[..., 1, :, 0], quads[..., 1, :, 1]
    left, right = torch.complex(a - d, b + c), torch.complex(a + d, b - c)
    return low, torch.cat([left, right.flip(-3)], dim=-3)


def _join(low: Tensor, high: Tensor) -> Tensor:
    """The inverse of `_split`."""
    left, right = high[..., :3, :, :], high[..., 3:, :, :].flip(-3)
    total, difference = left + right, right - left
    even = torch.stack([total.real, total.imag], dim=-1).flatten(-2)
    odd = torch.stack([-difference.imag, difference.real], dim=-1).flatten(-2)
    down, both, across = (torch.stack([even, odd], dim=-2).flatten(-3, -2) / sqrt(2)).unbind(-3)
    return torch.cat([torch.cat([low, across], dim=-1), torch.cat([down, both], dim=-1)], dim=-2)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _operators(level: int, n: int) -> tuple[Tensor, Tensor]:
    """Matrices of 1-D analysis (low-pass outputs before high-pass ones) and synthesis for n samples."""
    if level == 0:
        pad, m = 0, n + n % 2
        analysis = torch.cat([_filter(taps, torch.arange(m) - len(taps) // 2, 1, m) for taps in (H0, H1)])
        synthesis = torch.cat([_filter(taps, torch.arange(m) - len(taps) // 2, 1, m) for taps in (G0, G1)], dim=1)
    else:  # four samples, two of each tree, become two: if 4 does not divide n, pad by one sample at each end
        pad = int(n % 4 > 0)
        m = n + 2 * pad
        start = 4 * torch.arange(m // 4) - 8
        low = [_filter(Q0, start, 2, m), _filter(Q0[::-1], start + 1, 2, m)]
        high = [_filter(Q1, start + 1, 2, m), _filter(Q1[::-1], start, 2, m)]
        analysis = torch.cat([torch.stack(trees, dim=1).flatten(0, 1) for trees in (low, high)])
        synthesis = analysis.T
    repeated = (torch.arange(m) - pad).clamp(0, n - 1)
    return torch.zeros(len(analysis), n).double().index_add(1, repeated, analysis), synthesis[pad : pad + n]


def _filter(taps: Sequence[float], start: Tensor, stride: int, n: int) -> Tensor:
    """Matrix (len(start), n) whose row i applies the taps to samples start[i], start[i] + stride, … with reflection."""
    at = (start[:, None] + stride * torch.arange(len(taps))) % (2 * n)
    at = torch.minimum(at, 2 * n - 1 - at)
    weights = torch.tensor(taps, dtype=torch.float64).expand(at.shape)
    return torch.zeros(len(start), n).double().scatter_add(1, at, weights)

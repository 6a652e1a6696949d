"""Analysis by synthesis: numbers chosen for the picture that the decoder draws of them, not for the encoder's sake.

A tile's numbers b are scaled so that a step in any of them moves the pixels alike (`calibration`): JᵀJ ≈ 1 for the
decoder's slopes J. Around what is drawn now, b̂, the error is then |b − b̂ − Jᵀr|² but for a constant, r being what the
picture still lacks (before its tile borders are smoothed), so b̂ + Jᵀr is what should be rounded next, at the same
price per bit. It is a proximal gradient step; one backward pass of the decoder gives Jᵀr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finola.codec.calibration import CodecModel
from finola.tiles import join

ROUNDS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)  # by effort
STRIDE = 0.7  # of the way to the next target: the slopes differ from tile to tile
STRIP = 96  # tiles drawn at a time, or one row of them, with one more row on each side

Numbers = NDArray[np.float32]  # (tiles, K)
Rounding = Callable[[Numbers], tuple[Numbers, float]]  # numbers → what a file would say instead, and what its bits cost


def refine(codec: CodecModel, image: Tensor, b: Numbers, rounding: Rounding, rounds: int) -> Numbers:
    """The numbers, after so many tries, whose file costs least: squared error plus the price of its bits.

    A try that costs more than the best so far is taken back, and the next one goes half as far.
    """
    rounded, price = rounding(b)
    error, towards = error_and_step(codec, image, rounded)
    least, stride = error + price, STRIDE
    for _ in range(rounds):
        tried = b + np.float32(stride) * (rounded + towards - b)
        rounded_now, price = rounding(tried)
        error, towards_now = error_and_step(codec, image, rounded_now)
        if error + price < least:
            b, rounded, towards, least = tried, rounded_now, towards_now, error + price
        else:
            stride /= 2
    return b


def error_and_step(codec: CodecModel, image: Tensor, b: Numbers) -> tuple[float, Numbers]:
    """The squared error of what is drawn from b, and Jᵀr, strip by strip, each decoded with its neighbours."""
    height, width = image.shape[-2:]
    tile_height, tile_width = codec.model.config.image_size
    rows, columns = -(-height // tile_height), -(-width // tile_width)
    step = np.zeros_like(b)
    total = 0.0
    for (first, last), (above, below) in strips(rows, columns):
        own = slice(above * columns, below * columns)
        numbers = torch.from_numpy(b[own]).requires_grad_()
        with torch.enable_grad():
            z = codec.maps(codec.calibration.synthesise(numbers))
            drawn = codec.model.decode(join(z, (below - above, columns)))[0].clamp(0, 1)
            top, bottom = first * tile_height, min(height, last * tile_height)
            offset = above * tile_height
            lacking = image[:, top:bottom].float() / 255 - drawn[:, top - offset : bottom - offset, :width]
            error = lacking.square().sum()
            (slope,) = torch.autograd.grad(error / 2, numbers)
        step[own] -= slope.numpy()
        total += float(error.detach())
    return total, step


def strips(rows: int, columns: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(first, last + 1) tile rows to draw at a time, and the same with a row of neighbours on each side."""
    count = max(1, STRIP // columns)
    for first in range(0, rows, count):
        last = min(rows, first + count)
        yield (first, last), (max(0, first - 1), min(rows, last + 1))

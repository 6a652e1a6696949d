"""Baselines behind one interface (`Method`): classical transforms, image file formats and trained autoencoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor


class Code(NamedTuple):
    """Output of `Method.encode`: the data for `Method.decode`, and its cost."""

    data: Any
    size: tuple[int, int]  # of the image
    latents: int | None = None  # number of real coefficients; None for file formats
    bits: int | None = None  # size of the file; None for methods that do not write one


@dataclass(frozen=True)
class Method:
    """A named pair of functions: `encode` an image (3, H, W) in [0, 1], `decode` to an image of the same size."""

    name: str
    encode: Callable[[Tensor], Code]
    decode: Callable[[Code], Tensor]

"""Peers: other ways from an image to few numbers or few bits and back, all of one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor


class Code(NamedTuple):
    """What an encoder hands to its decoder, and what it costs."""

    data: Any
    size: tuple[int, int]  # of the image
    latents: int | None = None  # real numbers kept
    bits: int | None = None  # of the file, where there is one


@dataclass(frozen=True)
class Peer:
    """A method by name: `encode` an image (3, H, W) in [0, 1], `decode` it to an image of the same size."""

    name: str
    encode: Callable[[Tensor], Code]
    decode: Callable[[Code], Tensor]

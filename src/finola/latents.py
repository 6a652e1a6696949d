"""Latents of photos of any size, and the spaces in which the models have them.

A photo is cut into T tiles. The space of a model maps tiles to coordinates p (T, D) and back:

    analyse   images → what the latents of their tiles are chosen from
    choose    that → values, lengths and bases within a budget
    to_p      values and bases → p;   from_p   the inverse, an orthogonal map
    maps      p → the maps of the tiles;   paint   joined maps → pixels

q of a fixed length (`Space`) is the case of one basis and one length; a codebook (`CodebookSpace`) has several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from finola.config import DEFAULT_BUDGET
from finola.decoders.waves import ExactDecoder
from finola.encoders.elastic import elastic_encoder
from finola.errors import InputError
from finola.pixel_net import PixelNet
from finola.tiling import Size, cut, grid_of, join
from finola.wave.codebook import NUMBER_BITS, REFERENCE_PIXELS

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder


class Count(NamedTuple):
    """Numbers that describe a photo: latents of its tiles, and side information (their bases and lengths)."""

    values: int
    side: int  # in numbers of 32 bits

    @property
    def total(self) -> int:
        return self.values + self.side


@dataclass(frozen=True, eq=False)
class Latents:
    """Latents of the T tiles of a photo, row by row; those of N photos of equal size have an axis more in front."""

    values: Tensor  # (…, T, K), zero beyond the length of the tile
    length: Tensor  # (…, T) int64: numbers of the tile
    basis: Tensor  # (…, T) int64: element of the codebook
    size: Size  # (height, width) of the photo

    def __getitem__(self, index: int) -> Latents:
        """Latents of one of N photos."""
        return Latents(self.values[index], self.length[index], self.basis[index], self.size)

    def to(self, device: str | torch.device) -> Latents:
        """Copy to a device."""
        return Latents(self.values.to(device), self.length.to(device), self.basis.to(device), self.size)

    def with_values(self, values: Tensor) -> Latents:
        """The same lengths and bases with other values."""
        return replace(self, values=values)

    @property
    def used(self) -> Tensor:
        """Mask (…, T, K) of the values within the length of their tile."""
        return torch.arange(self.values.shape[-1], device=self.length.device) < self.length[..., None]

    def count(self, side_bits: float = 0.0) -> Count:
        """Numbers of a photo whose tiles have `side_bits` bits of side information each."""
        return Count(int(self.length.sum()), math.ceil(self.length.numel() * side_bits / NUMBER_BITS))


class Space:
    """Space of the latents of a model with q of a fixed length: p is q itself, flattened, and the maps are z.

    Regions of photos consist of whole tiles, `rows` × `columns` of them.
    """

    cells: Size  # positions of a tile in `maps`
    margin: Size  # positions of neighbouring tiles that `paint` takes into account on every side
    context = 0  # neighbouring tiles that `analyse` takes into account on every side
    most = 96  # tiles that are processed together: a compromise between the size of matrix products and memory
    side_bits = 0.0  # of the basis and the length of a tile
    is_orthonormal = False  # whether values are close to orthonormal coordinates of the pixels

    def __init__(self, model: Autoencoder) -> None:
        self.model, self.name, self.device = model, str(model.config), model.device
        self.tile, self.cells = model.config.image_size, model.config.map_size
        refinement = model.decoder.refinement if isinstance(model.decoder, ExactDecoder) else None
        near = max(1, neighbours(refinement, self.tile))  # a tile exceeds the reach of the other convolutional decoders
        self.margin = near * self.cells[0], near * self.cells[1]

    @property
    def near(self) -> int:
        """Neighbouring tiles that `paint` takes into account, in whole or in part, on every side."""
        return max(-(-margin // side) for margin, side in zip(self.margin, self.cells, strict=True))

    def analyse(self, images: Tensor) -> tuple[Tensor, ...]:
        """Analyse regions (N, 3, h, w) to tensors (N, rows, columns, …)."""
        tiles, grid = cut(images, self.tile)
        p = self.to_latents(self.model.encode(tiles))
        return (p.reshape(images.shape[0], *grid, p.shape[1]),)

    def check(self, budget: int | None, per_tile: int | None) -> None:
        """Raise InputError for a budget or a number per tile that are not possible."""
        if (budget, per_tile) != (None, None):
            raise InputError(f"{self.name} has q of a fixed length; budget and per_tile need an elastic model.")

    def choose(
        self, parts: tuple[Tensor, ...], size: Size, budget: int | None, per_tile: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values (T, K), lengths (T,) and bases (T,) of a photo from its analysis, tensors (T, …)."""
        values = parts[0].flatten(1)
        length = torch.full(values.shape[:1], values.shape[1], device=values.device)
        return values, length, torch.zeros_like(length)

    def to_p(self, values: Tensor, basis: Tensor) -> Tensor:
        """Coordinates p (T, D) of values (T, K)."""
        return values

    def from_p(self, p: Tensor, basis: Tensor) -> Tensor:
        """Values (T, K) of p (T, D), or of a gradient with respect to p."""
        return p

    def maps(self, p: Tensor) -> Tensor:
        """Maps (T, c, *cells) of tiles."""
        return self.model.propagate(self.to_q(p))

    def paint(self, maps: Tensor) -> Tensor:
        """Pixels (N, 3, h, w) of the joined maps of regions."""
        return self.model.decode(maps)

    def render(self, p: Tensor, grid: Size) -> Tensor:
        """Pixels (N, 3, h, w) of coordinates p (N·rows·columns, D), with gradients."""
        return self.paint(join(self.maps(p), grid))

    def to_latents(self, q: Tensor) -> Tensor:
        """q (T, M, C) → p (T, D)."""
        return q.flatten(1)

    def to_q(self, p: Tensor) -> Tensor:
        """p (T, D) → q (T, M, C)."""
        q: Tensor = p.unflatten(1, (self.model.config.paths, -1))
        return q


class CodebookSpace(Space):
    """Latents of an elastic model: every tile has a basis and a length of its own.

    The maps are the pixels of the exact waves, before the network of the decoder: propagation and read-out of exact
    waves are linear, and `Codebook.superpose` computes them as one matrix product. With `filtered=False`, tiles are
    projected without the network of the encoder.
    """

    most = 1024
    is_orthonormal = True

    def __init__(self, model: Autoencoder, *, filtered: bool = True) -> None:
        super().__init__(model)
        encoder = elastic_encoder(model)
        self.codebook, self.cells, self.side_bits = encoder.codebook, self.tile, encoder.codebook.side_bits
        self._prefilter = encoder.prefilter if filtered else None
        self.context = neighbours(self._prefilter, self.tile)
        assert isinstance(model.decoder, ExactDecoder)
        near = neighbours(model.decoder.refinement, self.tile)
        self.margin = near * self.tile[0], near * self.tile[1]

    def analyse(self, images: Tensor) -> tuple[Tensor, ...]:
        """The coordinates of the tiles, and those of the filtered tiles."""
        versions = [images] if self._prefilter is None else [images, self._prefilter(images)]
        parts = [cut(version, self.tile) for version in versions]
        return tuple(self.codebook.coordinates(tiles).reshape(images.shape[0], *grid, -1) for tiles, grid in parts)

    def check(self, budget: int | None, per_tile: int | None) -> None:
        if budget is not None and per_tile is not None:
            raise InputError(f"budget ({budget}) and per_tile ({per_tile}) exclude each other; use one of them.")
        if per_tile is not None:
            self.codebook.length_index(per_tile)
        tiles = REFERENCE_PIXELS / (self.tile[0] * self.tile[1])
        least = math.ceil(tiles * (1 + self.side_bits / NUMBER_BITS))
        if budget is not None and budget < least:
            raise InputError(
                f"budget must be at least {least} per 256×256 pixels for {self.name}, not {budget}: "
                "every tile needs one number, and its side information is counted."
            )

    def choose(
        self, parts: tuple[Tensor, ...], size: Size, budget: int | None, per_tile: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Bases and lengths are chosen for the unfiltered tiles, whose errors are the ones to be reduced."""
        numbers = None if per_tile else budget_of(size, self.tile, budget, self.side_bits)
        basis, length = self.codebook.choose(parts[0], budget=numbers, length=per_tile)
        return self.codebook.encode(parts[-1], basis, length), length, basis

    def to_p(self, values: Tensor, basis: Tensor) -> Tensor:
        return self.codebook.decode(values, basis)

    def from_p(self, p: Tensor, basis: Tensor) -> Tensor:
        return self.codebook.components(p, basis)

    def maps(self, p: Tensor) -> Tensor:
        return self.codebook.superpose(p, self.tile)

    def paint(self, maps: Tensor) -> Tensor:
        image: Tensor = self.model.decoder.refinement(maps)  # type: ignore[operator]
        return image


def budget_of(size: Size, tile: Size, budget: int | None, side_bits: float) -> float:
    """Numbers of a photo of `size`, side information included, for a budget per 256×256 pixels (default: 4096).

    A tile that the photo fills in part needs a number as well, so small photos have at least one number per tile.
    """
    rows, columns = grid_of(size, tile)
    least = rows * columns + math.ceil(rows * columns * side_bits / NUMBER_BITS)
    return max(least, (budget or DEFAULT_BUDGET) * size[0] * size[1] / REFERENCE_PIXELS)


def neighbours(net: PixelNet | None, tile: Size) -> int:
    """Number of neighbouring tiles that a network on pixels needs on every side."""
    return 0 if net is None else -(-net.reach // min(tile))

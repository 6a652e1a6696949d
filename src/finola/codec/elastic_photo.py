"""Compression and decompression of photos with an elastic codec."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from finola.codec.container import Container
from finola.codec.contexts import Tiles
from finola.codec.elastic_coder import Candidates, ElasticCoder
from finola.codec.entropy_model import LAMBDA, step_size
from finola.codec.rans import Decoder, Encoder
from finola.codec.rdo import FloatArray, descend
from finola.errors import CorruptFileError
from finola.image_io import to_uint8
from finola.latents import CodebookSpace
from finola.photos import EFFORTS, Source, analyse, error_and_gradient, render_blocks
from finola.tiling import Size, grid_of, tile_indices


class ElasticPhoto:
    """A photo to be compressed: its tiles as coordinates p, computed once, and quantised at any step."""

    def __init__(self, coder: ElasticCoder, source: Source, keep: int | None) -> None:
        self.coder, self.source, self.keep = coder, source, keep
        self.space = CodebookSpace(coder.model, filtered=False)
        self.columns = grid_of(source.size, self.space.tile)[1]
        with torch.inference_mode():
            ((p,),) = analyse(self.space, source)
        self.p = p.cpu()
        self._candidates: Candidates | None = None

    @torch.inference_mode()
    def encode(self, step: int) -> tuple[bytes, float]:
        """Payload at a quantiser step, and its size in bits by the entropy model."""
        if self._candidates is None:  # at the first step of a search; those of other steps are nearly the same
            self._candidates = self.coder.prepare(self.p, step)
        tiles = self.coder.quantise(self._candidates, step, self.keep)
        encoder = Encoder()
        self.coder.contexts.put(encoder, tiles, self.columns)
        payload = encoder.finish()
        return payload, 8.0 * len(payload)

    def refine(self, step: int, effort: int) -> None:
        """Refine the coordinates for a quantiser step by analysis by synthesis."""
        size = step_size(step)

        def quantiser(p: FloatArray) -> tuple[FloatArray, float]:
            tiles = self.coder.quantise(self.coder.prepare(torch.from_numpy(p), step), step, self.keep)
            rate = LAMBDA * size**2 * self.coder.contexts.cost(tiles, self.columns)
            return self.coder.dequantise(tiles, step).cpu().numpy(), rate

        def evaluate(p: FloatArray) -> tuple[float, FloatArray]:
            placed = torch.from_numpy(p).to(self.space.device)
            error, gradient = error_and_gradient(self.space, self.source, self.space.render, placed)
            return 2 * error, -gradient.cpu().numpy()

        self.p = torch.from_numpy(descend(self.p.numpy(), quantiser, evaluate, EFFORTS[effort]))
        self._candidates = None


def stored_tiles(container: Container, coder: ElasticCoder) -> Tiles:
    """Decode the integers of a file."""
    rows, columns = grid_of((container.height, container.width), coder.model.config.image_size)
    # A tile takes at least a thousandth of a bit; this bounds the size of the photo that a small file can declare.
    if rows * columns > 8000 * (len(container.payload) + 1):
        raise CorruptFileError(
            f"Corrupt file: header declares {rows * columns} tiles, payload has {len(container.payload)} bytes."
        )
    try:
        decoder = Decoder(container.payload)
        tiles = coder.contexts.get(decoder, rows * columns, columns)
        decoder.finish()
    except ValueError as error:
        raise CorruptFileError(f"Corrupt file: cannot decode the payload: {error}") from None
    return tiles


@torch.inference_mode()
def decode_elastic(container: Container, coder: ElasticCoder) -> Tensor:
    """Decode a file of an elastic codec to uint8 (3, H, W)."""
    tiles, size = stored_tiles(container, coder), (container.height, container.width)
    space = CodebookSpace(coder.model, filtered=False)
    across = grid_of(size, space.tile)[1]

    def maps(rows: range, columns: range) -> Tensor:
        chosen = tile_indices(rows, columns, across).numpy()
        part = Tiles(tiles.lengths[chosen], tiles.means[chosen], tiles.index[chosen], tiles.values[chosen])
        return space.maps(coder.dequantise(part, container.step))

    return to_pixels(render_blocks(space, maps, size), size)


def to_pixels(blocks: Iterable[tuple[slice, slice, Tensor]], size: Size) -> Tensor:
    """Assemble the blocks of a photo to uint8 (3, H, W), in the layout of image files: writing needs no copy."""
    image = torch.empty(*size, 3, dtype=torch.uint8).permute(2, 0, 1)
    for rows, columns, pixels in blocks:
        image[:, rows, columns] = to_uint8(pixels[0])
    return image

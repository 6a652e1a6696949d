"""The payload of a `.finola` file: the numbers of its tiles, entropy coded or at the paper's fixed length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finola.codec.calibration import CodecModel
from finola.codec.container import ENTROPY_CODED, Container
from finola.codec.entropy_model import step_size
from finola.codec.rans import Decoder
from finola.codec.rdo import Numbers
from finola.errors import CorruptFileError
from finola.tiling import Size, grid_of

PLAIN_BITS = 4  # per latent in the paper's mode
LEVELS = (1 << PLAIN_BITS) - 1  # the last of them
CHUNK = 4096  # tiles whose numbers are handled at once: memory stays bounded for photos of every size


def pack_levels(codec: CodecModel, latents: Tensor) -> bytes:
    """Four bits per latent between its usual lowest and highest value, two to a byte."""
    flat = _levels(codec, latents).to(torch.uint8).flatten().numpy()
    flat = np.append(flat, np.zeros(len(flat) % 2, np.uint8))
    packed: NDArray[np.uint8] = flat[0::2] << 4 | flat[1::2]
    return packed.tobytes()


def _levels(codec: CodecModel, latents: Tensor) -> Tensor:
    """Latents (T, D) as the nearest of the plain mode's levels, whole numbers from 0."""
    low, high = codec.calibration.low, codec.calibration.high
    return ((latents - low) / (high - low).clamp_min(1e-12) * LEVELS).round().clamp(0, LEVELS)


def _from_levels(codec: CodecModel, levels: Tensor) -> Tensor:
    low, high = codec.calibration.low, codec.calibration.high
    return low + levels / LEVELS * (high - low)


def round_to_levels(codec: CodecModel, numbers: Numbers) -> tuple[Numbers, float]:
    """b (T, K) after the plain mode has rounded its latents; the bits are the same for all."""
    levels = _levels(codec, codec.calibration.synthesise(torch.from_numpy(numbers)))
    return codec.calibration.analyse(_from_levels(codec, levels)), 0.0


def integers(container: Container, codec: CodecModel) -> NDArray[np.int32]:
    """The integers (tiles, K) of an entropy-coded file, exactly as they were put."""
    return np.concatenate(list(_integer_chunks(container, codec, _tile_count(container, codec))))


def _tile_count(container: Container, codec: CodecModel) -> int:
    rows, columns = grid_of((container.height, container.width), codec.model.config.image_size)
    return rows * columns


def _integer_chunks(container: Container, codec: CodecModel, count: int) -> Iterator[NDArray[np.int32]]:
    """The integers of the next `CHUNK` tiles at most, in the order of the file."""
    # A tile takes at least a thousandth of a bit: a small file cannot promise a huge photo.
    if count > 8000 * (len(container.payload) + 1):
        raise CorruptFileError(
            f"Corrupt file: header declares {count} tiles, payload has {len(container.payload)} bytes."
        )
    try:
        decoder = Decoder(container.payload)
        yield from codec.calibration.coder.get(decoder, count, container.step, CHUNK)
        decoder.finish()
    except ValueError as error:
        raise CorruptFileError(f"Corrupt file: the payload cannot be decoded; {error}") from None


def _plain_chunks(container: Container, codec: CodecModel, count: int) -> Iterator[NDArray[np.uint8]]:
    """The levels of the next `CHUNK` tiles at most, in the plain mode."""
    size = len(codec.calibration.mean)
    needed = -(-count * size // 2)
    if len(container.payload) != needed:
        raise CorruptFileError(
            f"Corrupt file: the payload has {len(container.payload)} bytes, and {needed} are needed for {count} tiles."
        )
    packed = np.frombuffer(container.payload, np.uint8)
    for first in range(0, count, CHUNK):  # a chunk begins with a whole byte because CHUNK is even
        last = min(count, first + CHUNK)
        part = packed[first * size // 2 : -(-last * size // 2)]
        levels = np.stack([part >> 4, part & 15], 1).reshape(-1)
        yield levels[: (last - first) * size].reshape(last - first, size)


class StoredTiles:
    """Latents of a file's tiles, decoded in the order of the file as far as they are needed.

    A photo of a single row of tiles is decoded from left to right, so what lies behind is released.
    """

    def __init__(self, container: Container, codec: CodecModel, grid: Size) -> None:
        self._codec, self._columns, self._single_row = codec, grid[1], grid[0] == 1
        self._coded = container.mode == ENTROPY_CODED
        self._scale = step_size(container.step)
        read = _integer_chunks if self._coded else _plain_chunks
        self._stream: Iterator[NDArray[Any]] = read(container, codec, grid[0] * grid[1])
        self._chunks: dict[int, NDArray[Any]] = {}

    def latents(self, rows: range, columns: range) -> Tensor:
        """(tiles, D) of a rectangle of tiles, row by row."""
        parts = [self._run(row * self._columns + columns.start, len(columns)) for row in rows]
        values = torch.from_numpy(np.concatenate(parts).astype(np.float32))
        calibration = self._codec.calibration
        return calibration.synthesise(values * self._scale) if self._coded else _from_levels(self._codec, values)

    def _run(self, first: int, count: int) -> NDArray[Any]:
        numbers = range(first // CHUNK, (first + count - 1) // CHUNK + 1)
        while numbers.stop > len(self._chunks) + (min(self._chunks, default=0)):
            chunk = next(self._stream)
            small = np.abs(chunk).max(initial=0) < 2**15
            self._chunks[max(self._chunks, default=-1) + 1] = chunk.astype(np.int16) if small else chunk
        if self._single_row:
            self._chunks = {number: chunk for number, chunk in self._chunks.items() if number >= numbers.start}
        joined = np.concatenate([self._chunks[number] for number in numbers])
        return joined[first - numbers.start * CHUNK :][:count]

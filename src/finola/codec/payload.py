"""Payload of a `.finola` file: the coefficients of its tiles, entropy coded or with the fixed length of the paper."""

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
from finola.codec.rdo import FloatArray
from finola.errors import CorruptFileError
from finola.tiling import Size, grid_of

CHUNK = 4096  # tiles processed at a time, which bounds the memory for photos of any size


def pack_levels(codec: CodecModel, latents: Tensor) -> bytes:
    """Quantise latents (T, D) uniformly to four bits each between their calibrated limits, and pack two per byte."""
    flat = codec.calibration.levels(latents).to(torch.uint8).flatten().numpy()
    flat = np.append(flat, np.zeros(len(flat) % 2, np.uint8))
    packed: NDArray[np.uint8] = flat[0::2] << 4 | flat[1::2]
    return packed.tobytes()


def round_to_levels(codec: CodecModel, b: FloatArray) -> tuple[FloatArray, float]:
    """Quantise b (T, K) as the fixed-length mode does. The rate cost is 0, because it does not depend on b."""
    calibration = codec.calibration
    levels = calibration.levels(calibration.synthesise(torch.from_numpy(b)))
    return calibration.analyse(calibration.from_levels(levels)), 0.0


def integers(container: Container, codec: CodecModel) -> NDArray[np.int32]:
    """Decode the integers (tiles, K) of an entropy-coded file."""
    return np.concatenate(list(_integer_chunks(container, codec, _tile_count(container, codec))))


def _tile_count(container: Container, codec: CodecModel) -> int:
    rows, columns = grid_of((container.height, container.width), codec.model.config.image_size)
    return rows * columns


def _integer_chunks(container: Container, codec: CodecModel, count: int) -> Iterator[NDArray[np.int32]]:
    """Yield the integers of at most `CHUNK` tiles at a time, in file order."""
    # A tile takes at least a thousandth of a bit; this bounds the size of the photo that a small file can declare.
    if count > 8000 * (len(container.payload) + 1):
        raise CorruptFileError(
            f"Corrupt file: header declares {count} tiles, payload has {len(container.payload)} bytes."
        )
    try:
        decoder = Decoder(container.payload)
        remaining = count
        for chunk in codec.calibration.coder.get(decoder, count, container.step, CHUNK):
            remaining -= len(chunk)
            if not remaining:
                decoder.finish()  # before the last chunk: callers do not ask for more than they need
            yield chunk
    except ValueError as error:
        raise CorruptFileError(f"Corrupt file: cannot decode the payload: {error}") from None


def _level_chunks(container: Container, codec: CodecModel, count: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the levels of at most `CHUNK` tiles at a time, in the fixed-length mode."""
    size = len(codec.calibration.mean)
    expected = -(-count * size // 2)
    if len(container.payload) != expected:
        raise CorruptFileError(
            f"Corrupt file: payload has {len(container.payload)} bytes, but {count} tiles require {expected}."
        )
    packed = np.frombuffer(container.payload, np.uint8)
    for first in range(0, count, CHUNK):  # chunks start at byte boundaries because CHUNK is even
        last = min(count, first + CHUNK)
        part = packed[first * size // 2 : -(-last * size // 2)]
        levels = np.stack([part >> 4, part & 15], 1).reshape(-1)
        yield levels[: (last - first) * size].reshape(last - first, size)


class StoredTiles:
    """Latents of the tiles of a file, decoded on demand in file order.

    A photo with a single row of tiles is decoded from left to right, so chunks that are no longer needed are released.
    """

    def __init__(self, container: Container, codec: CodecModel, grid: Size) -> None:
        self._codec, self._columns, self._single_row = codec, grid[1], grid[0] == 1
        self._coded = container.mode == ENTROPY_CODED
        self._scale = step_size(container.step)
        read = _integer_chunks if self._coded else _level_chunks
        self._stream: Iterator[NDArray[Any]] = read(container, codec, grid[0] * grid[1])
        self._chunks: dict[int, NDArray[Any]] = {}
        self._chunks_read = 0

    def latents(self, rows: range, columns: range) -> Tensor:
        """Latents (tiles, D) of a rectangle of tiles in row-major order."""
        parts = [self._run(row * self._columns + columns.start, len(columns)) for row in rows]
        values = torch.from_numpy(np.concatenate(parts).astype(np.float32))
        calibration = self._codec.calibration
        return calibration.synthesise(values * self._scale) if self._coded else calibration.from_levels(values)

    def _run(self, first: int, count: int) -> NDArray[Any]:
        numbers = range(first // CHUNK, (first + count - 1) // CHUNK + 1)
        while self._chunks_read < numbers.stop:
            chunk = next(self._stream)
            small = np.abs(chunk).max(initial=0) < 2**15
            self._chunks[self._chunks_read] = chunk.astype(np.int16) if small else chunk
            self._chunks_read += 1
        if self._single_row:
            self._chunks = {number: chunk for number, chunk in self._chunks.items() if number >= numbers.start}
        joined = np.concatenate([self._chunks[number] for number in numbers])
        return joined[first - numbers.start * CHUNK :][:count]

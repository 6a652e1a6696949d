"""Photos as `.finola` bytes and back, tile row by tile row, decoded across tile borders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from finola.codec.calibration import CodecModel, bundled_codecs, load_codec
from finola.codec.container import ENTROPY_CODED, FIXED_LENGTH, Container, unpack
from finola.codec.deblocking import smooth_borders
from finola.codec.entropy_model import LAMBDA, Quantised, step_size
from finola.codec.payload import CHUNK, PLAIN_BITS, StoredTiles, pack_levels, round_to_levels
from finola.codec.rans import Encoder
from finola.codec.rate_control import finest_within
from finola.codec.rdo import ROUNDS, Numbers, refine
from finola.config import DEFAULT_CODEC
from finola.errors import InputError, MissingFileError
from finola.image_io import Regions, open_photo, photo_name, save_photo, to_srgb, to_uint8
from finola.tiling import Size, decode_blocks, grid_of, tile_batches

STEPS = 256  # 0 is the finest
COARSEST, FINEST = 176, 48  # steps of quality 1 and 100


@dataclass(frozen=True)
class Compressed:
    """A photo's file, and what is worth knowing about it."""

    data: bytes
    width: int
    height: int
    estimated_bits: float  # by the model's tables, for the payload
    step: int = PLAIN_BITS

    @property
    def bits_per_pixel(self) -> float:
        return 8 * len(self.data) / (self.width * self.height)


def compress(
    photo: str | Path | bytes | BinaryIO | Tensor,
    *,
    quality: int | None = None,
    bpp: float | None = None,
    latents: int | None = None,
    model: str = DEFAULT_CODEC,
    mode: str = "coded",
    effort: int = 0,
    keep_exif: bool = False,
) -> Compressed:
    """A photo, by path, bytes, open file (fsspec's, too) or as a tensor (3, H, W), as a `.finola` file.

    `quality` is 1 to 100 (50 if nothing is said), `bpp` the most bits per pixel instead, `latents` how many numbers of
    every tile are kept at most. `mode="paper"` stores four plain bits per latent and nothing else. `effort` 1 to 9 lets
    the decoder correct the encoder, for more fidelity in more time. A colour profile other than sRGB is kept.

    >>> file = compress("skimage:astronaut", quality=30)
    >>> decompress(file.data).shape
    torch.Size([3, 512, 512])
    """
    check_options(quality=quality, bpp=bpp, latents=latents, mode=mode, effort=effort)
    codec = load_codec(model)
    source = _open(photo, keep_exif)
    height, width = source.size
    plain = mode == "paper"
    b, grey = _encode(source, codec, analyse=not plain or effort > 0)
    if not effort:
        source.close()

    def pack(step: int, payload: bytes) -> bytes:
        kind = FIXED_LENGTH if plain else ENTROPY_CODED
        return Container(
            codec.id, codec.hash, width, height, step, kind, grey, source.profile, source.exif, payload
        ).pack()

    if plain:
        if effort:
            b = refine(codec, source, b, partial(round_to_levels, codec), ROUNDS[effort])
            b = codec.calibration.synthesise(torch.from_numpy(b)).numpy()
        payload = pack_levels(codec, torch.from_numpy(b))
        return Compressed(pack(PLAIN_BITS, payload), width, height, 8.0 * len(payload))
    coder = codec.calibration.coder

    def refined(step: int) -> Numbers:
        def rounding(numbers: Numbers) -> tuple[Numbers, float]:
            found, size = coder.quantise(numbers, step, latents), step_size(step)
            return (found.values * size).astype(np.float32), LAMBDA * size**2 * coder.cost(found, step)

        return refine(codec, source, b, rounding, ROUNDS[effort]) if effort else b

    def at(step: int) -> Compressed:
        return _finish(codec, coder.quantise(b, step, latents), step, pack, width, height)

    if bpp is None:
        step = quality_step(50 if quality is None else quality)
        b = refined(step)
        return at(step)
    budget = bpp * width * height / 8
    made = _within(at, budget)
    if effort:
        b = refined(made.step)
        made = _within(at, budget, guess=made.step)
    return made


def _within(at: Callable[[int], Compressed], budget: float, guess: int | None = None) -> Compressed:
    """The file of the finest step that takes at most `budget` bytes."""
    level = None if guess is None else STEPS - guess
    return finest_within(lambda level: at(STEPS - level), lambda made: len(made.data), STEPS, budget, level)


def check_options(*, quality: int | None, bpp: float | None, latents: int | None, mode: str, effort: int) -> None:
    """One sentence on a wish that no file can fulfil."""
    if mode not in ("coded", "paper"):
        raise InputError(f"mode {mode!r} is not known: use coded or paper.")
    if quality is not None and bpp is not None:
        raise InputError("give --quality or --bpp, not both.")
    if mode == "paper" and (quality, bpp, latents) != (None, None, None):
        raise InputError("mode paper always stores four bits of every latent: leave out quality, bpp and latents.")
    if quality is not None:
        quality_step(quality)
    if bpp is not None and not bpp > 0:
        raise InputError(f"bpp is above 0, not {bpp:g}.")
    if latents is not None and latents < 1:
        raise InputError(f"latents is at least 1, not {latents}.")
    if not 0 <= effort < len(ROUNDS):
        raise InputError(f"effort is 0 to {len(ROUNDS) - 1}, not {effort}.")


def quality_step(quality: int) -> int:
    """The step of a quality from 1 to 100."""
    if not 1 <= quality <= 100:
        raise InputError(f"quality is 1 to 100, not {quality}.")
    return round(COARSEST + (FINEST - COARSEST) * (quality - 1) / 99)


def _finish(
    codec: CodecModel, found: Quantised, step: int, pack: Callable[[int, bytes], bytes], width: int, height: int
) -> Compressed:
    encoder = Encoder()
    codec.calibration.coder.put(encoder, found, step)
    return Compressed(pack(step, encoder.finish()), width, height, codec.calibration.coder.cost(found, step), step)


class _Source:
    """Pixels of a photo on their way into the encoder, by regions, with the metadata that its file will carry."""

    def __init__(
        self, size: Size, read: Callable[[int, int, int, int], Tensor], profile: bytes | None, exif: bytes | None
    ) -> None:
        self.size, self.profile, self.exif = size, profile, exif
        self._read: Callable[[int, int, int, int], Tensor] | None = read

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        """uint8 (3, bottom − top, right − left)."""
        assert self._read is not None, "the source is closed"
        return self._read(top, bottom, left, right)

    def close(self) -> None:
        """Release the decoded photo."""
        self._read = None


def _open(photo: str | Path | bytes | BinaryIO | Tensor, keep_exif: bool) -> _Source:
    if isinstance(photo, Tensor):
        if photo.ndim != 3 or photo.shape[0] != 3 or 0 in photo.shape:
            raise InputError(f"a photo to compress has shape (3, height, width), not {tuple(photo.shape)}.")
        image = to_uint8(photo).cpu()
        size = image.shape[1], image.shape[2]
        return _Source(size, lambda top, bottom, left, right: image[:, top:bottom, left:right], None, None)
    photo = photo if isinstance(photo, str | Path | bytes) else photo.read()
    opened = open_photo(photo)
    found = opened.getexif() if keep_exif else None
    regions = Regions(opened, photo_name(photo))
    if found:
        found.pop(0x0112, None)  # the orientation is applied to the pixels
    return _Source(regions.size, regions.read, regions.profile, found.tobytes() if found else None)


@torch.inference_mode()
def _encode(source: _Source, codec: CodecModel, analyse: bool) -> tuple[Numbers, bool]:
    """What is stored of every tile, as b (T, K) or as plain latents (T, D), and whether the photo is grey."""
    rows, columns = grid_of(source.size, codec.model.config.image_size)
    width = len(codec.calibration.synthesis[0]) if analyse else len(codec.calibration.mean)
    numbers = np.empty((rows * columns, width), np.float32)
    grey, done, waiting = True, 0, list[Tensor]()

    def flush() -> None:
        nonlocal done
        latents = torch.cat(waiting)
        numbers[done : done + len(latents)] = codec.calibration.analyse(latents) if analyse else latents.numpy()
        done += len(latents)
        waiting.clear()

    for tiles in tile_batches(source.read, source.size, codec.model.config.image_size):
        grey = grey and bool((tiles[:, 0] == tiles[:, 1]).all() and (tiles[:, 1] == tiles[:, 2]).all())
        waiting.append(codec.latents(tiles.float() / 255))
        if sum(map(len, waiting)) >= CHUNK:
            flush()
    if waiting:
        flush()
    return numbers, grey


def decompress(file: str | Path | bytes | BinaryIO, *, model: str | None = None) -> Tensor:
    """The photo of a `.finola` file, by path, bytes or stream, as uint8 (3, H, W) in sRGB.

    `model` is the folder of the model it was made with, where that is not bundled.
    """
    container = read_container(file)
    image = decode(container, model)
    return image if container.icc is None else to_srgb(image, container.icc)


def decode(container: Container, model: str | None = None, *, deblock: bool = True) -> Tensor:
    """The photo of a file that is already read, in the colours of its ICC profile if it has one.

    Memory grows with the photo's pixels (3 bytes each) and its stored numbers; blocks of tiles bound all the rest.
    """
    codec = find_codec(container, model)
    tile, map_size = codec.model.config.image_size, codec.model.config.map_size
    height, width = container.height, container.width
    grid = grid_of((height, width), tile)
    tiles = StoredTiles(container, codec, grid)
    stored = torch.empty(height, width, 3, dtype=torch.uint8)  # as image files store it, so that writing needs no copy
    image = stored.permute(2, 0, 1)
    with torch.inference_mode():
        for y, x, drawn in decode_blocks(
            lambda rows, columns: codec.maps(tiles.latents(rows, columns)), codec.model.decode, grid, tile, map_size
        ):
            part = image[:, y : y + drawn.shape[1], x : x + drawn.shape[2]]
            part.copy_(to_uint8(drawn[:, : part.shape[1], : part.shape[2]]))
    return smooth_borders(image, tile) if deblock else image


def read_container(file: str | Path | bytes | BinaryIO) -> Container:
    """Header and payload, checked."""
    if isinstance(file, bytes):
        return unpack(file)
    if isinstance(file, str | Path):
        path = Path(file).expanduser()
        if not path.is_file():
            raise MissingFileError(f"There is no file {file}; check the path.")
        return unpack(path.read_bytes(), str(file))
    return unpack(file.read())


def find_codec(container: Container, model: str | None) -> CodecModel:
    """The codec that a file was made with: a bundled one by the name in its header, any other only as `model`."""
    wanted = f"model {container.model} ({container.model_hash.hex()})"
    if model is None and container.model not in bundled_codecs():
        raise InputError(f"This file needs {wanted}, which is not bundled; give its folder with --model.")
    codec = load_codec(model or container.model)
    if codec.hash != container.model_hash:
        raise InputError(f"This file needs {wanted}, not {model or codec.id} ({codec.hash.hex()}).")
    return codec


def write_photo(image: Tensor, container: Container, path: Path) -> None:
    """A decoded photo as a PNG, JPEG or WebP file, grey where it was, with the profile and the EXIF that were kept."""
    grey = container.grey and not container.icc  # a profile of colours does not fit a file of one channel
    save_photo(image, path, grey=grey, icc=container.icc, exif=container.exif)

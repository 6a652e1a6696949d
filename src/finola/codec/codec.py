"""Compression of photos to `.finola` files and decompression, in bounded blocks of tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from finola.codec.calibration import PLAIN_BITS, CodecModel, ElasticCodec, bundled_codecs, codec_hash, codec_on
from finola.codec.container import ELASTIC, ENTROPY_CODED, FIXED_LENGTH, Container, read_container
from finola.codec.deblocking import ELASTIC_SCALE, smooth_borders
from finola.codec.elastic_photo import ElasticPhoto, decode_elastic, to_pixels
from finola.codec.entropy_model import LAMBDA, Quantised, step_size
from finola.codec.payload import CHUNK, StoredTiles, pack_levels, round_to_levels
from finola.codec.rans import Encoder
from finola.codec.rate_control import finest_within
from finola.codec.rdo import FloatArray, refine
from finola.config import DEFAULT_CODEC, PLAIN_CODEC
from finola.errors import InputError
from finola.image_io import Regions, open_photo, photo_name, save_photo, to_srgb, to_uint8
from finola.photos import EFFORTS, analyse, gradient_steps, render_blocks
from finola.tiling import Size, grid_of

STEPS = 256  # number of quantiser steps; 0 is the finest
COARSEST, FINEST = 176, 48  # steps of quality 1 and 100
ELASTIC_COARSEST, ELASTIC_FINEST = 144, 64  # the same, of elastic codecs


@dataclass(frozen=True)
class Compressed:
    """Result of `compress`: the bytes of the file and its properties."""

    data: bytes
    width: int
    height: int
    estimated_bits: float  # of the payload, by the entropy model
    step: int = PLAIN_BITS

    @property
    def bits_per_pixel(self) -> float:
        return 8 * len(self.data) / (self.width * self.height)


def compress(
    photo: str | Path | bytes | BinaryIO | Image.Image | Tensor,
    *,
    quality: int | None = None,
    bpp: float | None = None,
    per_tile: int | None = None,
    model: str | None = None,
    mode: str = "coded",
    effort: int = 0,
    keep_exif: bool = False,
    device: str | torch.device = "cpu",
) -> Compressed:
    """Compress a photo to a `.finola` file.

    `photo` is a path, bytes, an open file (also of fsspec), a Pillow image or a tensor (3, H, W). The rate is set by
    `quality`, 1 to 100 (default: 50), or by `bpp`, the maximum number of bits per pixel. `per_tile` is the maximum
    number of coefficients per tile. `model` is a bundled codec or a folder (default: see `default_codec`).
    `mode="paper"` stores each latent with four bits, without entropy coding. `effort`, 1 to 9, refines the coefficients
    by analysis by synthesis: higher fidelity, longer encoding. Colour profiles other than sRGB are stored in the file.
    The model runs on `device`; files written on different devices may differ, because latents near a rounding boundary
    do.

    >>> file = compress("skimage:astronaut", quality=30)
    >>> decompress(file.data).shape
    torch.Size([3, 512, 512])
    """
    check_options(quality=quality, bpp=bpp, per_tile=per_tile, mode=mode, effort=effort)
    model = model or default_codec(mode)
    codec = codec_on(model, device)
    source = _open(photo, keep_exif)
    if isinstance(codec, ElasticCodec):
        if mode != "coded":
            raise InputError(f"mode {mode} needs a model with q of a fixed length, but {model} is elastic.")
        return _compress_elastic(codec, source, quality, bpp, per_tile, effort)
    height, width = source.size
    fixed_length = mode == "paper"
    b = _encode(source, codec, coefficients=not fixed_length or effort > 0)
    if not effort:
        source.close()

    def pack(step: int, payload: bytes) -> bytes:
        kind = FIXED_LENGTH if fixed_length else ENTROPY_CODED
        return Container(
            codec.id, codec.hash, width, height, step, kind, source.grey, source.profile, source.exif, payload
        ).pack()

    if fixed_length:
        if effort:
            b = refine(codec, source, b, partial(round_to_levels, codec), EFFORTS[effort])
            b = codec.calibration.synthesise(torch.from_numpy(b)).numpy()
        payload = pack_levels(codec, torch.from_numpy(b))
        return Compressed(pack(PLAIN_BITS, payload), width, height, 8.0 * len(payload))
    coder = codec.calibration.coder

    def refined(step: int) -> FloatArray:
        def quantiser(coefficients: FloatArray) -> tuple[FloatArray, float]:
            found, size = coder.quantise(coefficients, step, per_tile), step_size(step)
            return (found.values * size).astype(np.float32), LAMBDA * size**2 * coder.cost(found, step)

        return refine(codec, source, b, quantiser, EFFORTS[effort]) if effort else b

    def compress_at(step: int) -> Compressed:
        return _entropy_code(codec, coder.quantise(b, step, per_tile), step, pack, width, height)

    if bpp is None:
        step = quality_step(50 if quality is None else quality)
        b = refined(step)
        return compress_at(step)
    budget = bpp * width * height / 8
    result = _rate_control(compress_at, budget)
    if effort:
        b = refined(result.step)
        result = _rate_control(compress_at, budget, guess=result.step)
    return result


def default_codec(mode: str) -> str:
    """Name of the codec that `compress` uses in a mode if none is given."""
    return PLAIN_CODEC if mode == "paper" else DEFAULT_CODEC


def _compress_elastic(
    codec: ElasticCodec, source: _Source, quality: int | None, bpp: float | None, per_tile: int | None, effort: int
) -> Compressed:
    height, width = source.size
    photo = ElasticPhoto(codec.coder, source, per_tile)

    def compress_at(step: int) -> Compressed:
        payload, bits = photo.encode(step)
        container = Container(
            codec.id, codec.hash, width, height, step, ELASTIC, source.grey, source.profile, source.exif, payload
        )
        return Compressed(container.pack(), width, height, bits, step)

    if bpp is None:
        step = elastic_step(50 if quality is None else quality)
        if effort:
            photo.refine(step, effort)
        return compress_at(step)
    budget = bpp * width * height / 8
    guess = round(STEPS - 100 + 16 * math.log2(bpp / 0.25))  # level of a typical photo
    result = _rate_control(compress_at, budget, guess=STEPS - min(max(guess, 1), STEPS))
    if effort:
        photo.refine(result.step, effort)
        result = _rate_control(compress_at, budget, guess=result.step)
    return result


def elastic_step(quality: int) -> int:
    """Index of the quantiser step of an elastic codec at a quality from 1 to 100."""
    if not 1 <= quality <= 100:
        raise InputError(f"quality must be 1 to 100, not {quality}.")
    return round(ELASTIC_COARSEST + (ELASTIC_FINEST - ELASTIC_COARSEST) * (quality - 1) / 99)


def _rate_control(compress_at: Callable[[int], Compressed], budget: float, guess: int | None = None) -> Compressed:
    """Compress with the finest step whose file has at most `budget` bytes."""
    level = None if guess is None else STEPS - guess
    return finest_within(
        lambda level: compress_at(STEPS - level), lambda result: len(result.data), STEPS, budget, level
    )


def check_options(*, quality: int | None, bpp: float | None, per_tile: int | None, mode: str, effort: int) -> None:
    """Raise `InputError` for invalid options of `compress`, or for options that exclude each other."""
    if mode not in ("coded", "paper"):
        raise InputError(f"Unknown mode {mode!r}; use coded or paper.")
    if quality is not None and bpp is not None:
        raise InputError(f"quality ({quality}) and bpp ({bpp:g}) exclude each other; use one of them.")
    if mode == "paper" and (quality, bpp, per_tile) != (None, None, None):
        raise InputError("mode paper stores every latent with four bits; quality, bpp and per_tile do not apply to it.")
    if quality is not None:
        quality_step(quality)
    if bpp is not None and not bpp > 0:
        raise InputError(f"bpp must be greater than 0, not {bpp:g}.")
    if per_tile is not None and per_tile < 1:
        raise InputError(f"per_tile must be at least 1, not {per_tile}.")
    gradient_steps(effort)


def quality_step(quality: int) -> int:
    """Index of the quantiser step of a quality from 1 to 100."""
    if not 1 <= quality <= 100:
        raise InputError(f"quality must be 1 to 100, not {quality}.")
    return round(COARSEST + (FINEST - COARSEST) * (quality - 1) / 99)


def _entropy_code(
    codec: CodecModel, found: Quantised, step: int, pack: Callable[[int, bytes], bytes], width: int, height: int
) -> Compressed:
    encoder = Encoder()
    codec.calibration.coder.put(encoder, found, step)
    return Compressed(pack(step, encoder.finish()), width, height, codec.calibration.coder.cost(found, step), step)


class _Source:
    """Pixels of a photo by regions, with the metadata that is stored in the file."""

    def __init__(
        self, size: Size, read: Callable[[int, int, int, int], Tensor], profile: bytes | None, exif: bytes | None
    ) -> None:
        self.size, self.profile, self.exif = size, profile, exif
        self.grey = True  # whether the three channels of all pixels that were read are equal
        self._read: Callable[[int, int, int, int], Tensor] | None = read

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        """uint8 (3, bottom − top, right − left)."""
        assert self._read is not None, "the source is closed"
        region = self._read(top, bottom, left, right)
        self.grey = self.grey and bool((region[0] == region[1]).all() and (region[1] == region[2]).all())
        return region

    def close(self) -> None:
        """Release the decoded photo."""
        self._read = None


def _open(photo: str | Path | bytes | BinaryIO | Image.Image | Tensor, keep_exif: bool) -> _Source:
    if isinstance(photo, Tensor):
        if photo.ndim != 3 or photo.shape[0] != 3 or 0 in photo.shape:
            raise InputError(f"The photo must have shape (3, height, width), not {tuple(photo.shape)}.")
        image = to_uint8(photo).cpu()
        size = image.shape[1], image.shape[2]
        return _Source(size, lambda top, bottom, left, right: image[:, top:bottom, left:right], None, None)
    photo = photo if isinstance(photo, str | Path | bytes | Image.Image) else photo.read()
    opened = open_photo(photo)
    found = opened.getexif() if keep_exif else None
    regions = Regions(opened, photo_name(photo))
    if found:
        found.pop(0x0112, None)  # the orientation has been applied to the pixels
    return _Source(regions.size, regions.read, regions.profile, found.tobytes() if found else None)


@torch.inference_mode()
def _encode(source: _Source, codec: CodecModel, coefficients: bool) -> FloatArray:
    """Encode every tile to coefficients b (T, K), or to latents (T, D)."""
    ((latents,),) = analyse(codec.space, source)
    if not coefficients:
        return np.asarray(latents, np.float32)
    return np.concatenate([codec.calibration.analyse(part) for part in latents.split(CHUNK)])


def decompress(
    file: str | Path | bytes | BinaryIO, *, model: str | None = None, device: str | torch.device = "cpu"
) -> Tensor:
    """Decompress a `.finola` file, given as path, bytes or stream, to uint8 (3, H, W) in sRGB.

    `model` is the folder of the model that the file was written with; bundled models are found by their name. The model
    runs on `device`; the result is on the CPU.
    """
    container = read_container(file)
    image = decode(container, model, device=device)
    return image if container.icc is None else to_srgb(image, container.icc)


def decode(
    container: Container, model: str | None = None, *, deblock: bool = True, device: str | torch.device = "cpu"
) -> Tensor:
    """Decode a file that has been read to uint8 (3, H, W), in the colour space of its ICC profile if it has one.

    Memory is proportional to the number of pixels (3 bytes each) and of stored coefficients; all other buffers are
    bounded, because tiles are decoded in blocks.
    """
    codec = find_codec(container, model, device)
    if isinstance(codec, ElasticCodec):
        image = decode_elastic(container, codec.coder)
        return smooth_borders(image, codec.model.config.image_size, ELASTIC_SCALE) if deblock else image
    tile, size = codec.model.config.image_size, (container.height, container.width)
    tiles, space = StoredTiles(container, codec, grid_of(size, tile)), codec.space

    def maps(rows: range, columns: range) -> Tensor:
        return space.maps(tiles.latents(rows, columns))

    with torch.inference_mode():
        image = to_pixels(render_blocks(space, maps, size), size)
    return smooth_borders(image, tile) if deblock else image


def find_codec(
    container: Container, model: str | None, device: str | torch.device = "cpu"
) -> CodecModel | ElasticCodec:
    """Load the codec of a file: a bundled one by the name in the header, any other only from the folder `model`."""
    required = f"model {container.model} ({container.model_hash.hex()})"
    if model is None and container.model not in bundled_codecs():
        raise InputError(f"The file requires {required}, which is not bundled; give its folder with --model.")
    word = model or container.model
    found = codec_hash(word)
    if container.model_hash != found:  # compared before the model is loaded
        raise InputError(f"The file requires {required}, but {word} has hash {found.hex()}.")
    return codec_on(word, device)


def write_photo(image: Tensor, container: Container, path: Path) -> None:
    """Write a decoded photo as PNG, JPEG or WebP, with one channel if it was grey, and its ICC profile and EXIF."""
    grey = container.grey and not container.icc  # an RGB profile is invalid in a file of one channel
    save_photo(image, path, grey=grey, icc=container.icc, exif=container.exif)

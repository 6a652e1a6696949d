"""Photos as `.finola` bytes and back, tile row by tile row, decoded across tile borders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from finola.codec.borders import smooth_borders
from finola.codec.calibration import CodecModel, load_codec
from finola.codec.container import ENTROPY_CODED, FIXED_LENGTH, Container, DamagedFile, unpack
from finola.codec.rans import Decoder, Encoder
from finola.codec.rate import finest_within
from finola.codec.refine import ROUNDS, Numbers, refine, strips
from finola.codec.tiles import LAMBDA, Quantised, step_size
from finola.images import open_photo, photo_name, pixels, save_photo, to_own_rgb, to_srgb, to_uint8
from finola.names import DEFAULT_CODEC
from finola.tiles import cut, join

PLAIN_BITS = 4  # per latent in the paper's mode
LEVELS = (1 << PLAIN_BITS) - 1  # the last of them
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
    image, grey, icc, exif = _read(photo, keep_exif)
    height, width = image.shape[-2:]
    every = torch.cat([codec.latents(tiles) for tiles in _tile_rows(image, codec)])

    def pack(step: int, payload: bytes, plain: bool = False) -> bytes:
        kind = FIXED_LENGTH if plain else ENTROPY_CODED
        return Container(codec.id, codec.hash, width, height, step, kind, grey, icc, exif, payload).pack()

    b = codec.calibration.analyse(every)
    if mode == "paper":
        if effort:

            def plainly(numbers: Numbers) -> tuple[Numbers, float]:
                levels = _levels(codec, codec.calibration.synthesise(torch.from_numpy(numbers)))
                return codec.calibration.analyse(_from_levels(codec, levels)), 0.0

            b = refine(codec, image, b, plainly, ROUNDS[effort])
            every = codec.calibration.synthesise(torch.from_numpy(b))
        payload = _plain(codec, every)
        return Compressed(pack(PLAIN_BITS, payload, plain=True), width, height, 8.0 * len(payload))
    coder = codec.calibration.coder

    def refined(step: int) -> Numbers:
        def rounding(numbers: Numbers) -> tuple[Numbers, float]:
            found, size = coder.quantise(numbers, step, latents), step_size(step)
            return (found.values * size).astype(np.float32), LAMBDA * size**2 * coder.cost(found, step)

        return refine(codec, image, b, rounding, ROUNDS[effort]) if effort else b

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
        raise ValueError(f"mode {mode!r} is not known: use coded or paper.")
    if quality is not None and bpp is not None:
        raise ValueError("give --quality or --bpp, not both.")
    if mode == "paper" and (quality, bpp, latents) != (None, None, None):
        raise ValueError("mode paper always stores four bits of every latent: leave out quality, bpp and latents.")
    if quality is not None:
        quality_step(quality)
    if bpp is not None and not bpp > 0:
        raise ValueError(f"bpp is above 0, not {bpp:g}.")
    if latents is not None and latents < 1:
        raise ValueError(f"latents is at least 1, not {latents}.")
    if not 0 <= effort < len(ROUNDS):
        raise ValueError(f"effort is 0 to {len(ROUNDS) - 1}, not {effort}.")


def quality_step(quality: int) -> int:
    """The step of a quality from 1 to 100."""
    if not 1 <= quality <= 100:
        raise ValueError(f"quality is 1 to 100, not {quality}.")
    return round(COARSEST + (FINEST - COARSEST) * (quality - 1) / 99)


def _finish(
    codec: CodecModel, found: Quantised, step: int, pack: Callable[[int, bytes], bytes], width: int, height: int
) -> Compressed:
    encoder = Encoder()
    codec.calibration.coder.put(encoder, found, step)
    return Compressed(pack(step, encoder.finish()), width, height, codec.calibration.coder.cost(found, step), step)


def _read(
    photo: str | Path | bytes | BinaryIO | Tensor, keep_exif: bool
) -> tuple[Tensor, bool, bytes | None, bytes | None]:
    """uint8 (3, H, W), whether all colours are grey, its ICC profile, and the EXIF block where it is to be kept."""
    icc = exif = None
    if isinstance(photo, Tensor):
        if photo.ndim != 3 or photo.shape[0] != 3 or 0 in photo.shape:
            raise ValueError(f"a photo to compress has shape (3, height, width), not {tuple(photo.shape)}.")
        image = to_uint8(photo).cpu()
    else:
        photo = photo if isinstance(photo, str | Path | bytes) else photo.read()
        opened = open_photo(photo)
        found = opened.getexif() if keep_exif else None
        rgb, icc = to_own_rgb(opened, photo_name(photo))
        image = pixels(rgb)
        if found:
            found.pop(0x0112, None)  # the rotation is applied
        exif = found.tobytes() if found else None
    grey = bool((image[0] == image[1]).all() and (image[1] == image[2]).all())
    return image, grey, icc, exif


def _tile_rows(image: Tensor, codec: CodecModel) -> Iterator[Tensor]:
    """The tiles (columns, 3, h, w) of every tile row, edges replicated, in [0, 1]."""
    tile_height, tile_width = codec.model.config.image_size
    height, width = image.shape[-2:]
    for top in range(0, height, tile_height):
        strip = image[None, :, top : top + tile_height].float() / 255
        below = tile_height - strip.shape[-2]
        strip = F.pad(strip, (0, -width % tile_width, 0, below), mode="replicate")
        with torch.inference_mode():
            yield cut(strip, (tile_height, tile_width))[0]


def _plain(codec: CodecModel, latents: Tensor) -> bytes:
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


def decompress(file: str | Path | bytes | BinaryIO, *, model: str | None = None) -> Tensor:
    """The photo of a `.finola` file, by path, bytes or stream, as uint8 (3, H, W) in sRGB.

    `model` is the folder of the model it was made with, where that is not bundled.
    """
    container = read_container(file)
    image = decode(container, model)
    return image if container.icc is None else to_srgb(image, container.icc)


def decode(container: Container, model: str | None = None) -> Tensor:
    """The photo of a file that is already read, in the colours of its ICC profile if it has one."""
    codec = find_codec(container, model)
    rows, columns = _grid(container, codec)
    latents = _latents(container, codec, rows * columns)
    image = _decode(latents, codec, (rows, columns), (container.height, container.width))
    return smooth_borders(image, codec.model.config.image_size)


def read_container(file: str | Path | bytes | BinaryIO) -> Container:
    """Header and payload, checked."""
    if isinstance(file, bytes):
        return unpack(file)
    if isinstance(file, str | Path):
        path = Path(file).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {file}; check the path.")
        return unpack(path.read_bytes(), str(file))
    return unpack(file.read())


def find_codec(container: Container, model: str | None) -> CodecModel:
    """The codec that a file was made with, and no other."""
    wanted = f"the model {container.model} ({container.model_hash.hex()})"
    try:
        codec = load_codec(model or container.model)
    except (FileNotFoundError, ValueError):
        if model:
            raise
        raise ValueError(f"this file needs {wanted}, which is not bundled: name its folder with --model.") from None
    if codec.hash != container.model_hash:
        raise ValueError(f"this file needs {wanted}, and {model or codec.id} is another one ({codec.hash.hex()}).")
    return codec


def _grid(container: Container, codec: CodecModel) -> tuple[int, int]:
    tile_height, tile_width = codec.model.config.image_size
    return math.ceil(container.height / tile_height), math.ceil(container.width / tile_width)


def integers(container: Container, codec: CodecModel) -> NDArray[np.int32]:
    """The integers (tiles, K) of an entropy-coded file, exactly as they were put."""
    rows, columns = _grid(container, codec)
    # A tile takes at least a thousandth of a bit: a small file cannot promise a huge photo.
    if rows * columns > 8000 * (len(container.payload) + 1):
        raise DamagedFile(f"the file promises {rows * columns} tiles in {len(container.payload)} bytes: it is damaged.")
    try:
        decoder = Decoder(container.payload)
        values = codec.calibration.coder.get(decoder, rows * columns, container.step)
        decoder.finish()
    except ValueError as error:
        raise DamagedFile(f"the payload cannot be decoded: {error}") from None
    return values


def _latents(container: Container, codec: CodecModel, count: int) -> Tensor:
    calibration = codec.calibration
    if container.mode == ENTROPY_CODED:
        values = torch.from_numpy(integers(container, codec))
        return calibration.synthesise(values.float() * step_size(container.step))
    size = len(calibration.mean)
    needed = -(-count * size // 2)
    if len(container.payload) != needed:
        raise DamagedFile(f"the payload has {len(container.payload)} bytes, and {needed} are needed: it is damaged.")
    packed = np.frombuffer(container.payload, np.uint8)
    numbers = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[: count * size].reshape(count, size)
    return _from_levels(codec, torch.from_numpy(numbers.astype(np.float32)))


@torch.inference_mode()
def _decode(latents: Tensor, codec: CodecModel, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Strips of tile rows, each with its neighbours, so that no border shows and memory grows with the strip."""
    rows, columns = grid
    tile = codec.model.config.image_size[0]
    image = torch.empty(3, *size, dtype=torch.uint8)
    maps: dict[int, Tensor] = {}  # by tile row, joined: neighbours are grown once
    for (first, last), (above, below) in strips(rows, columns):
        for row in [row for row in maps if row < above]:
            del maps[row]
        grown = above + len(maps)
        if grown < below:
            by_row = codec.maps(latents[grown * columns : below * columns]).split(columns)
            maps |= {row: join(z, (1, columns)) for row, z in enumerate(by_row, start=grown)}
            del by_row
        near = [_near(maps[row], row, first, last) for row in range(above, below)]
        pixels = codec.model.decode(torch.cat(near, dim=2))[0]
        top, bottom = first * tile, min(size[0], last * tile)
        offset = top - (tile // 2 if above < first else 0)
        image[:, top:bottom] = to_uint8(pixels[:, top - offset : bottom - offset, : size[1]])
    return image


def _near(z: Tensor, row: int, first: int, last: int) -> Tensor:
    """Of a joined row of tiles' maps: all of it, or of a neighbour the half that lies next to rows first … last − 1."""
    half = z.shape[2] // 2
    return z[:, :, half:] if row < first else z[:, :, :half] if row >= last else z


def write_photo(image: Tensor, container: Container, path: Path) -> None:
    """A decoded photo as a PNG, JPEG or WebP file, grey where it was, with the profile and the EXIF that were kept."""
    grey = container.grey and not container.icc  # a profile of colours does not fit a file of one channel
    save_photo(image, path, grey=grey, icc=container.icc, exif=container.exif)

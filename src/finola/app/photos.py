"""Reading of photos and `.finola` files sent by the page, with size limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from PIL import Image
from torch import Tensor

from finola.app.models import PIXELS, names
from finola.codec.codec import decompress
from finola.codec.container import MAGIC, read_container
from finola.config import ModelConfig
from finola.errors import CorruptFileError, InputError
from finola.hub import full_name
from finola.image_io import open_photo, orientation, pixels, to_pillow, to_rgb
from finola.tiling import grid_of

MAX_BYTES = 40_000_000  # maximum of a file
MAX_PIXELS = 50_000_000  # maximum of an image file
MAX_SIDE = 16_383  # maximum side of a stored photo, which is that of WebP; models process whole rows of tiles
BAND = 2_000_000  # pixels converted at a time
EXAMPLES = {"astronaut": "Portrait", "chelsea": "Cat", "coffee": "Coffee", "rocket": "Rocket"}
"""Photos included in scikit-image, and their titles on the page."""


@dataclass(frozen=True)
class Photo:
    """A photo of a session."""

    name: str
    pixels: Tensor  # uint8 (3, H, W), sRGB
    coded: int | None = None  # bytes of the `.finola` file it was decoded from
    model: str = ""  # model that decoded it
    full_size: tuple[int, int] | None = None  # (height, width) of the file, if the photo was scaled down

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.pixels.shape[-2], self.pixels.shape[-1]


def example(name: str) -> Photo:
    """Load one of `EXAMPLES`.

    >>> example("astronaut").size
    (512, 512)
    """
    if name not in EXAMPLES:
        raise InputError(f"Unknown example photo {name!r}. Choose one of {', '.join(EXAMPLES)}.")
    return Photo(f"{EXAMPLES[name]}, an example", pixels(to_rgb(open_photo(f"skimage:{name}"), name)))


def read(data: bytes, name: str) -> Photo:
    """Read a photo from the bytes of an image file or a `.finola` file. Sizes are checked before decoding."""
    if len(data) > MAX_BYTES:
        raise InputError(f"{name} has {len(data) / 1e6:.0f} MB; the maximum is {MAX_BYTES / 1e6:.0f} MB.")
    if data.startswith(MAGIC):
        return _read_coded(data, name)
    try:
        opened = open_photo(data, name)
    except ValueError as error:
        if isinstance(error.__cause__, Image.DecompressionBombError | Image.DecompressionBombWarning):
            raise InputError(f"{name} is too large; the maximum is {MAX_PIXELS / 1e6:.0f} megapixels.") from None
        raise
    _check_size(name, opened.height, opened.width)
    if fitting_size((opened.height, opened.width)) == (opened.height, opened.width):
        return Photo(name, pixels(to_rgb(opened, name)))
    return _read_scaled(opened, name)


def _read_coded(data: bytes, name: str) -> Photo:
    """Decode a `.finola` file. Raises InputError if it is too large, since it cannot be decoded at a smaller size."""
    container = read_container(data)
    if container.model not in names():  # untrusted input: must not be interpreted as a path
        raise InputError(f"{name} needs the model {container.model!r}, which is not available on this page.")
    _check_size(name, container.height, container.width)
    # The model is not loaded for this: decompress first compares its hash with that of the file.
    size, tile = (container.height, container.width), ModelConfig.parse(full_name(container.model)).image_size
    if fitting_size(size, tile) != size:
        raise InputError(
            f"{name} contains a photo of {container.width} × {container.height} pixels, but this page decodes up to "
            f"{PIXELS / 1e6:g} megapixels. Decode it with finola decompress."
        )
    return Photo(name, decompress(data, model=container.model), len(data), container.model)


def _check_size(name: str, height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        shown = f"{width} × {height}, {height * width / 1e6:.0f} megapixels"
        raise InputError(f"{name} is {shown}; the maximum is {MAX_PIXELS / 1e6:.0f} megapixels. Scale it down first.")


def _read_scaled(opened: Image.Image, name: str) -> Photo:
    """Convert and downscale a photo band by band, so that the full size is in memory only once and in its own mode."""
    full, target = (opened.height, opened.width), fitting_size((opened.height, opened.width))
    opened.draft(opened.mode, (target[1], target[0]))  # a JPEG is decoded at ½, ¼ or ⅛ of its size
    try:
        opened.load()
    except Exception as error:  # a decoder can raise anything on a damaged file
        raise CorruptFileError(f"{name} cannot be read as a photo: {str(error) or type(error).__name__}.") from None
    width, height = opened.size
    factor = max(1, int(min(height / target[0], width / target[1])))
    small = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    rows = factor * max(1, BAND // (width * factor))
    for top in range(0, height, rows):
        band = opened.crop((0, top, width, min(height, top + rows)))
        band.info = {key: opened.info[key] for key in ("icc_profile", "transparency") if key in opened.info}
        small.paste(to_rgb(band, name).reduce(factor), (0, top // factor))
    exif = Image.Exif()
    exif[0x0112] = turn = orientation(opened)
    if (height > width) != (target[0] > target[1]):  # Pillow rotates TIFF files on loading
        target, full = target[::-1], full[::-1]
    small = small.resize((target[1], target[0]), Image.Resampling.LANCZOS)
    small.info["exif"] = exif.tobytes()
    return Photo(name, pixels(to_rgb(small, name)), full_size=full[::-1] if turn >= 5 else full)


def fitting_size(size: tuple[int, int], tile: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Largest (height, width) of about the same aspect ratio whose whole tiles cover at most `PIXELS` pixels.

    >>> fitting_size((600, 800))
    (600, 800)
    >>> fitting_size((6000, 8000))
    (1224, 1631)
    >>> fitting_size((4, 400_000), tile=(64, 64))
    (1, 16383)
    """
    height, width = size
    scale = min(1.0, MAX_SIDE / max(size))

    def scaled() -> tuple[int, int]:
        return max(1, round(height * scale)), max(1, round(width * scale))

    def covered(sides: tuple[int, int]) -> int:
        rows, columns = grid_of(sides, tile)
        return rows * tile[0] * columns * tile[1]

    while covered(scaled()) > PIXELS:
        scale *= min(0.999, math.sqrt(PIXELS / covered(scaled())))
    return scaled()


def scaled_down(photo: Photo, tile: tuple[int, int]) -> Photo:
    """Scale the photo down to at most `PIXELS` pixels in whole tiles, and record the original size."""
    height, width = fitting_size(photo.size, tile)
    if (height, width) == photo.size:
        return photo
    smaller = pixels(to_pillow(photo.pixels).resize((width, height), Image.Resampling.LANCZOS))
    return replace(photo, pixels=smaller, full_size=photo.full_size or photo.size)


def shrunk(image: Tensor, side: int) -> Tensor:
    """Downscale uint8 (3, H, W) so that no side is longer than `side`. Never enlarges.

    >>> import torch
    >>> shrunk(torch.zeros(3, 100, 300, dtype=torch.uint8), 150).shape
    torch.Size([3, 50, 150])
    """
    height, width = image.shape[-2:]
    scale = side / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return pixels(to_pillow(image).resize(size, Image.Resampling.LANCZOS))


def fitted(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Centre crop of uint8 (3, H, W), scaled to (height, width)."""
    height, width = size
    photo = to_pillow(image)
    scale = max(width / photo.width, height / photo.height)
    left, top = (photo.width - width / scale) / 2, (photo.height - height / scale) / 2
    box = (left, top, left + width / scale, top + height / scale)
    return pixels(photo.resize((width, height), Image.Resampling.LANCZOS, box=box))

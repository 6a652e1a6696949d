"""What a visitor brings: a photo or a `.finola` file, within limits, as pixels."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from finola.codec.container import MAGIC
from finola.codec.photo import decompress, read_container
from finola.images import open_photo, pixels, to_pillow, to_rgb

MAX_BYTES = 40_000_000
MAX_PIXELS = 50_000_000
EXAMPLES = {"astronaut": "Portrait", "chelsea": "Cat", "coffee": "Coffee", "rocket": "Rocket"}
"""Photos that scikit-image installs, and what the page calls them."""


@dataclass(frozen=True)
class Photo:
    """One picture of one visitor."""

    name: str
    pixels: Tensor  # uint8 (3, H, W), sRGB
    coded: int | None = None  # bytes of the `.finola` file it was decoded from
    model: str = ""  # that decoded it

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.pixels.shape[-2], self.pixels.shape[-1]


def take_upload(path: str | Path) -> Photo:
    """The photo of an uploaded file, which is deleted with the folder that it alone was put into."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # two visitors sent the same file at the same moment
        raise ValueError(f"{path.name} got lost on its way: drop it again.") from None
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty, or gone
            path.parent.rmdir()
    return read(data, path.name)


def example(name: str) -> Photo:
    """One of `EXAMPLES`.

    >>> example("astronaut").size
    (512, 512)
    """
    if name not in EXAMPLES:
        raise ValueError(f"there is no example photo {name!r}: choose one of {', '.join(EXAMPLES)}.")
    return Photo(f"{EXAMPLES[name]}, an example", pixels(to_rgb(open_photo(f"skimage:{name}"), name)))


def read(data: bytes, name: str) -> Photo:
    """A photo from the bytes of any common image file, or of a `.finola` file; what is too large is not decoded."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name} has {len(data) / 1e6:.0f} MB, and {MAX_BYTES / 1e6:.0f} MB are the most.")
    if data.startswith(MAGIC):
        container = read_container(data)
        _check_size(name, container.height, container.width)
        return Photo(name, decompress(data), len(data), container.model)
    try:
        opened = open_photo(data, name)
    except ValueError as error:
        if isinstance(error.__cause__, Image.DecompressionBombError | Image.DecompressionBombWarning):
            raise ValueError(f"{name} is too large: {MAX_PIXELS / 1e6:.0f} megapixels are the most.") from None
        raise
    _check_size(name, opened.height, opened.width)
    return Photo(name, pixels(to_rgb(opened, name)))


def _check_size(name: str, height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        size = f"{width} × {height}, {height * width / 1e6:.0f} megapixels"
        raise ValueError(f"{name} is {size}, and {MAX_PIXELS / 1e6:.0f} are the most: make it smaller first.")


def shrunk(image: Tensor, side: int) -> Tensor:
    """uint8 (3, H, W) with no side longer than `side`; never enlarged.

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
    """The middle of uint8 (3, H, W), scaled to fill (height, width) exactly."""
    height, width = size
    photo = to_pillow(image)
    scale = max(width / photo.width, height / photo.height)
    left, top = (photo.width - width / scale) / 2, (photo.height - height / scale) / 2
    box = (left, top, left + width / scale, top + height / scale)
    return pixels(photo.resize((width, height), Image.Resampling.LANCZOS, box=box))

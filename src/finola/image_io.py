"""Read image files as RGB tensors, with orientation and colour profile applied, and write tensors as image files."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageCms
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from finola.errors import CorruptFileError, InputError, first_line
from finola.files import check_folder, read_file, replacing
from finola.image_checks import check_cost
from finola.locations import SKIMAGE, WRITE, skimage_photo, user_path

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "HEIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")
"""Pillow decoders used to open files, whatever their suffix. EPS is excluded because it starts Ghostscript."""

MAX_FLOAT_PIXELS = 2**26
"""Largest image that `read_photo` decodes to float32, which takes 12 bytes per pixel."""

_ORIENTATION = 0x0112
_MAX_TRANSFORMS = 4
_transforms: dict[tuple[bytes, str], ImageCms.ImageCmsTransform | None] = {}
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_photo(source: str | Path | bytes | Image.Image, name: str | None = None) -> Tensor:
    """Read an image from a file, bytes, an opened Pillow image or scikit-image as (3, H, W) float32 in [0, 1].

    EXIF orientation and an embedded colour profile are applied, transparent pixels are composited over white, and
    greyscale, palette, 16-bit and CMYK images are converted to RGB. `name` is used in error messages.

    >>> read_photo("skimage:astronaut").shape
    torch.Size([3, 512, 512])
    """
    name = name or photo_name(source)
    photo = open_photo(source, name)
    width, height = photo.size
    if width * height > MAX_FLOAT_PIXELS:
        raise InputError(
            f"{name} has {width}×{height} pixels, {width * height / 1e6:.0f} million; the maximum is "
            f"{MAX_FLOAT_PIXELS / 1e6:.0f} million. Downscale it, or use finola compress."
        )
    regions = Regions(photo, name, srgb=True)
    image = torch.empty(3, *regions.size)
    rows = max(1, 2**20 // regions.size[1])
    for top in range(0, regions.size[0], rows):
        part = image[:, top : top + rows]
        torch.div(regions.read(top, top + part.shape[1], 0, regions.size[1]), 255, out=part)
    return image


def open_photo(source: str | Path | bytes | Image.Image, name: str | None = None) -> Image.Image:
    """Open an image without decoding its pixels, so that `Image.draft` can still reduce the size of a JPEG."""
    if isinstance(source, Image.Image):
        return source
    name = name or photo_name(source)
    if isinstance(source, str) and source.startswith(SKIMAGE):
        source = skimage_photo(source)
    if not isinstance(source, bytes):
        source = read_file(user_path(source))
    with _reading(name):
        return decode_header(source)


def decode_header(data: bytes, formats: Sequence[str] = FORMATS) -> Image.Image:
    """Open image bytes with the given Pillow decoders only; decoders that are not installed are skipped.

    Raises InputError if decoding would cost far more than the pixels of the image.
    """
    if any(name not in Image.OPEN for name in formats):
        Image.init()
    photo = Image.open(io.BytesIO(data), formats=[name for name in formats if name in Image.OPEN])
    check_cost(photo, data)
    return photo


class Regions:
    """RGB pixels of an opened image, converted region by region. The whole image stays in its stored mode.

    This bounds memory: a one-bit PNG takes one byte per pixel instead of ten. With `srgb` an embedded colour profile is
    applied; otherwise it is available as `profile`, as in `to_own_rgb`.
    """

    def __init__(self, photo: Image.Image, name: str = "the photo", *, srgb: bool = False) -> None:
        self.size = shown_size(photo, name)
        self._photo, self._name, self._srgb = photo, name, srgb
        with _reading(name):
            photo.load()
        self._orientation = orientation(photo)
        first = photo.crop((0, 0, 1, 1))
        with _reading(name):
            self.profile = None if srgb else _own_rgb(first)[1]

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        """Region of the upright image as uint8 (3, bottom − top, right − left)."""
        with _reading(self._name):
            part = self._photo.crop(_stored_box((left, top, right, bottom), self._photo.size, self._orientation))
            turn = _TRANSPOSES.get(self._orientation)
            rgb, profile = _own_rgb(part if turn is None else part.transpose(turn))
            return pixels(_to_srgb(rgb, profile) if self._srgb and profile else rgb)


def _stored_box(box: tuple[int, int, int, int], size: tuple[int, int], turned: int) -> tuple[int, int, int, int]:
    """Map a box (left, top, right, bottom) of the upright image to the stored image of `size` (width, height)."""
    left, top, right, bottom = box
    width, height = size
    if turned >= 5:  # rows and columns are swapped
        left, top, right, bottom = top, left, bottom, right
    if turned in (2, 3, 7, 8):
        left, right = width - right, width - left
    if turned in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def to_rgb(photo: Image.Image, name: str = "the photo") -> Image.Image:
    """Decode an opened image to upright 8-bit sRGB; `name` is used in error messages."""
    rgb, profile = to_own_rgb(photo, name)
    return _to_srgb(rgb, profile) if profile else rgb


def to_own_rgb(photo: Image.Image, name: str = "the photo") -> tuple[Image.Image, bytes | None]:
    """Decode an opened image to upright 8-bit RGB in its own colour space; also return its profile, None for sRGB."""
    with _reading(name):
        photo.load()
        return _own_rgb(_upright(photo))


def _own_rgb(photo: Image.Image) -> tuple[Image.Image, bytes | None]:
    """Convert an image of any Pillow mode to RGB; also return the RGB profile of its values, None for sRGB."""
    profile = photo.info.get("icc_profile")
    if photo.mode == "F":
        raise InputError("floating-point pixels have no defined range; save it with 8 or 16 bits per channel")
    if photo.mode == "I" or photo.mode.startswith("I;16"):
        photo = _from_16_bits(photo)
    if photo.has_transparency_data:
        rgba = photo.convert("RGBA")
        photo = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    elif photo.mode not in ("RGB", "CMYK"):
        photo = photo.convert("RGB")
    if profile and _profile_to_srgb(profile, photo.mode) is None:
        profile = None
    if profile and photo.mode != "RGB":
        photo, profile = _to_srgb(photo, profile), None
    rgb = photo if photo.mode == "RGB" else photo.convert("RGB")
    rgb.info = {}  # profile and transparency must not be applied twice
    return rgb, profile


def to_srgb(image: Tensor, profile: bytes) -> Tensor:
    """Convert uint8 (3, H, W) from an ICC profile to sRGB; unchanged if the profile is sRGB or unusable."""
    return pixels(_to_srgb(to_pillow(image), profile))


def _to_srgb(photo: Image.Image, profile: bytes) -> Image.Image:
    transform = _profile_to_srgb(profile, photo.mode)
    return photo if transform is None else ImageCms.applyTransform(photo, transform) or photo


def content(photo: Image.Image) -> bytes:
    """Encoded bytes of an image that `open_photo` has opened, or the pixels of any other; nothing is decoded."""
    file = getattr(photo, "fp", None)
    return file.getvalue() if isinstance(file, io.BytesIO) else photo.tobytes()


def shown_size(photo: Image.Image, name: str = "the photo") -> tuple[int, int]:
    """Size (height, width) of an opened image after applying its orientation; a JPEG is not decoded."""
    with _reading(name):
        if not isinstance(photo, JpegImageFile):
            photo.load()  # other formats may store the orientation after the pixels
        width, height = photo.size
        return (width, height) if orientation(photo) in (5, 6, 7, 8) else (height, width)


def photo_name(source: str | Path | bytes | Image.Image) -> str:
    """Name of an image source for messages."""
    if isinstance(source, Image.Image):
        return "the photo"
    return f"the photo given as {len(source)} bytes" if isinstance(source, bytes) else str(source)


def pixels(photo: Image.Image) -> Tensor:
    """Convert an RGB image to a uint8 tensor (3, H, W)."""
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).contiguous()


def to_pillow(image: Tensor) -> Image.Image:
    """Convert (3, H, W), uint8 or float in [0, 1], to a Pillow image; the inverse of `pixels`."""
    return Image.fromarray(to_uint8(image).permute(1, 2, 0).cpu().contiguous().numpy())


def to_uint8(image: Tensor) -> Tensor:
    """Scale [0, 1] to 0 … 255, round and clip; uint8 input is returned unchanged.

    >>> to_uint8(torch.tensor([-0.1, 0.5, 2.0])).tolist()
    [0, 128, 255]
    """
    if image.dtype == torch.uint8:
        return image
    return image.detach().float().nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)


def save_photo(
    image: Tensor,
    path: str | Path,
    quality: int = 95,
    *,
    grey: bool = False,
    icc: bytes | None = None,
    exif: bytes | None = None,
) -> Path:
    """Write (3, H, W), float in [0, 1] or uint8, as PNG, JPEG or WebP by suffix; `quality` applies to JPEG and WebP.

    `grey` writes one channel; `icc` and `exif` are embedded unchanged. The file is written atomically: after a crash
    the target is either the old or the new image.
    """
    path = user_path(path)
    if path.suffix.lower() not in WRITE:
        raise InputError(f"Cannot write a photo as {str(path)!r}; end its name with one of {', '.join(WRITE)}.")
    if image.dim() != 3 or image.shape[0] != 3:
        raise InputError(f"An image to save must have shape (3, height, width), not {tuple(image.shape)}.")
    check_folder(path)
    photo = to_pillow(image)
    photo = photo.convert("L") if grey else photo
    blocks = {name: block for name, block in (("icc_profile", icc), ("exif", exif)) if block}
    with replacing(path) as temporary:
        photo.save(temporary, WRITE[path.suffix.lower()], quality=quality, **blocks)
    return path


def side_by_side(images: Sequence[Tensor], gap: int = 4) -> Tensor:
    """Concatenate images (3, H, W) of any sizes in one row on white, `gap` pixels apart, as float32.

    >>> side_by_side([torch.zeros(3, 8, 8), torch.zeros(3, 6, 4)], gap=2).shape
    torch.Size([3, 8, 14])
    """
    if not images:
        raise InputError("side_by_side needs at least one image, got none.")
    height = max(image.shape[-2] for image in images)
    row = torch.ones(3, height, sum(image.shape[-1] for image in images) + gap * (len(images) - 1))
    left = 0
    for image in images:
        values = image.float() / 255 if image.dtype == torch.uint8 else image.detach().float()
        row[:, : image.shape[-2], left : left + image.shape[-1]] = values.cpu()
        left += image.shape[-1] + gap
    return row


def _upright(photo: Image.Image) -> Image.Image:
    turn = _TRANSPOSES.get(orientation(photo))
    return photo if turn is None else photo.transpose(turn)


def orientation(photo: Image.Image) -> int:
    """EXIF orientation, 1 (upright) … 8."""
    try:
        return int(photo.getexif().get(_ORIENTATION, 1))
    except Exception:  # Pillow raises various classes for damaged EXIF; the image is still usable
        return 1


def _from_16_bits(photo: Image.Image) -> Image.Image:
    values = np.asarray(photo).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise InputError(
            f"pixel values range from {values.min()} to {values.max()}; save it with 8 or 16 bits per channel"
        )
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _profile_to_srgb(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Transform from an embedded colour profile to sRGB; None if the profile is sRGB or unusable.

    The last few are cached by the hash of the profile, which may have megabytes.
    """
    key = hashlib.sha256(profile).digest(), mode
    if key in _transforms:
        return _transforms[key]
    if len(_transforms) >= _MAX_TRANSFORMS:
        _transforms.clear()
    return _transforms.setdefault(key, _build_transform(profile, mode))


def _build_transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(source).lower():
            return None
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (OSError, ImageCms.PyCMSError):
        return None


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Convert any exception of a decoder to CorruptFileError; damaged files can raise any class."""
    try:
        yield
    except Exception as error:
        reason = first_line(error)
        if "cannot identify" in reason:
            reason = "its format is not supported; save it as PNG or JPEG"
        raise CorruptFileError(f"{name} cannot be read as a photo: {reason}.") from error

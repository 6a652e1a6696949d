"""Crops, resizing and augmentation. Views are chosen before decoding, so that a JPEG is decoded at reduced size."""

import random as python_random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from typing import NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from finola.errors import InputError, UnknownNameError
from finola.image_io import orientation, pixels, shown_size, to_pillow, to_rgb

Size = tuple[int, int]
Augment = Callable[[Tensor], Tensor]  # uint8 (3, H, W) → uint8 (3, H, W)


class View(NamedTuple):
    """Box (left, top, right, bottom) in pixels of the upright photo, resized to `size` (height, width)."""

    box: tuple[float, float, float, float]
    size: Size
    flip: bool = False
    exact: bool = False  # decode at full size, so that metrics do not depend on reduced-size decoding


class Transform(Protocol):
    """Chooses a view of a photo of size (height, width)."""

    def view(self, size: Size, random: np.random.Generator) -> View: ...


@dataclass(frozen=True)
class Whole:
    """The whole photo at its own size."""

    def view(self, size: Size, random: np.random.Generator) -> View:
        return View((0, 0, size[1], size[0]), size, exact=True)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Random crop resized to `size`: `scale` is the range of its relative area, `ratio` that of width over height.

    >>> RandomResizedCrop(256).view((300, 400), np.random.default_rng(0)).size
    (256, 256)
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        for name, (low, high) in {"scale": self.scale, "ratio": self.ratio}.items():
            if not 0 < low <= high:
                raise InputError(f"{name} of RandomResizedCrop must satisfy 0 < low ≤ high, not {(low, high)}.")

    def view(self, size: Size, random: np.random.Generator) -> View:
        height, width = size
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            ratio = exp(random.uniform(log(self.ratio[0]), log(self.ratio[1])))
            w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:  # no such box was found in an elongated photo: the largest box of an allowed ratio
            w = min(width, max(1, round(height * self.ratio[1])))
            h = min(height, max(1, round(width / self.ratio[0])))
        left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
        return View(_box(left, top, w, h), _pair(self.size), self.flip and random.random() < 0.5)


@dataclass(frozen=True)
class RandomCrop:
    """Random crop of `size` pixels without resizing; smaller photos are enlarged to fit."""

    size: int | Size
    flip: bool = False

    def view(self, size: Size, random: np.random.Generator) -> View:
        w, h = _fitting(size, _pair(self.size), max(1.0, _scale_to_cover(size, _pair(self.size))))
        left, top = (int(random.integers(int(room) + 1)) for room in (size[1] - w, size[0] - h))
        return View(_box(left, top, w, h), _pair(self.size), self.flip and random.random() < 0.5)


@dataclass(frozen=True)
class CentreCrop:
    """Centre crop of `size` after resizing. The crop is the fraction `crop_pct` of the resized photo, as in timm.

    With 1 the photo just covers the crop. A crop of 224 with 0.875 resizes the short side to 256 pixels.
    """

    size: int | Size
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.crop_pct <= 1:
            raise InputError(f"crop_pct is {self.crop_pct}, but must be greater than 0 and at most 1.")

    def view(self, size: Size, random: np.random.Generator) -> View:
        scale = _scale_to_cover(size, _pair(self.size)) / self.crop_pct
        w, h = _fitting(size, _pair(self.size), scale)
        left, top = (size[1] - w) / 2, (size[0] - h) / 2
        if scale == 1:
            left, top = left // 1, top // 1
        return View(_box(left, top, w, h), _pair(self.size), exact=True)


def training_crop(kind: str, size: Size, scale: Sequence[float], flip: bool) -> Transform:
    """Crop by name: `resized`, with its range of relative areas, `random` or `centre`."""
    if kind == "resized":
        return RandomResizedCrop(size, (scale[0], scale[1]), flip=flip)
    return RandomCrop(size, flip) if kind == "random" else CentreCrop(size)


def centre_crop(photo: Image.Image, size: Size, name: str = "the photo", crop_pct: float = 1.0) -> Tensor:
    """Centre crop uint8 (3, *size) of an opened photo, as `CentreCrop` takes it from a data set."""
    view = CentreCrop(size, crop_pct).view(shown_size(photo, name), np.random.default_rng(0))
    return render_views(photo, [view], name)[0]


def render_views(photo: Image.Image, views: Sequence[View], name: str = "the photo") -> Tensor:
    """Render K views of the same size as uint8 (K, 3, height, width), decoding the opened photo once.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if no view needs more pixels and none is exact. Resizing is bicubic
    with antialiasing.
    """
    shrink = 1.0
    least = min(min((v.box[2] - v.box[0]) / v.size[1], (v.box[3] - v.box[1]) / v.size[0]) for v in views)
    width, height = photo.size
    if (
        least >= 2
        and isinstance(photo, JpegImageFile)
        and not any(view.exact for view in views)
        # A side that is not a multiple of 8 is rounded up at its end, which is the start of a side in a rotated photo.
        and (orientation(photo) == 1 or width % 8 == height % 8 == 0)
    ):
        drafted = photo.draft(None, (ceil(width / least), ceil(height / least)))
        if drafted is not None:
            shrink = drafted[1][2] / width
    rgb = to_rgb(photo, name)
    return torch.stack([pixels(_render(rgb, view, shrink)) for view in views])


def _render(rgb: Image.Image, view: View, shrink: float) -> Image.Image:
    height, width = view.size
    left, top, right, bottom = view.box
    if shrink == 1 and (right - left, bottom - top) == (width, height) and left % 1 == top % 1 == 0:
        image = rgb if view.box == (0, 0, *rgb.size) else rgb.crop((int(left), int(top), int(right), int(bottom)))
    else:
        box = (left * shrink, top * shrink, min(right * shrink, rgb.width), min(bottom * shrink, rgb.height))
        image = rgb.resize((width, height), Image.Resampling.BICUBIC, box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if view.flip else image


def _pair(size: int | Size) -> Size:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _box(left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
    return float(left), float(top), float(left + width), float(top + height)


def _scale_to_cover(size: Size, wanted: Size) -> float:
    return max(wanted[0] / size[0], wanted[1] / size[1])


def _fitting(size: Size, wanted: Size, scale: float) -> tuple[float, float]:
    """(width, height), in pixels of the photo, of the box that has size `wanted` after resizing by `scale`."""
    return min(wanted[1] / scale, size[1]), min(wanted[0] / scale, size[0])


def build_augment(name: str) -> Augment:
    """Build an augmentation by name: `moco`, or RandAugment in timm's notation.

    `rand-m9-mstd0.5` is the paper's RandAug (9, 0.5).

    >>> with seeded(np.random.default_rng(0)):
    ...     build_augment("rand-m9-mstd0.5")(torch.zeros(3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([3, 32, 32])
    """
    if name == "moco":
        return _moco()
    if name.startswith("rand-m"):
        return _randaug(name)
    raise UnknownNameError(f"Unknown data.augment {name!r}; use moco or a RandAugment such as rand-m9-mstd0.5.")


def _randaug(name: str) -> Augment:
    from timm.data.auto_augment import rand_augment_transform  # the paper's "RandAug (9, 0.5)" is timm's notation

    try:
        change = rand_augment_transform(name, {})
    except (AssertionError, ValueError, LookupError, OverflowError) as error:
        raise InputError(f"data.augment {name!r} is not a valid RandAugment configuration of timm.") from error
    return lambda image: pixels(change(to_pillow(image)))


def _moco() -> Augment:
    """Colour jitter with probability 0.8, greyscale with 0.2, Gaussian blur with 0.5."""
    from torchvision.transforms import v2

    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    blur = v2.RandomApply([v2.GaussianBlur(9, sigma=(0.1, 2.0))], p=0.5)
    change: Augment = v2.Compose([jitter, v2.RandomGrayscale(0.2), blur])
    return change


def mix(images: Tensor, labels: Tensor, classes: int, mixup: float, cutmix: float) -> tuple[Tensor, Tensor]:
    """Apply mixup or cutmix to a batch; labels become probabilities (N, classes)."""
    from torchvision.transforms import v2  # uses torch's random generator, so that resuming is exact

    transforms = [(v2.MixUp, mixup), (v2.CutMix, cutmix)]
    chosen = [transform(alpha=alpha, num_classes=classes) for transform, alpha in transforms if alpha > 0]
    mixed: tuple[Tensor, Tensor] = chosen[int(torch.randint(len(chosen), ()))](images, labels)
    return mixed


def erase(images: Tensor, share: float) -> Tensor:
    """Random erasing: replace a random box by noise in each image with probability `share`."""
    if not share:
        return images
    from torchvision.transforms import v2

    erasing = v2.RandomErasing(p=share, value="random")
    return torch.stack([erasing(image) for image in images]).clamp(0, 1)


@contextmanager
def seeded(random: np.random.Generator) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch from `random`, and restore their states on exit."""
    seed = int(random.integers(2**32))
    python, numpy = python_random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        python_random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            python_random.setstate(python)
            np.random.set_state(numpy)

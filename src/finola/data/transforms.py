"""Crops and resizing. Views are chosen before decoding, so that a JPEG can be decoded at reduced size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from typing import NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from finola.errors import InputError
from finola.image_io import orientation, pixels, to_rgb

Size = tuple[int, int]


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
    """Centre crop of `size` after resizing the short side to `resize`, by default such that the photo covers `size`."""

    size: int | Size
    resize: int | None = None

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < max(_pair(self.size)):
            raise InputError(f"CentreCrop: resize={self.resize} is smaller than the crop size {self.size}.")

    def view(self, size: Size, random: np.random.Generator) -> View:
        scale = self.resize / min(size) if self.resize else _scale_to_cover(size, _pair(self.size))
        w, h = _fitting(size, _pair(self.size), scale)
        left, top = (size[1] - w) / 2, (size[0] - h) / 2
        if scale == 1:
            left, top = left // 1, top // 1
        return View(_box(left, top, w, h), _pair(self.size), exact=True)


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

"""Photos with their objects: boxes, classes and masks follow whatever part of a photo becomes an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from finola.data.dataset import PhotoDataset
from finola.data.sources import Source
from finola.data.transforms import Size, Transform, View, draw
from finola.errors import InputError
from finola.image_io import shown_size

MULTIPLE = 32
"""Sides of a batch are padded to multiples of this."""
SMALLEST = 1.0
"""An object of which less than so many pixels are left in width or height is left out."""
_LARGEST = 800  # the short side that DETR's crops are given for


class ObjectItem(NamedTuple):
    """What a worker hands over for one index."""

    image: Tensor  # uint8 (3, H, W)
    target: dict[str, Any]
    photo: int
    replaced: bool
    skipped: dict[int, str]


class ObjectBatch(NamedTuple):
    """Images of different sizes in one tensor, black at the right and below where they are smaller.

    A target has `labels` (K,), `boxes` (K, 4) as left, top, right, bottom in the image's pixels, `masks` (K, h, w) bool
    where they are asked for, and `image_id` and `photo_size` of the photo it comes from.
    """

    images: Tensor  # (N, 3, H, W) float32 in [0, 1], or uint8
    sizes: Tensor  # (N, 2) int64, height and width of each image without its padding
    targets: list[dict[str, Any]]
    indices: Tensor  # (N,) int64
    replaced: Tensor  # (N,) bool


@dataclass(frozen=True)
class Fit:
    """The whole photo, its short side resized to `short` unless the long one would then exceed `long`.

    >>> Fit(800, 1333).view((480, 640), np.random.default_rng(0)).size
    (800, 1067)
    """

    short: int = 800
    long: int = 1333

    def view(self, size: Size, random: np.random.Generator) -> View:
        return View((0.0, 0.0, float(size[1]), float(size[0])), fitted(size, self.short, self.long), exact=True)


@dataclass(frozen=True)
class MultiScale:
    """DETR's augmentation: a flip, every other time a crop, and a short side drawn from `short` (both ends and steps).

    The crop is DETR's too, between 384 and 600 pixels of a photo whose short side is 400, 500 or 600, in proportion to
    the largest short side (800 there).
    """

    short: tuple[int, int] = (480, 800)
    long: int = 1333
    step: int = 32
    crop: bool = True
    flip: bool = True

    def view(self, size: Size, random: np.random.Generator) -> View:
        height, width = size
        left, top, w, h = 0.0, 0.0, float(width), float(height)
        if self.crop and random.random() < 0.5:
            unit = self.short[1] / _LARGEST
            scale = float(random.choice([400, 500, 600])) * unit / min(size)
            w, h = (_crop_side(side * scale, unit, random) / scale for side in (width, height))
            left, top = float(random.uniform(0, width - w)), float(random.uniform(0, height - h))
        short = int(random.choice(np.arange(self.short[0], self.short[1] + 1, self.step)))
        flip = self.flip and bool(random.random() < 0.5)
        return View((left, top, left + w, top + h), fitted((h, w), short, self.long), flip)


def _crop_side(side: float, unit: float, random: np.random.Generator) -> float:
    most = min(side, 600 * unit)
    return float(random.uniform(min(384 * unit, most), most))


def fitted(size: tuple[float, float], short: int, long: int) -> Size:
    """(height, width) once the short side is `short`, or less where the long side would exceed `long`."""
    scale = min(short / min(size), long / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def move_boxes(boxes: Tensor, view: View) -> Tensor:
    """Boxes (K, 4) of a photo in the pixels of one of its views, not clipped."""
    left, top, right, bottom = view.box
    height, width = view.size
    scale = boxes.new_tensor([width / (right - left), height / (bottom - top)] * 2)
    moved = (boxes - boxes.new_tensor([left, top] * 2)) * scale
    if view.flip:
        moved[:, [0, 2]] = width - moved[:, [2, 0]]
    return moved


def move_mask(segmentation: Any, photo_size: Size, view: View) -> Tensor:
    """An object's mask (H, W) in a view, from COCO's polygons or run lengths."""
    from pycocotools import mask as coco_mask

    left, top, right, bottom = view.box
    height, width = view.size
    across, down = width / (right - left), height / (bottom - top)
    if isinstance(segmentation, dict):
        runs = segmentation
        if isinstance(runs["counts"], list):
            runs = coco_mask.frPyObjects(runs, *photo_size)
        whole = coco_mask.decode(runs)
        rows = ((np.arange(height) + 0.5) / down + top).astype(int).clip(0, photo_size[0] - 1)
        columns = ((np.arange(width) + 0.5) / across + left).astype(int).clip(0, photo_size[1] - 1)
        mask = whole[rows][:, columns]
    else:
        moved = []
        for polygon in segmentation:
            points = (np.asarray(polygon, dtype=float).reshape(-1, 2) - [left, top]) * [across, down]
            if len(points) >= 3:
                moved.append(points.flatten().tolist())
        mask = np.zeros((height, width), np.uint8)
        if moved:
            mask = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(moved, height, width)))
    return torch.from_numpy(np.ascontiguousarray(mask[:, ::-1] if view.flip else mask)).bool()


class ObjectDataset(PhotoDataset):
    """Photos of a COCO source with their objects as `classes` number them; crowds and degenerate boxes are left out.

    `classes` are names, by default those of the source in the order of its numbers; `masks` asks for masks too.
    """

    def __init__(
        self,
        source: Source,
        transform: Transform | None = None,
        *,
        classes: Sequence[str] | None = None,
        masks: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(source, transform, seed=seed)
        if not source.categories:
            raise InputError(f"{source.where} has no annotations of objects; a COCO folder has.")
        self.names = class_names(source) if classes is None else list(classes)
        number = {name: label for label, name in enumerate(self.names)}
        self.label_of = {category: number.get(name, -1) for category, name in source.categories.items()}
        self.masks = masks
        if masks and not any(any(self.source.target(index)["segmentation"]) for index in range(len(source))):
            raise InputError(f"{source.where} has boxes but no masks; a segmenter needs masks, a detector does not.")

    @property
    def categories(self) -> list[int]:
        """The source's number of every class, −1 of those it does not have."""
        known = {name: category for category, name in sorted(self.source.categories.items(), reverse=True)}
        return [known.get(name, -1) for name in self.names]

    def left_out(self) -> list[str]:
        """A sentence on every photo with objects that cannot be trained on, crowds aside."""
        sentences = []
        for index in range(len(self)):
            target = self.source.target(index)
            flat = int((~_solid(target["boxes"])).sum())
            unknown = sum(self.label_of[category] < 0 for category in target["categories"].tolist())
            bare = sum(not segmentation for segmentation in target["segmentation"]) if self.masks else 0
            reasons = ((flat, "without width or height"), (unknown, "of unknown classes"), (bare, "without a mask"))
            said = ", ".join(f"{count} {reason}" for count, reason in reasons if count)
            if said:
                sentences.append(f"{self.name(index)} has objects that are left out: {said}.")
        return sentences

    def item(self, number: int, random: np.random.Generator, replaced: bool, skipped: dict[int, str]) -> ObjectItem:  # type: ignore[override]
        name, photo, given = self.source.name(number), self.source.open(number), self.source.target(number)
        size = shown_size(photo, name)
        if size != tuple(given["size"]):
            shown, told = ("×".join(map(str, sides)) for sides in (size, given["size"]))
            raise InputError(f"{name} is {shown} pixels (height × width), but its annotations say {told}.")
        view = self.transform.view(size, random)
        return ObjectItem(draw(photo, [view], name)[0], self._seen(given, view), number, replaced, skipped)

    def _seen(self, given: dict[str, Any], view: View) -> dict[str, Any]:
        """The target of a view: what is left of the photo's objects in it."""
        height, width = view.size
        boxes = torch.minimum(move_boxes(given["boxes"], view).clamp(min=0), torch.tensor([width, height] * 2).float())
        labels = torch.tensor([self.label_of[category] for category in given["categories"].tolist()], dtype=torch.int64)
        kept = (
            (boxes[:, 2:] - boxes[:, :2] >= SMALLEST).all(1) & _solid(given["boxes"]) & ~given["crowd"] & (labels >= 0)
        )
        if self.masks:
            kept &= torch.tensor([bool(segmentation) for segmentation in given["segmentation"]], dtype=torch.bool)
        target = {"labels": labels[kept], "boxes": boxes[kept]}
        if self.masks:
            numbers = kept.nonzero()[:, 0].tolist()
            drawn = [move_mask(given["segmentation"][number], given["size"], view) for number in numbers]
            target["masks"] = torch.stack(drawn) if drawn else torch.zeros(0, height, width, dtype=torch.bool)
        return target | {"image_id": given["image_id"], "photo_size": tuple(given["size"])}


def _solid(boxes: Tensor) -> Tensor:
    return boxes.isfinite().all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)


def class_names(source: Source) -> list[str]:
    """The names of a source's categories in the order of their numbers, each once."""
    return list(dict.fromkeys(name for _, name in sorted(source.categories.items())))


def letterbox(images: Sequence[Tensor], multiple: int = MULTIPLE) -> tuple[Tensor, Tensor]:
    """Images (3, h, w) of any sizes as one (N, 3, H, W), black at the right and below, and their sizes (N, 2).

    >>> images, sizes = letterbox([torch.ones(3, 40, 70), torch.ones(3, 50, 60)])
    >>> images.shape, sizes.tolist()
    (torch.Size([2, 3, 64, 96]), [[40, 70], [50, 60]])
    """
    sizes = torch.tensor([image.shape[-2:] for image in images])
    height, width = (-(-int(side) // multiple) * multiple for side in sizes.amax(0))
    padded = images[0].new_zeros(len(images), 3, height, width)
    for number, image in enumerate(images):
        padded[number, :, : image.shape[-2], : image.shape[-1]] = image
    return padded, sizes


def collate_objects(items: Sequence[ObjectItem]) -> tuple[ObjectBatch, dict[int, str]]:
    """A batch, and every unreadable photo that was met on the way."""
    images, sizes = letterbox([item.image for item in items])
    skipped = {index: reason for item in items for index, reason in item.skipped.items()}
    photos, replaced = (torch.tensor([getattr(item, name) for item in items]) for name in ("photo", "replaced"))
    return ObjectBatch(images, sizes, [item.target for item in items], photos, replaced), skipped

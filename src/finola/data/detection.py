"""Data set for object detection: boxes, labels and masks are transformed together with the photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from finola.config import show_size
from finola.data.dataset import PhotoDataset
from finola.data.sources import Source
from finola.data.transforms import Size, Transform, View, render_views
from finola.errors import InputError, require
from finola.image_io import shown_size

MULTIPLE = 32
"""The sides of a batch are padded to multiples of this."""
MIN_OBJECT_SIDE = 1.0
"""Objects whose width or height in the view is below this many pixels are dropped."""
_DETR_SHORT = 800  # the short side that the crop sizes of DETR refer to


class ObjectItem(NamedTuple):
    """Sample of one index, as returned by a worker."""

    image: Tensor  # uint8 (3, H, W)
    target: dict[str, Any]
    photo: int
    replaced: bool
    skipped: dict[int, str]


class ObjectBatch(NamedTuple):
    """Images of different sizes in one tensor, zero-padded at the right and at the bottom.

    A target has `labels` (K,), `boxes` (K, 4) as left, top, right, bottom in pixels of the image, `masks` (K, h, w)
    bool if requested, and `image_id` and `photo_size` of its photo.
    """

    images: Tensor  # (N, 3, H, W) float32 in [0, 1], or uint8
    sizes: Tensor  # (N, 2) int64, height and width of each image without its padding
    targets: list[dict[str, Any]]
    indices: Tensor  # (N,) int64
    replaced: Tensor  # (N,) bool


@dataclass(frozen=True)
class Fit:
    """Resize the whole photo such that its short side is `short`, or less if the long side would exceed `long`.

    >>> Fit(800, 1333).view((480, 640), np.random.default_rng(0)).size
    (800, 1067)
    """

    short: int = 800
    long: int = 1333

    def view(self, size: Size, random: np.random.Generator) -> View:
        return View((0.0, 0.0, float(size[1]), float(size[0])), fitted(size, self.short, self.long), exact=True)


@dataclass(frozen=True)
class MultiScale:
    """Augmentation of DETR: random flip, a random crop with probability 0.5, and a random short side.

    The short side is drawn from the range `short` in multiples of `step`. As in DETR, a crop has sides of 384 to 600
    pixels in a photo resized to a short side of 400, 500 or 600; these sizes scale with the largest short side (800 in
    DETR).
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
            unit = self.short[1] / _DETR_SHORT
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
    """(height, width) after resizing the short side to `short`, or less if the long side would exceed `long`."""
    scale = min(short / min(size), long / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def move_boxes(boxes: Tensor, view: View) -> Tensor:
    """Transform boxes (K, 4) of a photo to pixels of a view, without clipping."""
    left, top, right, bottom = view.box
    height, width = view.size
    scale = boxes.new_tensor([width / (right - left), height / (bottom - top)] * 2)
    moved = (boxes - boxes.new_tensor([left, top] * 2)) * scale
    if view.flip:
        moved[:, [0, 2]] = width - moved[:, [2, 0]]
    return moved


def move_mask(segmentation: Any, photo_size: Size, view: View) -> Tensor:
    """Rasterise COCO polygons or run lengths of an object to its mask (H, W) in a view."""
    require("pycocotools")
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
    """Photos of a COCO source with their objects; crowds and degenerate boxes are dropped.

    `classes` are the names of labels 0, 1, …, by default those of the source in the order of its category ids. With
    `masks`, targets have masks.
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
            raise InputError(f"{source.where} has no object annotations; use a COCO folder.")
        self.names = class_names(source) if classes is None else list(classes)
        number = {name: label for label, name in enumerate(self.names)}
        self.label_of = {category: number.get(name, -1) for category, name in source.categories.items()}
        self.masks = masks
        if masks and not any(any(self.source.target(index)["segmentation"]) for index in range(len(source))):
            raise InputError(f"{source.where} has boxes but no masks, which segmentation requires; train a detector.")

    @property
    def categories(self) -> list[int]:
        """Category id in the source of every class; −1 for classes that it does not have."""
        known = {name: category for category, name in sorted(self.source.categories.items(), reverse=True)}
        return [known.get(name, -1) for name in self.names]

    def left_out(self) -> list[str]:
        """Messages about photos with objects that are dropped for another reason than being a crowd."""
        messages = []
        for index in range(len(self)):
            target = self.source.target(index)
            empty = int((~_valid(target["boxes"])).sum())
            unknown = sum(self.label_of[category] < 0 for category in target["categories"].tolist())
            maskless = sum(not segmentation for segmentation in target["segmentation"]) if self.masks else 0
            counts = ((empty, "without width or height"), (unknown, "of unknown classes"), (maskless, "without a mask"))
            reasons = ", ".join(f"{count} {reason}" for count, reason in counts if count)
            if reasons:
                messages.append(f"Objects of {self.name(index)} are ignored: {reasons}.")
        return messages

    def sample(self, index: int, epoch: int = 0) -> tuple[Tensor, dict[str, Any]]:  # type: ignore[override]
        """Image, uint8 (3, H, W), and its objects."""
        item: Any = self[epoch, index]
        return item.image, item.target

    def item(self, number: int, random: np.random.Generator, replaced: bool, skipped: dict[int, str]) -> ObjectItem:  # type: ignore[override]
        name, photo, given = self.source.name(number), self.source.open(number), self.source.target(number)
        size = shown_size(photo, name)
        if size != tuple(given["size"]):
            actual, declared = show_size(size), show_size(given["size"])
            raise InputError(f"{name} has {actual} pixels, but its annotations declare {declared}.")
        view = self.transform.view(size, random)
        return ObjectItem(render_views(photo, [view], name)[0], self._target_of(given, view), number, replaced, skipped)

    def _target_of(self, given: dict[str, Any], view: View) -> dict[str, Any]:
        """Target of a view: the objects of the photo, transformed and clipped to the view."""
        height, width = view.size
        boxes = torch.minimum(move_boxes(given["boxes"], view).clamp(min=0), torch.tensor([width, height] * 2).float())
        labels = torch.tensor([self.label_of[category] for category in given["categories"].tolist()], dtype=torch.int64)
        visible = (boxes[:, 2:] - boxes[:, :2] >= MIN_OBJECT_SIDE).all(1)
        selected = visible & _valid(given["boxes"]) & ~given["crowd"] & (labels >= 0)
        if self.masks:
            selected &= torch.tensor([bool(segmentation) for segmentation in given["segmentation"]], dtype=torch.bool)
        target = {"labels": labels[selected], "boxes": boxes[selected]}
        if self.masks:
            indices = selected.nonzero()[:, 0].tolist()
            masks = [move_mask(given["segmentation"][index], given["size"], view) for index in indices]
            target["masks"] = torch.stack(masks) if masks else torch.zeros(0, height, width, dtype=torch.bool)
        return target | {"image_id": given["image_id"], "photo_size": tuple(given["size"])}


def _valid(boxes: Tensor) -> Tensor:
    """Whether boxes (K, 4) are finite and have positive width and height: (K,) bool."""
    return boxes.isfinite().all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)


def class_names(source: Source) -> list[str]:
    """Unique names of the categories of a source, in the order of their ids."""
    return list(dict.fromkeys(name for _, name in sorted(source.categories.items())))


def letterbox(images: Sequence[Tensor], multiple: int = MULTIPLE) -> tuple[Tensor, Tensor]:
    """Zero-pad images (3, h, w) at the right and bottom to one tensor (N, 3, H, W); returns it and the sizes (N, 2).

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
    """Collate items to a batch; returns it and the unreadable photos that were skipped."""
    images, sizes = letterbox([item.image for item in items])
    skipped = {index: reason for item in items for index, reason in item.skipped.items()}
    photos, replaced = (torch.tensor([getattr(item, name) for item in items]) for name in ("photo", "replaced"))
    return ObjectBatch(images, sizes, [item.target for item in items], photos, replaced), skipped

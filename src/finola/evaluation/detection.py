"""Trained detectors and segmenters by name, what they find in photos of any size, and how well they do it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image

from finola.data.detection import Fit, ObjectDataset, letterbox
from finola.data.transforms import draw
from finola.evaluation.average_precision import average_precision, ground_truth
from finola.heads.detection_model import Finder
from finola.heads.detections import Found
from finola.heads.mask_rcnn import Segmenter
from finola.image_io import shown_size


@torch.inference_mode()
def find_in(model: Finder, photo: Image.Image, name: str = "the photo", score: float = 0.0) -> Found:
    """What a model finds in an opened photo with at least this score, in the photo's pixels.

    >>> from finola.image_io import open_photo
    >>> model = Detector("mf-w720", classes=["cat"], size=(64, 96)).eval()
    >>> found = find_in(model, open_photo("skimage:chelsea"))
    >>> bool((found.boxes[:, 2] <= 451).all())
    True
    """
    size = shown_size(photo, name)
    view = Fit(*model.size).view(size, np.random.default_rng(0))
    images, sizes = letterbox([draw(photo, [view], name)[0]])
    [found] = model.find(images.float() / 255, sizes)
    return found.above(score).resized(view.size, size)


def measure(model: Finder, dataset: ObjectDataset, indices: Iterable[int]) -> dict[str, Any]:
    """COCO's twelve figures of boxes, and of masks where the model makes them, over readable photos.

    `results` are the entries that were measured, in the numbers of the data's own annotation file.
    """
    results: list[dict[str, Any]] = []
    seen: list[int] = []
    for index in indices:
        item: Any = dataset[0, index]
        if item.replaced:
            continue
        seen.append(index)
        images, sizes = letterbox([item.image])
        with torch.inference_mode():
            [found] = model.find(images.float() / 255, sizes)
        found = found.resized((item.image.shape[-2], item.image.shape[-1]), item.target["photo_size"])
        results += known(found.as_coco(item.target["image_id"], dataset.categories))
    if not seen:
        raise ValueError("not one photo could be read, so there is nothing to measure.")
    truth = ground_truth(dataset.source, seen, dataset.categories)
    figures = {"boxes": average_precision(truth, results, "bbox")}
    if isinstance(model, Segmenter) and any("segmentation" in entry for entry in truth["annotations"]):
        figures["masks"] = average_precision(truth, results, "segm")
    return {"images": len(seen), "results": results} | figures


def known(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without objects of classes that the data does not have: nobody has looked for them there."""
    return [entry for entry in entries if entry["category_id"] >= 0]

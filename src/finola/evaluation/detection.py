"""Run trained detectors and segmenters on photos of any size, and evaluate them by COCO's metrics."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from finola.data.detection import Fit, ObjectDataset, letterbox
from finola.data.sources import Source
from finola.data.transforms import render_views
from finola.errors import InputError, require
from finola.heads.detection_model import DetectionModel, Detections
from finola.heads.mask_rcnn import Segmenter
from finola.image_io import shown_size
from finola.tiling import equal_sized

METRICS = ("AP", "AP50", "AP75", "AP_S", "AP_M", "AP_L", "AR1", "AR10", "AR100", "AR_S", "AR_M", "AR_L")
"""Names of COCO's twelve metrics, in the order of pycocotools."""


def detect(model: DetectionModel, photo: Image.Image, *, score: float = 0.0, name: str = "the photo") -> Detections:
    """Detect objects in an opened photo, in pixels of the photo; those with a lower score are dropped.

    >>> from finola.heads.detector import Detector
    >>> from finola.image_io import open_photo
    >>> model = Detector("mf-w720", classes=["cat"], size=(64, 96)).eval()
    >>> detections = detect(model, open_photo("skimage:chelsea"))
    >>> bool((detections.boxes[:, 2] <= 451).all())
    True
    """
    size, image = shown_size(photo, name), fitted_image(model, photo, name)
    [detections] = detect_batch(model, image[None])
    return detections.above(score).resized((image.shape[1], image.shape[2]), size)


def fitted_image(model: DetectionModel, photo: Image.Image, name: str = "the photo") -> Tensor:
    """Pixels of an opened photo at the input size of the model: uint8 (3, h, w)."""
    view = Fit(*model.size).view(shown_size(photo, name), np.random.default_rng(0))
    return render_views(photo, [view], name)[0]


@torch.inference_mode()
def detect_batch(model: DetectionModel, images: Tensor) -> list[Detections]:
    """Detections in images of equal size, uint8 (N, 3, h, w), in their pixels and on the CPU."""
    device = next(model.parameters()).device
    padded, sizes = letterbox(list(images))
    return [found.cpu() for found in model.detect(padded.to(device).float() / 255, sizes.to(device))]


def evaluate_detection(
    model: DetectionModel, dataset: ObjectDataset, indices: Iterable[int], batch: int = 1
) -> dict[str, Any]:
    """COCO's twelve metrics of boxes, and of masks if the model predicts them, over the readable photos.

    Successive photos of equal input size are processed in batches of at most `batch`. `results` are the detections in
    COCO format, with the ids of the annotation file of the data.
    """
    results: list[dict[str, Any]] = []
    seen: list[int] = []

    def items() -> Iterator[tuple[dict[str, Any], Tensor]]:
        for index in indices:
            item: Any = dataset[0, index]
            if not item.replaced:
                seen.append(index)
                yield item.target, item.image

    for group in equal_sized(items(), batch):
        found = detect_batch(model, torch.stack([image for _, image in group]))
        for (target, image), detections in zip(group, found, strict=True):
            resized = detections.resized((image.shape[-2], image.shape[-1]), target["photo_size"])
            results += known_classes(resized.to_coco(target["image_id"], dataset.categories))
    if not seen:
        raise InputError(f"None of the photos of {dataset.source.where} could be read.")
    truth = ground_truth(dataset.source, seen, dataset.categories)
    metrics = {"boxes": average_precision(truth, results, "bbox")}
    if isinstance(model, Segmenter) and any("segmentation" in entry for entry in truth["annotations"]):
        metrics["masks"] = average_precision(truth, results, "segm")
    return {"images": len(seen), "results": results} | metrics


def known_classes(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop detections of classes that the data does not annotate."""
    return [entry for entry in entries if entry["category_id"] >= 0]


def ground_truth(source: Source, indices: Iterable[int], categories: Collection[int] | None = None) -> dict[str, Any]:
    """Annotations of the given photos in the format of a COCO file, with its optional fields filled in.

    Boxes without width or height and objects of other `categories` (None: all of the source) are left out.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in indices:
        target = source.target(index)
        height, width = target["size"]
        images.append({"id": target["image_id"], "height": height, "width": width})
        for number, segmentation in enumerate(target["segmentation"]):
            left, top, right, bottom = target["boxes"][number].tolist()
            category = int(target["categories"][number])
            if not (right > left and bottom > top) or (categories is not None and category not in categories):
                continue
            entry = {
                "id": len(annotations) + 1,
                "image_id": target["image_id"],
                "category_id": category,
                "bbox": [left, top, right - left, bottom - top],
                "area": float(target["area"][number]),
                "iscrowd": int(target["crowd"][number]),
            }
            annotations.append(entry | ({"segmentation": segmentation} if segmentation else {}))
    named = [{"id": number, "name": name} for number, name in source.categories.items()]
    selected = [entry for entry in named if categories is None or entry["id"] in categories]
    return {"images": images, "annotations": annotations, "categories": selected}


def average_precision(truth: dict[str, Any], results: list[dict[str, Any]], kind: str = "bbox") -> dict[str, Any]:
    """COCO's twelve metrics of results (`Detections.to_coco`) for boxes (`bbox`) or masks (`segm`); None if undefined.

    >>> truth = {"images": [{"id": 1, "height": 64, "width": 64}], "categories": [{"id": 7, "name": "cat"}]}
    >>> cat = {"image_id": 1, "category_id": 7, "bbox": [8, 8, 40, 40]}
    >>> truth["annotations"] = [cat | {"id": 1, "area": 1600, "iscrowd": 0}]
    >>> round(average_precision(truth, [cat | {"score": 0.9}])["AP50"], 6)
    1.0
    """
    require("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not any(not entry["iscrowd"] for entry in truth["annotations"]):
        return dict.fromkeys(METRICS)
    if not results:
        return dict.fromkeys(METRICS, 0.0)
    with redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes([dict(entry) for entry in results]), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) if value >= 0 else None for name, value in zip(METRICS, evaluation.stats, strict=True)}

"""COCO's average precision and recall, by pycocotools, of what was found in photos whose objects are known."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout
from typing import Any

from finola.data.sources import Source

FIGURES = ("AP", "AP50", "AP75", "AP_S", "AP_M", "AP_L", "AR1", "AR10", "AR100", "AR_S", "AR_M", "AR_L")


def ground_truth(source: Source, indices: Iterable[int], categories: Collection[int] | None = None) -> dict[str, Any]:
    """The objects of some photos as a COCO annotation file has them; what such a file may lack is filled in.

    Boxes without width or height are left out, and so is what is not in `categories` (None: all of the source's).
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
    kept = [entry for entry in named if categories is None or entry["id"] in categories]
    return {"images": images, "annotations": annotations, "categories": kept}


def average_precision(truth: dict[str, Any], results: list[dict[str, Any]], kind: str = "bbox") -> dict[str, Any]:
    """COCO's twelve figures of results (`Found.as_coco`), for boxes (`bbox`) or masks (`segm`); None where undefined.

    >>> truth = {"images": [{"id": 1, "height": 64, "width": 64}], "categories": [{"id": 7, "name": "cat"}]}
    >>> cat = {"image_id": 1, "category_id": 7, "bbox": [8, 8, 40, 40]}
    >>> truth["annotations"] = [cat | {"id": 1, "area": 1600, "iscrowd": 0}]
    >>> round(average_precision(truth, [cat | {"score": 0.9}])["AP50"], 6)
    1.0
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not any(not entry["iscrowd"] for entry in truth["annotations"]):
        return dict.fromkeys(FIGURES)
    if not results:
        return dict.fromkeys(FIGURES, 0.0)
    with redirect_stdout(io.StringIO()):  # it prints as it goes
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes([dict(entry) for entry in results]), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) if value >= 0 else None for name, value in zip(FIGURES, evaluation.stats, strict=True)}

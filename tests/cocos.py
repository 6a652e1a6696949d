"""A made COCO folder: bright rectangles on dark photos, with every fault that real folders have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CATEGORIES = [{"id": 3, "name": "box"}, {"id": 7, "name": "bar"}]


def rectangle(left: float, top: float, width: float, height: float, category: int = 3, **more: Any) -> dict[str, Any]:
    corners = [left, top, left + width, top, left + width, top + height, left, top + height]
    entry = {"category_id": category, "bbox": [left, top, width, height], "area": width * height, "iscrowd": 0}
    return entry | {"segmentation": [corners]} | more


def write_coco(root: Path, parts: dict[str, list[list[dict[str, Any]]]], size: tuple[int, int] = (48, 64)) -> Path:
    """`parts` has, for each part, the objects of each photo; an object is painted where its box is."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for part, photos in parts.items():
        (root / part).mkdir(exist_ok=True)
        images, annotations = [], []
        for number, objects in enumerate(photos, 1):
            values = np.full((*size, 3), 30, np.uint8)
            for entry in objects:
                left, top, width, height = (round(value) for value in entry["bbox"])
                colour = (230, 60, 60) if entry["category_id"] == 3 else (60, 230, 60)
                values[top : top + height, left : left + width] = colour
                annotations.append(entry | {"id": len(annotations) + 1, "image_id": number})
            Image.fromarray(values).save(root / part / f"{number}.png")
            images.append({"id": number, "file_name": f"{number}.png", "height": size[0], "width": size[1]})
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return root

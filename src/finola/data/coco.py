"""COCO folders: photos in `train2017/` and `val2017/`, their objects in `annotations/instances_*.json`."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from finola.data.sources import Source, choose_parts, part_of, split_by_name
from finola.images import open_photo


class CocoSource(Source):
    """The photos that COCO annotation files list; `categories` has COCO's own numbers (1 … 90, with gaps)."""

    def __init__(self, root: Path, annotations: list[Path]) -> None:
        self.where, self.classes = str(root), {}
        self.categories = {}
        self._root = root
        self._photos: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._objects: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for file in annotations:
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                folder = _folder(root, file.stem.removeprefix("instances_"), content["images"])
                self._photos += content["images"]
                self._names += [f"{folder}{photo['file_name']}" for photo in content["images"]]
                self.categories = {**self.categories, **{entry["id"]: entry["name"] for entry in content["categories"]}}
                for entry in content["annotations"]:
                    _left, _top, _width, _height = entry["bbox"]
                    if entry["category_id"] not in self.categories:
                        raise ValueError(
                            f"an object of category {entry['category_id']}, which its categories do not have,"
                        )
                    self._objects[entry["image_id"]].append(entry)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{file} is not a COCO annotation file: {error!r} went wrong in it.") from error
        if not self._photos:
            raise ValueError(f"{root} lists no photos in {', '.join(file.name for file in annotations)}.")

    def __len__(self) -> int:
        return len(self._photos)

    def name(self, index: int) -> str:
        return self._names[index]

    def open(self, index: int) -> Image.Image:
        return open_photo(self._root / self._names[index])

    def target(self, index: int) -> dict[str, Any]:
        """The photo's K objects, in pixels of the photo as stored.

        `image_id` int, `size` (height, width), `boxes` (K, 4) as left, top, right, bottom, `categories` (K,) COCO
        category numbers, `area` (K,), `crowd` (K,) bool, `segmentation` K polygons or run lengths as COCO writes them.
        """
        photo = self._photos[index]
        objects = self._objects.get(photo["id"], [])
        boxes = torch.tensor([entry["bbox"] for entry in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        return {
            "image_id": photo["id"],
            "size": (photo["height"], photo["width"]),
            "boxes": boxes,
            "categories": torch.tensor([entry["category_id"] for entry in objects], dtype=torch.int64),
            "area": torch.tensor([entry.get("area", _area(entry)) for entry in objects], dtype=torch.float32),
            "crowd": torch.tensor([bool(entry.get("iscrowd", 0)) for entry in objects], dtype=torch.bool),
            "segmentation": [entry.get("segmentation", []) for entry in objects],
        }


def _area(entry: dict[str, Any]) -> float:
    return float(entry["bbox"][2] * entry["bbox"][3])


def _folder(root: Path, part: str, photos: list[dict[str, Any]]) -> str:
    """Where the photos of an annotation file lie: in the folder of its part, below `images`, or in either at large."""
    places = (f"{part}/", f"images/{part}/", "images/", "")
    return next((place for place in places if photos and (root / place / photos[0]["file_name"]).exists()), places[0])


def annotation_files(root: Path) -> dict[str, Path]:
    """The instance annotations of a COCO folder by split; empty when the folder is none."""
    files = sorted((root / "annotations").glob("instances_*.json"))
    return {part: file for file in files if (part := part_of(file.stem))}


def open_coco(root: Path, split: str) -> Source:
    """A COCO folder; the annotation file of the split says which photos belong to it."""
    files = annotation_files(root)
    chosen = choose_parts(files, split, str(root))
    source = CocoSource(root, [files[part] for part in chosen or files])
    return source if chosen else split_by_name(source, split)

"""COCO data sets: photos in `train2017/` and `val2017/`, objects in `annotations/instances_*.json`."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from finola.data.checks import check_name, read_json
from finola.data.segmentation import check_segmentation, is_number
from finola.data.sources import Source, choose_parts, part_of, split_by_name, stamps
from finola.errors import CorruptFileError, InputError, shorten
from finola.image_io import open_photo

MAX_SIDE = 2**16
MAX_PIXELS = 2**28
MAX_ID = 2**63 - 1


class _Photo(NamedTuple):
    id: int
    name: str
    size: tuple[int, int]  # height, width
    objects: list["_Object"]


class _Object(NamedTuple):
    box: list[float]  # left, top, width, height
    category: int
    area: float
    crowd: bool
    segmentation: list[Any] | dict[str, Any]


class CocoSource(Source):
    """Photos listed in COCO annotation files; `categories` has the category ids of COCO (1 … 90, with gaps).

    Ids, types, sizes and boxes are validated when the files are opened, and names of photos must be inside `root`.
    Polygons and run-length encodings are validated by `target`, per photo.
    """

    def __init__(self, root: Path, annotations: list[Path]) -> None:
        self.where, self.classes = str(root), {}
        self.categories: dict[int, str] = {}
        self._root = root
        self._photos: list[_Photo] = []
        self._by_id: dict[int, _Photo] = {}
        for file in annotations:
            content = read_json(file)
            try:
                self._add_categories(_entries(content, "categories"))
                self._add_photos(_entries(content, "images"), file.stem.removeprefix("instances_"))
                self._add_objects(_entries(content, "annotations"))
            except InputError as error:
                raise CorruptFileError(f"{file} is not a COCO annotation file: {error}") from error
        if not self._photos:
            raise InputError(f"No photos are listed in {', '.join(file.name for file in annotations)} of {root}.")

    def _add_categories(self, entries: list[dict[str, Any]]) -> None:
        for number, entry in enumerate(entries):
            where = f"categories[{number}]"
            key, name = _integer(entry, "id", where), _text(entry, "name", where)
            if self.categories.setdefault(key, name) != name:
                raise CorruptFileError(f"{where} ({name!r}) has id {key}, which {self.categories[key]!r} already has.")

    def _add_photos(self, entries: list[dict[str, Any]], part: str) -> None:
        names = [check_name(_text(entry, "file_name", f"images[{number}]")) for number, entry in enumerate(entries)]
        folder = _folder(self._root, part, names)
        for number, (entry, name) in enumerate(zip(entries, names, strict=True)):
            where = f"images[{number}]"
            size = (_integer(entry, "height", where, 1, MAX_SIDE), _integer(entry, "width", where, 1, MAX_SIDE))
            if size[0] * size[1] > MAX_PIXELS:
                raise CorruptFileError(f"{where} has {size[1]}x{size[0]} pixels; at most {MAX_PIXELS} are supported.")
            photo = _Photo(_integer(entry, "id", where), folder + name, size, [])
            if photo.id in self._by_id:
                raise CorruptFileError(f"{where} has id {photo.id}, which {self._by_id[photo.id].name} already has.")
            self._by_id[photo.id] = photo
            self._photos.append(photo)

    def _add_objects(self, entries: list[dict[str, Any]]) -> None:
        """Assign objects to their photos; objects of unlisted photos are ignored, as in pycocotools."""
        seen: set[int] = set()
        for number, entry in enumerate(entries):
            where = f"annotations[{number}]"
            if "id" in entry:
                key = _integer(entry, "id", where)
                if key in seen:
                    raise CorruptFileError(f"{where} has id {key}, which an earlier annotation already has.")
                seen.add(key)
            photo = self._by_id.get(_integer(entry, "image_id", where))
            found = _object(entry, where, self.categories, photo.size if photo else None)
            if photo:
                photo.objects.append(found)

    def __len__(self) -> int:
        return len(self._photos)

    def name(self, index: int) -> str:
        return self._photos[index].name

    def open(self, index: int) -> Image.Image:
        return open_photo(self._root / self.name(index))

    def extent(self) -> bytes:
        return stamps(self._root / photo.name for photo in self._photos)

    def target(self, index: int) -> dict[str, Any]:
        """Annotations of the K objects of a photo, in pixels of the photo as stored.

        `image_id` int, `size` (height, width), `boxes` (K, 4) as left, top, right, bottom, `categories` (K,) COCO
        category ids, `area` (K,), `crowd` (K,) bool, `segmentation` K polygons or run-length encodings of COCO.
        """
        photo = self._photos[index]
        try:
            for found in photo.objects:
                check_segmentation(found.segmentation, photo.size)
        except InputError as error:
            raise CorruptFileError(f"Invalid annotations of {photo.name}: {error}") from error
        boxes = torch.tensor([found.box for found in photo.objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        return {
            "image_id": photo.id,
            "size": photo.size,
            "boxes": boxes,
            "categories": torch.tensor([found.category for found in photo.objects], dtype=torch.int64),
            "area": torch.tensor([found.area for found in photo.objects], dtype=torch.float32),
            "crowd": torch.tensor([found.crowd for found in photo.objects], dtype=torch.bool),
            "segmentation": [found.segmentation for found in photo.objects],
        }


def _entries(content: Any, key: str) -> list[dict[str, Any]]:
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CorruptFileError(f"{key!r} is missing or not a list of objects.")
    return entries


def _integer(entry: dict[str, Any], key: str, where: str, low: int = -MAX_ID, high: int = MAX_ID) -> int:
    value = entry.get(key)
    if type(value) is not int or not low <= value <= high:
        raise CorruptFileError(f"{where} has {_found(entry, key)}; it must be an integer from {low} to {high}.")
    return value


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise CorruptFileError(f"{where} has {_found(entry, key)}; it must be a string.")
    return value


def _found(entry: dict[str, Any], key: str) -> str:
    return f"{key} {shorten(entry[key])}" if key in entry else f"no {key}"


def _object(entry: dict[str, Any], where: str, categories: dict[int, str], size: tuple[int, int] | None) -> _Object:
    category = _integer(entry, "category_id", where)
    if category not in categories:
        raise CorruptFileError(f"{where} has category_id {category}, which is not listed in categories.")
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(is_number(value) for value in box):
        raise CorruptFileError(f"{where} has {_found(entry, 'bbox')}; it must be a list of left, top, width, height.")
    for start, length, side in zip(box[:2], box[2:], reversed(size or (MAX_SIDE,) * 2), strict=True):
        # Boxes may extend beyond their photo by at most the size of the photo; comparisons with NaN are false.
        if not (0 <= length <= 3 * side and -side <= start <= 2 * side and start + length <= 2 * side):
            raise CorruptFileError(f"{where} has bbox {shorten(box)}, which is too far outside its photo.")
    area = entry.get("area", box[2] * box[3])
    if not is_number(area) or not 0 <= area <= 9 * MAX_PIXELS:
        raise CorruptFileError(f"{where} has area {shorten(area)}; it must be a number of pixels.")
    crowd = entry.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise CorruptFileError(f"{where} has iscrowd {shorten(crowd)}; it must be 0 or 1.")
    segmentation = entry.get("segmentation") or []
    if not isinstance(segmentation, list | dict):
        raise CorruptFileError(f"{where} has segmentation {shorten(segmentation)}; it must be polygons or run lengths.")
    return _Object(box, category, area, bool(crowd), segmentation)


def _folder(root: Path, part: str, names: list[str]) -> str:
    """Folder of the photos of an annotation file: `PART/`, `images/PART/`, `images/` or the root."""
    places = (f"{part}/", f"images/{part}/", "images/", "")
    return next((place for place in places if names and (root / place / names[0]).exists()), places[0])


def annotation_files(root: Path) -> dict[str, Path]:
    """Instance annotation files of a COCO folder by split; empty if it is not a COCO folder."""
    files = sorted((root / "annotations").glob("instances_*.json"))
    return {part: file for file in files if (part := part_of(file.stem))}


def open_coco(root: Path, split: str) -> Source:
    """Open a COCO folder; the annotation file of a split lists its photos."""
    files = annotation_files(root)
    chosen = choose_parts(files, split, str(root))
    source = CocoSource(root, [files[part] for part in chosen or files])
    return source if chosen else split_by_name(source, split)

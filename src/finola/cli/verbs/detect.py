"""finola detect and segment: draw the boxes or masks of objects in photos, and write results in COCO format."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import Photo, add_batch, add_model, add_photos, device_of, find_photos
from finola.cli.output import add_force, input_files, output_folder, print_json, print_line, print_table
from finola.cli.verbs import Verb
from finola.cli.verbs.photos import unique_names
from finola.config import show_size
from finola.errors import InputError, require
from finola.files import output_paths, write_json

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


def add_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    add_photos(parser)
    add_model(parser, help="folder of a trained model, or a hub id")
    parser.add_argument("-o", "--out", default=out, help="folder to write to (default: %(default)s)")
    parser.add_argument("--score", type=float, default=0.5, help="minimum score of objects (default: %(default)s)")
    add_batch(parser)
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace, masks: bool) -> int:
    """Detect or segment objects in all photos. Unreadable photos are reported, and the exit code is then 2."""

    if not 0 <= args.score <= 1:
        raise InputError(f"--score is {args.score}, but must be between 0 and 1.")
    photos = list(dict.fromkeys(find_photos(args.photos, args.limit)))
    out = output_folder(args.out)
    paths = {photo: out / f"{name}.png" for photo, name in unique_names(photos).items()}
    target = out / "objects.json"
    inputs = input_files([photo.name for photo in photos], models=[args.model])
    output_paths([*paths.values(), target], inputs, args.force, create=True)

    from finola.cli.loop import Loop
    from finola.evaluation.detection import detect_batch, fitted_image
    from finola.heads.mask_rcnn import Segmenter
    from finola.heads.visualisation import draw_detections
    from finola.image_io import pixels, save_photo, to_rgb
    from finola.model_zoo import load_detector

    model = load_detector(args.model).to(device_of(args))
    if masks and not isinstance(model, Segmenter):
        raise InputError(f"{args.model} is a detector without masks. Use finola detect, or train a segmenter.")
    rows: list[dict[str, Any]] = []
    categories: list[dict[str, Any]] = [{"id": number, "name": name} for number, name in enumerate(model.classes, 1)]
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
    numbers = {photo: number for number, photo in enumerate(photos, 1)}

    opened: dict[Photo, Image] = {}  # decoded photos of the current batch

    def read(photo: Photo) -> Tensor:
        opened[photo] = to_rgb(photo.open(), photo.name)
        return fitted_image(model, opened[photo], photo.name)

    loop = Loop(args, "detecting")
    for photo, image, found in loop.batches(photos, read, partial(detect_batch, model), args.batch):
        number, path, rgb = numbers[photo], paths[photo], opened.pop(photo)
        width, height = rgb.size
        found = found if masks else found._replace(masks=None)
        detections = found.above(args.score).resized((image.shape[1], image.shape[2]), (height, width))
        save_photo(draw_detections(pixels(rgb), detections, model.classes), path)
        content["images"].append({"id": number, "file_name": photo.name, "height": height, "width": width})
        for entry in detections.to_coco(number, [category["id"] for category in categories]):
            own = {"id": len(content["annotations"]) + 1, "iscrowd": 0, "area": _area(entry)}
            content["annotations"].append(entry | own)
        names = [model.classes[label] for label in detections.labels.tolist()]
        rows.append({"photo": photo.name, "size": show_size((height, width)), "objects": names})
    write_json(target, content, indent=None)
    if args.json:
        print_json(content)
        return loop.code
    body = [(r["photo"], r["size"], len(r["objects"]), tally(r["objects"])) for r in rows]
    print_table(str(args.model), ["photo", "size", "objects", "classes"], body)
    print_line(f"images and {target.name} written to {out}")
    return loop.code


def tally(names: list[str]) -> str:
    """Format names with their counts, most frequent first.

    >>> tally(["dog", "cat", "dog"])
    '2 dog, 1 cat'
    """
    from collections import Counter

    return ", ".join(f"{count} {name}" for name, count in Counter(names).most_common()) or "-"


def _area(entry: dict[str, Any]) -> float:
    if "segmentation" not in entry:
        return round(float(entry["bbox"][2] * entry["bbox"][3]), 3)
    require("pycocotools")
    from pycocotools import mask as coco_mask

    return float(coco_mask.area(entry["segmentation"]))


VERBS = {
    "detect": Verb(
        "detect objects in photos: images with boxes, and JSON in COCO format",
        partial(add_arguments, out="detected"),
        partial(run, masks=False),
    ),
    "segment": Verb(
        "segment objects in photos: images with masks and boxes, and JSON in COCO format",
        partial(add_arguments, out="segmented"),
        partial(run, masks=True),
    ),
}

"""finola detect: detect objects in photos, draw boxes, and write results in COCO format."""

from __future__ import annotations

import argparse
from typing import Any

from finola.cli.output import add_force
from finola.errors import InputError

HELP = "detect objects in photos: images with boxes, and JSON in COCO format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_detection_arguments(parser, "detected")


def add_detection_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("photos", nargs="+", help="files, folders, or skimage:NAME")
    parser.add_argument("-m", "--model", required=True, help="folder of a trained model, or a hub id")
    parser.add_argument("-o", "--out", default=out, help="folder to write to (default: %(default)s)")
    parser.add_argument("--score", type=float, default=0.5, help="minimum score of objects (default: %(default)s)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    return run_detection(args, masks=False)


def run_detection(args: argparse.Namespace, masks: bool) -> int:
    """Detect or segment objects in all photos. Unreadable photos are reported, and the exit code is then 2."""
    import json

    from finola.cli.output import (
        describe_error,
        input_files,
        is_bad_input,
        output_folder,
        print_error,
        print_json,
        print_table,
        progress,
    )
    from finola.cli.verbs.reconstruct import unique_names
    from finola.evaluation.detection import detect
    from finola.files import naming, output_paths, write_text
    from finola.heads.mask_rcnn import Segmenter
    from finola.heads.visualisation import draw_detections
    from finola.image_io import named_photos, open_photo, photo_name, pixels, save_photo, to_rgb
    from finola.model_zoo import load_detector

    if not 0 <= args.score <= 1:
        raise InputError(f"--score is {args.score}, but must be between 0 and 1.")
    photos = [photo for given in args.photos for photo in named_photos(given)]
    out = output_folder(args.out)
    paths, target = [out / f"{name}.png" for name in unique_names(photos)], out / "objects.json"
    inputs = input_files(map(str, photos), models=[args.model])
    output_paths([*paths, target], inputs, args.force, create=True)
    model = load_detector(args.model)
    if masks and not isinstance(model, Segmenter):
        raise InputError(f"{args.model} is a detector without masks. Use finola detect, or train a segmenter.")
    failed = 0
    rows: list[dict[str, Any]] = []
    categories: list[dict[str, Any]] = [{"id": number, "name": name} for number, name in enumerate(model.classes, 1)]
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
    work = zip(photos, paths, strict=True)
    quiet = args.json or len(photos) == 1
    for number, (photo, path) in enumerate(progress(work, len(photos), "detecting", quiet=quiet), 1):
        try:
            rgb = to_rgb(open_photo(photo), photo_name(photo))
            detections = detect(model, rgb, score=args.score, name=photo_name(photo))
        except Exception as error:  # any class, because libraries define their own; defects are re-raised
            if not is_bad_input(error):
                raise
            print_error(args.verb, describe_error(error))
            failed += 1
            continue
        detections = detections if masks else detections._replace(masks=None)
        width, height = rgb.size
        with naming(path):
            save_photo(draw_detections(pixels(rgb), detections, model.classes), path)
        content["images"].append({"id": number, "file_name": str(photo), "height": height, "width": width})
        for entry in detections.to_coco(number, [category["id"] for category in categories]):
            own = {"id": len(content["annotations"]) + 1, "iscrowd": 0, "area": _area(entry)}
            content["annotations"].append(entry | own)
        names = [model.classes[label] for label in detections.labels.tolist()]
        rows.append({"photo": str(photo), "written": str(path), "size": [height, width], "objects": names})
    write_text(target, json.dumps(content) + "\n")
    if args.json:
        print_json(content)
        return 2 if failed else 0
    body = [(r["photo"], "x".join(map(str, r["size"])), len(r["objects"]), tally(r["objects"])) for r in rows]
    print_table(str(args.model), ["photo", "size", "objects", "classes"], body)
    print(f"images and {target.name} written to {out}")
    return 2 if failed else 0


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
    from pycocotools import mask as coco_mask

    return float(coco_mask.area(entry["segmentation"]))

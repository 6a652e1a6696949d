"""finola evaluate: per-image reconstruction metrics with a contact sheet, classification accuracy, or COCO metrics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.output import add_force
from finola.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder

HELP = "evaluate a model: PSNR, SSIM and MS-SSIM per image, accuracy of a classifier, or AP of a detector"
METRICS = ("psnr", "ssim", "ms_ssim")
OBJECTS, ROWS = ("summary.json", "results.json"), ("summary.json", "images.csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="model folder, name or hub id")
    parser.add_argument("data", nargs="?", help="photos in any format that finola train reads (default: FINOLA_DATA)")
    parser.add_argument("--split", default="test", help="train, val, test or all (default: test, else val, else all)")
    parser.add_argument("--limit", type=int, help="maximum number of photos, evenly spread over the data")
    parser.add_argument("-o", "--out", help="folder for images.csv, summary.json and the contact sheet")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.evaluate_classification import evaluate_classes
    from finola.cli.evaluate_detection import evaluate_objects
    from finola.cli.output import input_files, output_folder, print_json, print_table, write_metrics
    from finola.data import Whole, open_data
    from finola.data.sources import evenly
    from finola.files import output_paths
    from finola.hub import model_type
    from finola.model_zoo import load

    kind = model_type(args.model)
    if args.out:
        written = {"detector": OBJECTS, "segmenter": OBJECTS, "classifier": ROWS}
        names = written.get(str(kind), (*ROWS, "contact-sheet.png"))
        inputs = input_files(data=[args.data], models=[args.model])
        output_paths([output_folder(args.out) / name for name in names], inputs, args.force, create=True)
        args.out = str(output_folder(args.out))
    evaluators = {"detector": evaluate_objects, "segmenter": evaluate_objects, "classifier": evaluate_classes}
    if kind in evaluators:
        evaluators[kind](args)
        return
    model = load(args.model)
    dataset = open_data(args.data, args.split, transform=Whole())
    dataset.source = evenly(dataset.source, args.limit)
    rows = evaluate(model, dataset, quiet=args.json)
    summary: dict[str, Any] = {"model": args.model, "name": str(model.config), "data": args.data, "split": args.split}
    summary["images"] = len(rows)
    for metric in METRICS:
        values = [row[metric] for row in rows if row[metric] is not None]
        summary[metric] = round(sum(values) / len(values), 4) if values else None
    summary["unreadable"] = [f"{name}: {reason}" for name, reason in dataset.unreadable]
    if args.out:
        write_metrics(Path(args.out), summary, rows)
        _contact_sheet(Path(args.out) / "contact-sheet.png", rows, model, dataset)
    if args.json:
        print_json(summary)
        return
    body = [
        (metric.upper().replace("_", "-"), "-" if summary[metric] is None else summary[metric]) for metric in METRICS
    ]
    print_table(f"{summary['name']} on {len(rows)} photos of {args.data or 'FINOLA_DATA'}", ["metric", "mean"], body)
    if report := dataset.report():
        print(report)
    if args.out:
        print(f"images.csv, summary.json and contact-sheet.png written to {args.out}")


def evaluate(model: Autoencoder, dataset: Any, quiet: bool = False) -> list[dict[str, Any]]:
    """Return one row per readable photo: index, name and metrics (None if the photo is too small)."""
    import torch

    from finola.cli.output import progress
    from finola.metrics import quality_metrics

    rows = []
    for index in progress(range(len(dataset)), len(dataset), "evaluating", quiet=quiet):
        item = dataset[(0, index)]
        if item.replaced:
            continue
        original = _floats(item.images)
        with torch.inference_mode():
            rebuilt = model(original)
        found = quality_metrics(rebuilt, original)[0]
        digits = {"psnr": 4, "ssim": 5, "ms_ssim": 5}
        rounded = {key: None if value is None else round(value, digits[key]) for key, value in found.items()}
        rows.append({"index": index, "name": dataset.name(index)} | rounded)
    if not rows:
        raise InputError(f"{dataset.source.where} has no readable photo.")
    return rows


def _floats(images: Tensor) -> Tensor:
    return images.reshape(-1, *images.shape[-3:]).float() / 255


def _contact_sheet(path: Path, rows: list[dict[str, Any]], model: Autoencoder, dataset: Any, columns: int = 3) -> None:
    """Save originals and reconstructions of the photos with best, median and worst PSNR, one line each."""
    import torch
    from PIL import Image, ImageDraw

    from finola.files import naming
    from finola.image_io import save_photo, to_pillow

    by_psnr = sorted(rows, key=lambda row: -row["psnr"])
    middle = max(0, len(by_psnr) // 2 - columns // 2)
    lines = {"best": by_psnr[:columns], "median": by_psnr[middle : middle + columns], "worst": by_psnr[-columns:]}
    side, caption = 224, 18
    sheet = Image.new("RGB", (columns * (2 * side + 12), len(lines) * (side + caption)), "white")
    for row_number, (word, chosen) in enumerate(lines.items()):
        for column, row in enumerate(chosen):
            original = _floats(dataset[(0, row["index"])].images)
            with torch.inference_mode():
                rebuilt = model(original)
            left, top = column * (2 * side + 12), row_number * (side + caption)
            ImageDraw.Draw(sheet).text(
                (left + 4, top + 2), f"{word}: {row['psnr']:.2f} dB  {row['name'][-40:]}", fill="black"
            )
            for number, image in enumerate((original, rebuilt)):
                picture = to_pillow(image[0])
                picture.thumbnail((side, side))
                sheet.paste(picture, (left + number * (side + 2), top + caption))
    pixels = torch.frombuffer(bytearray(sheet.tobytes()), dtype=torch.uint8).reshape(sheet.height, sheet.width, 3)
    with naming(path):
        save_photo(pixels.permute(2, 0, 1) / 255, path)

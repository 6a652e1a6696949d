"""finola evaluate: per-image reconstruction metrics with a contact sheet, classification accuracy, or COCO metrics."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import (
    add_batch,
    add_budget,
    add_data,
    add_effort,
    add_leading_model,
    add_whole_crop,
    budget_options,
    device_of,
    open_dataset,
    take_leading_model,
)
from finola.cli.loop import report_unreadable
from finola.cli.output import (
    add_force,
    input_files,
    output_folder,
    print_json,
    print_line,
    print_table,
    progress,
    write_metrics,
)
from finola.errors import InputError
from finola.files import output_paths
from finola.hub import model_type

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset
    from finola.heads import Classifier

HELP = "evaluate a model: PSNR, SSIM and MS-SSIM per image, accuracy of a classifier, or AP of a detector"
FILES = {
    "detector": ("summary.json", "results.json"),
    "segmenter": ("summary.json", "results.json"),
    "classifier": ("summary.json", "images.csv"),
}
"""Files written by type of model; an autoencoder's are those of a classifier and the contact sheet."""

MAX_MESSAGES = 5  # printed messages on excluded objects


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_leading_model(parser)
    add_data(parser, "test")
    add_whole_crop(parser)
    add_budget(parser)
    add_effort(parser)
    add_batch(parser)
    parser.add_argument("-o", "--out", help="folder for images.csv, summary.json and the contact sheet")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    take_leading_model(args)
    inputs = input_files(data=[args.data], models=[args.model])
    kind = model_type(args.model)
    if kind in FILES and (args.crop, args.budget, args.per_tile, args.effort) != (None, None, None, 0):
        raise InputError(f"{args.model} is a {kind}; --crop, --budget, --per-tile and --effort apply to autoencoders.")
    if args.out:
        names = FILES.get(str(kind), ("summary.json", "images.csv", "contact-sheet.png"))
        output_paths([output_folder(args.out) / name for name in names], inputs, args.force, create=True)
        args.out = str(output_folder(args.out))

    from finola.model_zoo import load, load_classifier

    if kind in ("detector", "segmenter"):
        return _evaluate_detector(args)
    if kind == "classifier":
        return _evaluate_classifier(args, load_classifier(args.model).to(device_of(args)))
    return _evaluate_autoencoder(args, load(args.model).to(device_of(args)))


def _evaluate_autoencoder(args: argparse.Namespace, model: Autoencoder) -> int:
    from finola.data import CentreCrop, Whole
    from finola.evaluation.reconstruction import METRICS, allocation, evaluate, summarise
    from finola.plotting.sheets import save_contact_sheet

    options = budget_options(args)
    dataset = open_dataset(args, CentreCrop(args.crop) if args.crop else Whole())

    def report(items: Iterable[int]) -> Iterable[int]:
        return progress(items, len(dataset), "evaluating")

    rows = evaluate(model, dataset, args.batch, report, **options)
    metrics = summarise(rows)
    kind, description = allocation(model, args.budget, args.per_tile)
    facts = {"config": str(model.config), "allocation": kind, **options} | ({"crop": args.crop} if args.crop else {})
    summary = _summary(args, facts, rows, metrics, dataset)
    if args.out:
        save_contact_sheet(Path(args.out) / "contact-sheet.png", rows, model, dataset, **options)
    versions = {"": "amortised q", "refined_": f"refined q, effort {args.effort}"} if args.effort else {"": "mean"}
    body: list[tuple[Any, ...]] = []
    for metric in METRICS:
        means = (metrics[f"{prefix}{metric}"] for prefix in versions)
        body.append((metric.upper().replace("_", "-"), *("-" if mean is None else mean for mean in means)))
    shown = f"{metrics['latents_per_256']:,.1f}"
    if metrics["side_per_256"]:
        shown += f", of which {metrics['side_per_256']:,.1f} are side information"
    notes = [f"Latents: {description}. Used per 256×256 pixels: {shown}."]
    if args.crop:
        notes.append(f"The short side of every photo was resized to {args.crop} pixels and the centre cropped.")
    files = "images.csv, summary.json and contact-sheet.png"
    _report(args, summary, ["metric", *versions.values()], body, files, notes)
    return report_unreadable(args.verb, dataset)


def _evaluate_classifier(args: argparse.Namespace, model: Classifier) -> int:
    from finola.data import CentreCrop
    from finola.evaluation.classification import accuracy, classify, shared_classes

    dataset = open_dataset(args, CentreCrop(model.image_size, model.crop_pct))
    shared = shared_classes(model, dataset)
    total = -(-len(dataset) // args.batch)
    rows = classify(model, dataset, args.batch, lambda items: progress(items, total, "evaluating"))
    by_class = {name: accuracy([row for row in rows if row["class"] == name]) for name in shared}
    found: dict[str, Any] = {"accuracy": accuracy(rows)}
    if len(model.classes) > 5:
        found["accuracy_5"] = accuracy(rows, 5)
    found |= {"by_class": by_class, "unknown_classes": sorted(set(dataset.class_names) - set(shared))}
    summary = _summary(args, {}, rows, found, dataset)
    body = [(name, _percent(share)) for name, share in by_class.items()]
    body.append(("all", _percent(summary["accuracy"])))
    if "accuracy_5" in summary:
        body.append(("all, top 5", _percent(summary["accuracy_5"])))
    _report(args, summary, ["class", "accuracy"], body, "summary.json and images.csv")
    return report_unreadable(args.verb, dataset)


def _evaluate_detector(args: argparse.Namespace) -> int:

    from finola.data.detection import Fit, ObjectDataset
    from finola.data.discovery import open_data
    from finola.data.sources import evenly
    from finola.evaluation.detection import METRICS, evaluate_detection
    from finola.files import write_json
    from finola.model_zoo import load_detector

    model = load_detector(args.model).to(device_of(args))
    source = evenly(open_data(args.data, args.split).source, args.limit)
    dataset = ObjectDataset(source, Fit(*model.size), classes=model.classes)
    if not any(category >= 0 for category in dataset.categories):
        raise InputError(f"{source.where} has none of the classes of {args.model}. Use data with matching class names.")
    indices = progress(range(len(dataset)), len(dataset), "evaluating")
    metrics = evaluate_detection(model, dataset, indices, args.batch)
    results = metrics.pop("results")
    summary: dict[str, Any] = {"model": args.model, "encoder": model.encoder_name, "head": model.head_name}
    summary |= {"data": args.data, "split": args.split} | metrics
    summary["unreadable"] = [f"{name}: {reason}" for name, reason in dataset.unreadable]
    summary["left_out"] = dataset.left_out()
    if args.out:
        out = Path(args.out)
        write_json(out / "summary.json", summary)
        write_json(out / "results.json", results, indent=None)
    code = report_unreadable(args.verb, dataset)
    if args.json:
        print_json(summary)
        return code
    kinds = [kind for kind in ("boxes", "masks") if kind in summary]
    body = [(name, *(_decimal(summary[kind][name]) for kind in kinds)) for name in METRICS]
    title = f"{args.model} on {summary['images']} photos of {args.data or 'FINOLA_DATA'}"
    print_table(title, ["metric", *kinds], body)
    for message in summary["left_out"][:MAX_MESSAGES]:
        print_line(message)
    if len(summary["left_out"]) > MAX_MESSAGES:
        print(f"… and {len(summary['left_out']) - MAX_MESSAGES} more photos with excluded objects; --json lists them.")
    if args.out:
        print_line(f"summary.json and results.json written to {args.out}")
    return code


def _summary(
    args: argparse.Namespace,
    names: dict[str, Any],
    rows: list[dict[str, Any]],
    found: dict[str, Any],
    dataset: PhotoDataset,
) -> dict[str, Any]:
    """Summarise an evaluation, and write it with its rows to the folder of -o."""
    summary: dict[str, Any] = {"model": args.model, **names, "data": args.data, "split": args.split}
    summary |= {"images": len(rows), **found}
    summary["unreadable"] = [f"{name}: {reason}" for name, reason in dataset.unreadable]
    if args.out:
        write_metrics(Path(args.out), summary, rows)
    return summary


def _report(
    args: argparse.Namespace,
    summary: dict[str, Any],
    columns: list[str],
    body: Sequence[tuple[Any, ...]],
    files: str,
    notes: Sequence[str] = (),
) -> None:
    if args.json:
        print_json(summary)
        return
    print_table(f"{args.model} on {summary['images']} photos of {args.data or 'FINOLA_DATA'}", columns, body)
    for note in notes:
        print_line(note)
    if summary.get("unknown_classes"):
        print_line(f"Excluded classes, unknown to the model: {', '.join(summary['unknown_classes'])}.")
    if args.out:
        print_line(f"{files} written to {args.out}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

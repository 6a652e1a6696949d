"""Evaluation of detectors and segmenters by COCO's twelve metrics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from finola.errors import InputError

MAX_MESSAGES = 5  # printed messages on excluded objects


def evaluate_objects(args: argparse.Namespace) -> None:
    import json

    from finola.cli.inputs import device_of
    from finola.cli.output import print_json, print_table, progress
    from finola.data.detection import Fit, ObjectDataset
    from finola.data.discovery import open_data
    from finola.data.sources import evenly
    from finola.evaluation.detection import METRICS, evaluate_detection
    from finola.files import write_text
    from finola.model_zoo import load_detector

    model = load_detector(args.model).to(device_of(args))
    source = evenly(open_data(args.data, args.split).source, args.limit)
    dataset = ObjectDataset(source, Fit(*model.size), classes=model.classes)
    if not any(category >= 0 for category in dataset.categories):
        raise InputError(f"{source.where} has none of the classes of {args.model}. Use data with matching class names.")
    metrics = evaluate_detection(model, dataset, progress(range(len(dataset)), len(dataset), "evaluating"))
    results = metrics.pop("results")
    summary: dict[str, Any] = {"model": args.model, "encoder": model.encoder_name, "head": model.head_name}
    summary |= {"data": args.data, "split": args.split} | metrics
    summary["unreadable"] = [f"{name}: {reason}" for name, reason in dataset.unreadable]
    summary["left_out"] = dataset.left_out()
    if args.out:
        out = Path(args.out)
        write_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
        write_text(out / "results.json", json.dumps(results) + "\n")
    if args.json:
        print_json(summary)
        return
    kinds = [kind for kind in ("boxes", "masks") if kind in summary]
    body = [(name, *(_format(summary[kind][name]) for kind in kinds)) for name in METRICS]
    title = f"{args.model} on {summary['images']} photos of {args.data or 'FINOLA_DATA'}"
    print_table(title, ["metric", *kinds], body)
    for message in filter(None, (dataset.report(), *summary["left_out"][:MAX_MESSAGES])):
        print(message)
    if len(summary["left_out"]) > MAX_MESSAGES:
        print(f"… and {len(summary['left_out']) - MAX_MESSAGES} more photos with excluded objects; --json lists them.")
    if args.out:
        print(f"summary.json and results.json written to {args.out}")


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

"""Evaluation of classifiers by accuracy, overall and per class."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from finola.errors import InputError


def evaluate_classes(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json, print_table, write_metrics
    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly
    from finola.model_zoo import load_classifier

    model = load_classifier(args.model)
    dataset = open_data(args.data, args.split, transform=CentreCrop(model.image_size))
    shared = [name for name in dataset.class_names if name in model.classes]
    if not shared:
        raise InputError(
            f"{dataset.source.where} has none of the classes of {args.model} ({', '.join(model.classes[:5])}, …). "
            "Use data with matching class names."
        )
    dataset.source = evenly(dataset.source, args.limit)
    rows = classify_photos(model, dataset, quiet=args.json)
    summary: dict[str, Any] = {"model": args.model, "data": args.data, "split": args.split, "images": len(rows)}
    summary["accuracy"] = _accuracy(rows, 1)
    if len(model.classes) > 5:
        summary["accuracy_5"] = _accuracy(rows, 5)
    summary["by_class"] = {name: _accuracy([row for row in rows if row["class"] == name], 1) for name in shared}
    summary["unknown_classes"] = sorted(set(dataset.class_names) - set(shared))
    summary["unreadable"] = [f"{name}: {reason}" for name, reason in dataset.unreadable]
    if args.out:
        write_metrics(Path(args.out), summary, rows)
    if args.json:
        print_json(summary)
        return
    body = [(name, _percent(share)) for name, share in summary["by_class"].items()]
    body.append(("all", _percent(summary["accuracy"])))
    if "accuracy_5" in summary:
        body.append(("all, top 5", _percent(summary["accuracy_5"])))
    print_table(f"{args.model} on {len(rows)} photos of {args.data or 'FINOLA_DATA'}", ["class", "accuracy"], body)
    if summary["unknown_classes"]:
        print(f"Excluded classes, unknown to the model: {', '.join(summary['unknown_classes'])}.")
    if report := dataset.report():
        print(report)
    if args.out:
        print(f"summary.json and images.csv written to {args.out}")


def classify_photos(model: Any, dataset: Any, quiet: bool = False) -> list[dict[str, Any]]:
    """Return one row per readable photo of a known class: true class, predicted class, and rank of the true class."""
    import torch

    from finola.cli.output import progress
    from finola.data import make_loader
    from finola.heads import ranks

    loader = make_loader(dataset, 64, shuffle=False)
    number = {name: index for index, name in enumerate(model.classes)}
    own = torch.tensor([number.get(name, -1) for name in dataset.class_names])
    if dataset.class_names == model.classes:  # class names may be ambiguous
        own = torch.arange(len(model.classes))
    rows = []
    for batch in progress(loader, len(loader), "evaluating", quiet=quiet):
        labels = torch.where(batch.labels >= 0, own[batch.labels.clamp_min(0)], -1)
        known = (labels >= 0) & ~batch.replaced
        if not known.any():
            continue
        with torch.inference_mode():
            probabilities = model(batch.images[known]).softmax(1)
        label_ranks = ranks(probabilities, labels[known])
        for index, label, best, rank in zip(
            batch.indices[known], labels[known], probabilities.argmax(1), label_ranks, strict=True
        ):
            named = {"name": dataset.name(int(index)), "class": model.classes[int(label)]}
            rows.append(named | {"found": model.classes[int(best)], "rank": 1 + int(rank)})
    if not rows:
        raise InputError(f"{dataset.source.where} has no readable photo of a known class.")
    return rows


def _accuracy(rows: list[dict[str, Any]], first: int) -> float | None:
    return round(sum(row["rank"] <= first for row in rows) / len(rows), 4) if rows else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"

"""What finola evaluate does with a classifier: how many photos it names rightly, in all and by class."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def evaluate_classes(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json, print_table, write_figures
    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly
    from finola.zoo import load_classifier

    model = load_classifier(args.model)
    dataset = open_data(args.data, args.split, transform=CentreCrop(model.image_size))
    shared = [name for name in dataset.class_names if name in model.classes]
    if not shared:
        raise ValueError(
            f"{dataset.source.where} has none of the classes of {args.model} ({', '.join(model.classes[:5])}, …), so "
            "there is nothing to measure."
        )
    dataset.source = evenly(dataset.source, args.limit)
    rows = name_photos(model, dataset, quiet=args.json)
    summary: dict[str, Any] = {"model": args.model, "data": args.data, "split": args.split, "images": len(rows)}
    summary["accuracy"] = _share(rows, 1)
    if len(model.classes) > 5:
        summary["accuracy_5"] = _share(rows, 5)
    summary["by_class"] = {name: _share([row for row in rows if row["class"] == name], 1) for name in shared}
    summary["unknown_classes"] = sorted(set(dataset.class_names) - set(shared))
    summary["unreadable"] = [f"{name}: {reason}" for name, reason in dataset.unreadable]
    if args.out:
        write_figures(Path(args.out), summary, rows)
    if args.json:
        print_json(summary)
        return
    body = [(name, _percent(share)) for name, share in summary["by_class"].items()]
    body.append(("all", _percent(summary["accuracy"])))
    if "accuracy_5" in summary:
        body.append(("all, among the first five", _percent(summary["accuracy_5"])))
    print_table(f"{args.model} on {len(rows)} photos of {args.data or 'FINOLA_DATA'}", ["class", "right"], body)
    if summary["unknown_classes"]:
        print(f"Left out, unknown to the model: {', '.join(summary['unknown_classes'])}.")
    if report := dataset.report():
        print(report)
    if args.out:
        print(f"summary.json and images.csv written to {args.out}")


def name_photos(model: Any, dataset: Any, quiet: bool = False) -> list[dict[str, Any]]:
    """One row per readable photo of a known class: that class, the likeliest one, and the rank of the right one."""
    import torch

    from finola.cli.output import progress
    from finola.data import make_loader
    from finola.heads import ranks

    loader = make_loader(dataset, 64, shuffle=False)
    number = {name: index for index, name in enumerate(model.classes)}
    own = torch.tensor([number.get(name, -1) for name in dataset.class_names])
    if dataset.class_names == model.classes:  # two classes may have one name
        own = torch.arange(len(model.classes))
    rows = []
    for batch in progress(loader, len(loader), "evaluating", quiet=quiet):
        labels = torch.where(batch.labels >= 0, own[batch.labels.clamp_min(0)], -1)
        known = (labels >= 0) & ~batch.replaced
        if not known.any():
            continue
        with torch.inference_mode():
            shares = model(batch.images[known]).softmax(1)
        places = ranks(shares, labels[known])
        for index, label, best, place in zip(
            batch.indices[known], labels[known], shares.argmax(1), places, strict=True
        ):
            named = {"name": dataset.name(int(index)), "class": model.classes[int(label)]}
            rows.append(named | {"found": model.classes[int(best)], "rank": 1 + int(place)})
    if not rows:
        raise ValueError("not one photo of a known class could be read, so there is nothing to measure.")
    return rows


def _share(rows: list[dict[str, Any]], first: int) -> float | None:
    return round(sum(row["rank"] <= first for row in rows) / len(rows), 4) if rows else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"

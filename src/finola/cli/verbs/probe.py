"""finola probe: accuracy of k-NN and trained heads on the cached features of a frozen encoder."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import add_leading_model, add_limit, device_of, positive, take_leading_model
from finola.cli.loop import report_unreadable
from finola.cli.output import input_files, print_json, print_table, progress
from finola.config import HEADS

if TYPE_CHECKING:
    from finola.data import PhotoDataset

HELP = "probe a frozen encoder with labelled photos: k-NN, lin, tran-1"
PROBES = ("knn", *HEADS["classify"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "trained model (folder, name, hub id), or a randomly initialised encoder such as mf-w720"
    add_leading_model(parser, text)
    text = "labelled photos: class folders or Parquet, or a name in FINOLA_DATA (default: FINOLA_DATA itself)"
    parser.add_argument("data", nargs="?", metavar="DATA", help=text)
    text = "knn, lin, tran-1, tran-4 (default: knn lin)"
    parser.add_argument("--probes", nargs="+", choices=PROBES, default=["knn", "lin"], metavar="PROBE", help=text)
    parser.add_argument("--size", type=positive, default=128, help="side of the centre crop in pixels (default: 128)")
    parser.add_argument("--neighbours", type=positive, default=20, help="k of k-NN (default: 20)")
    text = "training epochs of the heads (default: those of the recipes probe/…-w720-128)"
    parser.add_argument("--epochs", type=positive, help=text)
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    add_limit(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    take_leading_model(args)
    input_files(data=[args.data])  # raises if there is no such data

    import torch

    from finola.evaluation.probing import accuracy, extract, head_recipe, knn, train_head
    from finola.model_zoo import load_encoder

    torch.manual_seed(args.seed)  # for randomly initialised encoders
    encoder = load_encoder(args.model, (args.size, args.size)).to(device_of(args))
    opened: list[PhotoDataset] = []

    def encoding(loader: Any, total: int, what: str) -> Iterable[Any]:
        opened.append(loader.dataset)
        return progress(loader, total, what)

    reading = {"size": args.size, "limit": args.limit, "progress": encoding}
    train = extract(encoder, args.data, "train", mirrored=True, **reading)
    val = extract(encoder, args.data, "val", like="train", **reading)
    found = {}
    for probe in args.probes:
        if probe == "knn":
            found[probe] = knn(train, val, args.neighbours)
        else:
            recipe = head_recipe(probe, epochs=args.epochs, seed=args.seed)
            found[probe] = accuracy(train_head(recipe, train, progress), val)
    if args.json:
        counts = {"train": len(train.labels), "val": len(val.labels), "classes": len(train.classes)}
        print_json({"model": args.model, "data": args.data, **counts, "accuracy": found})
        return report_unreadable(args.verb, *opened)
    rows = [(probe, f"{100 * value:.1f} %") for probe, value in found.items()]
    title = f"{args.model}, frozen: {len(train.classes)} classes, {len(val.labels)} photos"
    print_table(title, ["probe", "accuracy"], rows)
    return report_unreadable(args.verb, *opened)

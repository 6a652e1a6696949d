"""finola probe: accuracy of k-NN and trained heads on the cached features of a frozen encoder."""

from __future__ import annotations

import argparse

from finola.errors import InputError, UnknownNameError

HELP = "probe a frozen encoder with labelled photos: k-NN, lin, tran-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "encoder", help="trained model (folder, name, hub id), or a randomly initialised encoder such as mf-w720"
    )
    parser.add_argument("data", nargs="?", help="labelled photos: class folders or parquet (default: FINOLA_DATA)")
    parser.add_argument(
        "--probes", nargs="+", default=["knn", "lin"], help="knn, lin, tran-1, tran-4 (default: knn lin)"
    )
    parser.add_argument("--size", type=int, default=128, help="side of the centre crop in pixels (default: 128)")
    parser.add_argument("--neighbours", type=int, default=20, help="k of k-NN (default: 20)")
    parser.add_argument(
        "--epochs", type=int, help="training epochs of the heads (default: those of the recipes probe/…-w720-128)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--limit", type=int, help="maximum number of photos per split")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from functools import partial

    import torch

    from finola.cli.output import print_json, print_table, progress
    from finola.config import nearest
    from finola.evaluation.probing import PROBES, accuracy, extract, head_recipe, knn, train_head
    from finola.model_zoo import load_encoder

    for probe in args.probes:
        if probe not in PROBES:
            raise UnknownNameError(f"Unknown probe {probe!r}: {nearest(probe, PROBES)}")
    for name, number in (("--neighbours", args.neighbours), ("--epochs", args.epochs)):
        if number is not None and number < 1:
            raise InputError(f"{name} is {number}, but must be at least 1.")
    bar = partial(progress, quiet=args.json)
    torch.manual_seed(args.seed)  # for randomly initialised encoders
    encoder = load_encoder(args.encoder, (args.size, args.size))
    reading = {"size": args.size, "limit": args.limit, "progress": bar}
    train = extract(encoder, args.data, "train", mirrored=True, **reading)
    val = extract(encoder, args.data, "val", like="train", **reading)
    found = {}
    for probe in args.probes:
        if probe == "knn":
            found[probe] = knn(train, val, args.neighbours)
        else:
            recipe = head_recipe(probe, epochs=args.epochs, seed=args.seed)
            found[probe] = accuracy(train_head(recipe, train, bar), val)
    if args.json:
        counts = {"train": len(train.labels), "val": len(val.labels), "classes": len(train.classes)}
        print_json({"encoder": args.encoder, "data": args.data, **counts, "accuracy": found})
        return
    rows = [(probe, f"{100 * value:.1f} %") for probe, value in found.items()]
    print_table(
        f"{args.encoder}, frozen: {len(train.classes)} classes, {len(val.labels)} photos", ["probe", "accuracy"], rows
    )

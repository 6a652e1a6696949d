"""finola embed: q of every photo of a data set as Parquet files, by worker processes or on a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import add_budget, add_data, add_model, integer, positive
from finola.cli.loop import report_failures
from finola.cli.output import add_force, print_error, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from finola.batch import Summary

HELP = "embed a data set: q of every photo, and features of the encoder, as Parquet files"
SHOWN = 5  # unreadable photos that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "all")
    add_model(parser, "photo256")
    parser.add_argument("-o", "--out", required=True, help="folder or fsspec URL; a run that is there is resumed")
    size = parser.add_mutually_exclusive_group()
    text = (
        "side to which photos are resized and cropped, a multiple of the tiles (default: the image size of the model)"
    )
    size.add_argument("--crop", type=positive, metavar="SIDE", help=text)
    text = "keep the size of every photo and cut it into tiles (default for elastic models)"
    size.add_argument("--whole", action="store_true", help=text)
    add_budget(parser)
    text = "add the feature map of the encoder, or its mean over all positions"
    parser.add_argument("--features", choices=("pooled", "map"), help=text)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="default: %(default)s")
    text = "photos, or tiles of a photo, encoded together (default: %(default)s); halved when memory runs out"
    parser.add_argument("--batch", type=positive, default=32, metavar="N", help=text)
    add_engine(parser)
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add --shard-size, --workers and --engine, which `run_batch` reads."""
    text = "photos per output file (default: 1000)"
    parser.add_argument("--shard-size", type=positive, metavar="N", help=text)
    text = "number of processes (default: 1, and one per CPU with --engine ray)"
    parser.add_argument("--workers", type=integer(1), metavar="N", help=text)
    text = "worker processes on this machine, or tasks on the Ray cluster that RAY_ADDRESS names (default: local)"
    parser.add_argument("--engine", choices=("local", "ray"), help=text)


def run(args: argparse.Namespace) -> int:
    from finola.errors import require

    require("pyarrow")
    if args.engine == "ray":
        require("ray")
    from finola.batch import embed

    names = ("model", "split", "limit", "crop", "whole", "budget", "per_tile", "features", "dtype", "batch", "device")
    return run_batch(args, embed, {name: getattr(args, name) for name in names}, "embedding")


def run_batch(args: argparse.Namespace, function: Callable[..., Summary], options: dict[str, Any], what: str) -> int:
    """Call a function of `finola.batch`, with progress, and print its summary."""
    options |= {"workers": args.workers, "force": args.force}
    options |= {name: value for name in ("shard_size", "engine") if (value := getattr(args, name)) is not None}
    try:
        with progress_bar(what) as report:
            found = function(
                args.data, args.out, progress=report, say=lambda text: print_error(args.verb, text), **options
            )
    except KeyboardInterrupt as error:
        text = "interrupted; finished shards are kept, and the same command continues the run."
        raise type(error)(text) from None
    return _report(args, found)


def _report(args: argparse.Namespace, found: Summary) -> int:
    unreadable = [f"{error.id}: {error.reason}" for error in found.errors]
    messages = unreadable[:SHOWN]
    if unreadable:
        messages.append(f"{len(unreadable)} of {found.photos} photos have no row; _errors.jsonl lists them.")
    if found.problems:  # each has been printed when the run started
        messages.append(f"{len(found.problems)} problems with the data; _errors.jsonl lists them.")
    code = report_failures(args.verb, messages)
    if args.json:
        facts = {name: getattr(found, name) for name in ("rows", "shards", "skipped", "bytes", "problems")}
        print_json({"written": found.out, "images": found.photos, **facts, "unreadable": unreadable})
        return code
    rows = [("photos", f"{found.photos:,}"), ("rows", f"{found.rows:,}"), ("unreadable photos", f"{len(unreadable):,}")]
    rows += [("shards", f"{found.shards:,}"), ("of these finished before", f"{found.skipped:,}")]
    print_table(found.out, ["", "number"], [*rows, ("bytes", f"{found.bytes:,}")])
    return code

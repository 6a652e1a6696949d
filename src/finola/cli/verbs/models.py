"""finola models: list the models of the paper with parameters and multiply–adds."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "list models with parameters and multiply-adds of each stage"
STAGES = ("encoder", "pooling", "propagation", "decoder")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", help="model names (default: all bundled models and those of the paper)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json, print_table, progress
    from finola.zoo import PAPER, bundled_classifiers, bundled_names

    bundled = {"trained, in the package": bundled_names()} if bundled_names() else {}
    groups = {"named": args.name} if args.name else bundled | PAPER
    total = sum(map(len, groups.values()))
    pairs = ((group, name) for group, names in groups.items() for name in names)
    rows = [_row(group, name) for group, name in progress(pairs, total, "counting", quiet=args.json)]
    if args.json:
        print_json(rows)
        return
    for group in groups:
        body = [_cells(row) for row in rows if row["group"] == group]
        print_table(group, ["name", "latent", "encode", "pool", "grow", "decode", "all"], body)
    print("Upper line: parameters. Lower line: multiply-adds per image.")
    if not args.name and bundled_classifiers():
        print(f"Bundled classifiers for finola classify: {', '.join(bundled_classifiers())}.")


def _row(group: str, name: str) -> dict[str, Any]:
    from finola.config import ModelConfig
    from finola.zoo import count, full_name

    config, counted = ModelConfig.parse(full_name(name)), count(full_name(name))
    row: dict[str, Any] = {"group": group, "name": name, "latent": config.channels * config.paths}
    for key in ("parameters", "multiply_adds"):
        row[key] = {station: getattr(counted[station], key) for station in STAGES}
        row[key]["all"] = sum(row[key].values())
    row["parameters_per_matrix"] = config.channels**2
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["name"], f"{row['latent']:,}"]
    for station in (*STAGES, "all"):
        cells.append(f"{short(row['parameters'][station])}\n{short(row['multiply_adds'][station])}")
    return cells


def short(number: int) -> str:
    """Format a number with a unit prefix: 1234567 → 1.23M.

    >>> short(268_435_456), short(0)
    ('268M', '0')
    """
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return str(number)

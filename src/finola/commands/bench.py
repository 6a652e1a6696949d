"""finola bench: speed and memory, measured here and now."""

from __future__ import annotations

import argparse

HELP = "measure speed and memory on this machine"
SUBJECTS = {"train": "images/s, FLOPs, the cost of loading photos, and memory against the map's area"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", choices=list(SUBJECTS), help="; ".join(f"{k}: {v}" for k, v in SUBJECTS.items()))
    parser.add_argument("recipe", nargs="?", default="smoke", metavar="RECIPE", help="what to train (default: smoke)")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings to change, as in data.batch_size=32"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.bench.training import bench_training
    from finola.commands._output import print_json, print_table
    from finola.training.reading import load_recipe

    result = bench_training(load_recipe(args.recipe, args.overrides))
    if args.json:
        print_json(result)
        return
    loading, memory = result["loading"], result["memory"]
    rows = [
        ("images/s", f"{result['images_per_second']:.1f}"),
        ("images/s with loading", f"{result['images_per_second_with_loading']:.1f}"),
        ("FLOPs of an image's step", f"{result['flops_per_image'] / 1e9:.3f} G"),
        ("GEMM on this machine", f"{result['gemm_flops_per_second'] / 1e9:.1f} GFLOP/s"),
        ("share of GEMM reached", f"{result['share_of_gemm']:.1%}"),
        (f"loading, share of a step ({loading['workers']} workers)", f"{loading['share']:.1%}"),
        ("waiting for photos, share of a step", f"{loading['wait_share']:.1%}"),
        *(_memory_row(row) for row in memory["bytes_per_image"]),
        (
            "linear in the map's area, R²: step, propagation",
            " ".join(f"{v['r_squared']:.5f}" for v in memory["lines"].values()),
        ),
    ]
    print_table(f"{result['model']}, batch {result['images_per_step']}, {result['threads']} threads", ["", ""], rows)


def _memory_row(row: dict[str, int]) -> tuple[str, str]:
    sizes = " ".join(f"{row[what] / 2**20:.2f} MiB" for what in ("step", "propagation"))
    return f"memory of an image, map {row['map']}x{row['map']}: step, propagation", sizes

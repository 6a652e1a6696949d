"""finola plan: FLOPs, bytes, hours and memory of a training run, before it is started."""

from __future__ import annotations

import argparse

HELP = "estimate FLOPs, hours and memory of a training run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe of any task but detection: a name or a file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings to override")
    parser.add_argument("--images", type=int, required=True, metavar="N", help="number of photos of the data set")
    parser.add_argument("--device", default="v100", help="v100, a100, h100 or cpu (one core)")
    parser.add_argument("--count", type=int, default=1, metavar="K", help="number of devices")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from finola.cli.output import print_json, print_table
    from finola.paper.cost import plan
    from finola.recipes.loading import load_recipe

    found = plan(load_recipe(args.recipe, args.overrides), args.images, args.device, args.count)
    if args.json:
        print_json(asdict(found))
        return 0
    memory = []
    if found.device_memory is not None:
        words = "yes" if found.fits else "only with FSDP" if found.sharded_fits else "no"
        memory = [(f"fits into {found.device_memory / 1e9:.0f} GB, without activations", words)]
    rows = [
        ("images, all epochs", f"{found.images:.3g}"),
        ("FLOPs per image, forward and backward", f"{found.flops_per_image:.3g}"),
        ("FLOPs", f"{found.flops:.3g}"),
        ("bytes read", f"{found.bytes_read:.3g}"),
        ("weights, gradients, optimiser per device, GB", f"{found.state_bytes / 1e9:.2f}"),
        ("the same with FSDP, GB", f"{found.sharded_state_bytes / 1e9:.2f}"),
        *memory,
        ("precision", found.precision),
        ("hours", f"{found.hours:.4g}"),
        ("device-days", f"{found.device_days:.4g}"),
    ]
    if found.time_limit is not None:
        rows.append(("time limit of the recipe, hours", f"{found.time_limit:.4g}"))
    print_table(f"{found.model} on {found.count} × {found.device}", ["", "estimate"], rows)
    return 0

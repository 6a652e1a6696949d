"""finola bench: speed and memory, measured here and now."""

from __future__ import annotations

import argparse
from typing import Any

from finola.config import DEFAULT_CODEC

HELP = "measure speed and memory on this machine"
SUBJECTS = {
    "propagation": "the recurrence as a share of the machine's matrix products, forward and backward",
    "reconstruct": "a whole reconstruction, station by station",
    "codec": "a photo's way into a .finola file and back",
    "train": "images/s, FLOPs, the cost of loading photos, and memory against the map's area",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", choices=list(SUBJECTS), help="; ".join(f"{k}: {v}" for k, v in SUBJECTS.items()))
    parser.add_argument(
        "what", nargs="?", metavar="RECIPE|MODEL", help="what to train (default: smoke) or to reconstruct with"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings of the recipe to change, as in data.batch_size=32"
    )
    parser.add_argument("--quick", action="store_true", help="leave out slow peers")
    parser.add_argument("--compile", action="store_true", help="reconstruct: add model.compile(), and its warm-up")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json

    if args.subject != "train" and args.overrides:
        raise ValueError(f"{args.overrides[0]!r} changes a recipe, and bench {args.subject} has none.")
    for option, given, subjects in (
        ("a recipe or model", args.what, ("train", "reconstruct", "codec")),
        ("--quick", args.quick, ("propagation", "reconstruct", "codec")),
        ("--compile", args.compile, ("reconstruct",)),
    ):
        if given and args.subject not in subjects:
            raise ValueError(f"bench {args.subject} takes no {option.removeprefix('a ')}.")
    if args.subject == "propagation":
        from finola.bench.propagation import bench_propagation

        result = bench_propagation(quick=args.quick)
    elif args.subject == "reconstruct":
        from finola.bench.reconstruction import bench_reconstruction

        result = bench_reconstruction(args.what or "mf-w2880/3072x1@64", quick=args.quick, compiled=args.compile)
    elif args.subject == "codec":
        from finola.bench.codec import bench_codec

        result = bench_codec(args.what or DEFAULT_CODEC, quick=args.quick)
    else:
        from finola.bench.training import bench_training
        from finola.training.loading import load_recipe

        result = bench_training(load_recipe(args.what or "smoke", args.overrides))
    if args.json:
        print_json(result)
    else:
        show = {"propagation": _show_propagation, "reconstruct": _show_reconstruction, "codec": _show_codec}
        show.get(args.subject, _show_training)(result)


def _show_propagation(result: dict[str, Any]) -> None:
    from finola.cli.output import print_table

    rows = [
        (r["case"], f"{1e3 * r['seconds']:.1f} ms", f"{r['gemm_gflops']:.0f}", f"{r['share_of_gemm']:.2f}", r["bar"])
        for r in result["rows"]
    ]
    print_table(f"{result['threads']} threads", ["propagation", "time", "GEMM, GFLOP/s", "share", "bar"], rows)
    for memory in result["training_memory"]:
        print(f"memory over plain autograd's, {memory['case']}: {memory['ratio']:.2f} (bar {memory['bar']})")
    for row in result.get("over_sequential", []):
        print(
            f"C = 3072 at {row['side']}x{row['side']}: {row['ratio']:.1f} times as fast as position by position "
            f"(bar {row['bar']}, the paper {row['paper']})"
        )
    startup = result["startup"]
    print(f"finola --help takes {startup['help_seconds']:.2f} s; import finola adds {startup['import_seconds']:.2f} s")
    exponents = ", ".join(f"{name}^{value:.2f}" for name, value in result["exponents"].items())
    print(f"time grows as {exponents}")


def _show_reconstruction(result: dict[str, Any]) -> None:
    from finola.cli.output import print_table

    stations = dict(result["stations"])
    rate = stations.pop("GEMM")["gflop_per_second"]
    rows = [
        (
            name,
            f"{1e3 * r['seconds']:.1f} ms",
            f"{r['peak_bytes'] / 2**20:.0f} MiB",
            f"{r['gflop']:.1f}" if "gflop" in r else "",
            f"{r['share_of_gemm']:.2f}" if "gflop" in r else "",
        )
        for name, r in stations.items()
    ]
    title = f"{result['model']}, one image, {result['threads']} threads, GEMM {rate:.0f} GFLOP/s"
    print_table(title, ["", "time", "memory", "GFLOP", "share of GEMM"], rows)
    if "peer" in result:
        print(f"peer: {result['peer']}")
    if "time_over_peer" in result:
        print(f"its time is {result['time_over_peer']:.2f} of the peer's")
    if "compile_warm_up_seconds" in result:
        print(f"the first call of the compiled model took {result['compile_warm_up_seconds']:.1f} s")


def _show_codec(result: dict[str, Any]) -> None:
    from finola.cli.output import print_table

    rows = [
        (name, f"{1e3 * r['seconds']:.0f} ms", f"{r['peak_bytes'] / 2**20:.0f} MiB", f"{r['gemm_products']:.0f}")
        for name, r in result["stations"].items()
    ]
    title = f"{result['model']}, {result['width']}x{result['height']} pixels, {result['bpp']:.2f} bits per pixel"
    print_table(title, ["", "time", "memory", "in GEMMs of 512x512x512"], rows)
    efforts = [
        (str(r["effort"]), f"{r['bpp']:.3f}", f"{r['psnr']:.2f}", f"{r['seconds']:.2f}")
        for r in result.get("effort", [])
    ]
    if efforts:
        print_table("scikit-image's photos at one rate", ["effort", "bpp", "PSNR, dB", "seconds a photo"], efforts)


def _show_training(result: dict[str, Any]) -> None:
    from finola.cli.output import print_table

    loading, memory, bounds = result["loading"], result["memory"], result["bounds"]
    rows = [
        ("images/s", f"{result['images_per_second']:.1f}"),
        ("images/s with loading", f"{result['images_per_second_with_loading']:.1f}"),
        ("FLOPs of an image's step", f"{result['flops_per_image'] / 1e9:.3f} G"),
        ("GEMM on this machine", f"{result['gemm_flops_per_second'] / 1e9:.1f} GFLOP/s"),
        ("share of GEMM reached", f"{result['share_of_gemm']:.1%}"),
        (f"loading, share of a step ({loading['workers']} workers)", f"{loading['share']:.1%}"),
        ("waiting for photos, share of a step", f"{loading['wait_share']:.1%}"),
        ("memory on this machine", f"{bounds['bytes_per_second'] / 1e9:.1f} GB/s"),
        ("share of the roofline reached", f"{bounds['share_of_roofline']:.1%}"),
        ("of the roofline, bound by memory", f"{bounds['memory_bound_share']:.1%}"),
    ]
    if memory:
        squares = " ".join(f"{v['r_squared']:.5f}" for v in memory["lines"].values())
        rows += [_memory_row(row) for row in memory["bytes_per_image"]]
        rows += [("linear in the map's area, R²: step, propagation", squares)]
    print_table(f"{result['model']}, batch {result['images_per_step']}, {result['threads']} threads", ["", ""], rows)
    kinds = [
        (kind, f"{1e3 * r['seconds']:.1f} ms", f"{r['gflop']:.2f}", f"{r['megabytes']:.0f}")
        for kind, r in bounds["kinds"].items()
    ]
    print_table("what a step needs at least", ["operation", "least time", "GFLOP", "MB moved"], kinds)


def _memory_row(row: dict[str, int]) -> tuple[str, str]:
    sizes = " ".join(f"{row[what] / 2**20:.2f} MiB" for what in ("step", "propagation"))
    return f"memory of an image, map {row['map']}x{row['map']}: step, propagation", sizes

"""Speed and memory on this machine, as ratios to matrix products (GEMM) measured in the same run.

python benchmarks/bench.py propagation | reconstruct [MODEL] | codec [MODEL] | train [RECIPE] [key=value …]
"""

from __future__ import annotations

import argparse
from typing import Any

from finola.cli.output import print_json, print_table
from finola.config import DEFAULT_CODEC

SUBJECTS = {
    "propagation": "speed of the recurrence relative to GEMM, forward and backward",
    "reconstruct": "a reconstruction, stage by stage",
    "codec": "compression to a .finola file and decompression",
    "train": "images/s, FLOPs, data loading, and memory by map size",
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=list(SUBJECTS), help="; ".join(f"{k}: {v}" for k, v in SUBJECTS.items()))
    parser.add_argument("what", nargs="?", metavar="RECIPE|MODEL", help="recipe to train (default: smoke), or model")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the recipe to override")
    parser.add_argument("--quick", action="store_true", help="skip slow baselines")
    parser.add_argument(
        "--compile", action="store_true", help="reconstruct: also measure model.compile() and its warm-up"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    for option, given, subjects in (
        ("a recipe or model", args.what, ("train", "reconstruct", "codec")),
        ("settings", args.overrides, ("train",)),
        ("--quick", args.quick, ("propagation", "reconstruct", "codec")),
        ("--compile", args.compile, ("reconstruct",)),
    ):
        if given and args.subject not in subjects:
            parser.error(f"{args.subject} does not support {option}")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    if args.subject == "propagation":
        from speed.propagation import bench_propagation

        result = bench_propagation(quick=args.quick)
    elif args.subject == "reconstruct":
        from speed.reconstruction import bench_reconstruction

        result = bench_reconstruction(args.what or "mf-w2880/3072x1@64", quick=args.quick, compiled=args.compile)
    elif args.subject == "codec":
        from speed.codec import bench_codec

        result = bench_codec(args.what or DEFAULT_CODEC, quick=args.quick)
    else:
        from speed.training import bench_training

        from finola.recipes.loading import load_recipe

        result = bench_training(load_recipe(args.what or "smoke", args.overrides))
    if args.json:
        print_json(result)
    else:
        show = {"propagation": _show_propagation, "reconstruct": _show_reconstruction, "codec": _show_codec}
        show.get(args.subject, _show_training)(result)


def _show_propagation(result: dict[str, Any]) -> None:
    rows = [
        (r["case"], f"{1e3 * r['seconds']:.1f} ms", f"{r['gemm_gflops']:.0f}", f"{r['share_of_gemm']:.2f}", r["bar"])
        for r in result["rows"]
    ]
    print_table(f"{result['threads']} threads", ["propagation", "time", "GEMM, GFLOP/s", "share", "target"], rows)
    for memory in result["training_memory"]:
        print(f"memory relative to plain autograd, {memory['case']}: {memory['ratio']:.2f} (target {memory['bar']})")
    for row in result.get("over_sequential", []):
        print(
            f"C = 3072 at {row['side']}x{row['side']}: {row['ratio']:.1f} times as fast as the sequential loop "
            f"(target {row['bar']}, paper {row['paper']})"
        )
    startup = result["startup"]
    print(f"finola --help takes {startup['help_seconds']:.2f} s; import finola adds {startup['import_seconds']:.2f} s")
    exponents = ", ".join(f"{name}^{value:.2f}" for name, value in result["exponents"].items())
    print(f"time scales as {exponents}")


def _show_reconstruction(result: dict[str, Any]) -> None:
    stages = dict(result["stations"])
    gemm_speed = stages.pop("GEMM")["gflop_per_second"]
    rows = [
        (
            name,
            f"{1e3 * r['seconds']:.1f} ms",
            f"{r['peak_bytes'] / 2**20:.0f} MiB",
            f"{r['gflop']:.1f}" if "gflop" in r else "",
            f"{r['share_of_gemm']:.2f}" if "gflop" in r else "",
        )
        for name, r in stages.items()
    ]
    title = f"{result['model']}, one image, {result['threads']} threads, GEMM {gemm_speed:.0f} GFLOP/s"
    print_table(title, ["", "time", "memory", "GFLOP", "share of GEMM"], rows)
    if "baseline" in result:
        print(f"baseline: {result['baseline']}")
    if "time_over_baseline" in result:
        print(f"time relative to the baseline: {result['time_over_baseline']:.2f}")
    if "compile_warm_up_seconds" in result:
        print(f"the first call of the compiled model took {result['compile_warm_up_seconds']:.1f} s")


def _show_codec(result: dict[str, Any]) -> None:
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
        print_table(
            "scikit-image photos at a fixed bit rate", ["effort", "bpp", "PSNR, dB", "seconds per photo"], efforts
        )


def _show_training(result: dict[str, Any]) -> None:
    loading, memory, bounds = result["loading"], result["memory"], result["bounds"]
    rows = [
        ("images/s", f"{result['images_per_second']:.1f}"),
        ("images/s with loading", f"{result['images_per_second_with_loading']:.1f}"),
        ("FLOPs per image and step", f"{result['flops_per_image'] / 1e9:.3f} G"),
        ("GEMM on this machine", f"{result['gemm_flops_per_second'] / 1e9:.1f} GFLOP/s"),
        ("fraction of GEMM speed", f"{result['share_of_gemm']:.1%}"),
        (f"loading, fraction of a step ({loading['workers']} workers)", f"{loading['share']:.1%}"),
        ("waiting for data, fraction of a step", f"{loading['wait_share']:.1%}"),
        ("memory bandwidth", f"{bounds['bytes_per_second'] / 1e9:.1f} GB/s"),
        ("fraction of the roofline", f"{bounds['share_of_roofline']:.1%}"),
        ("memory-bound part of the roofline", f"{bounds['memory_bound_share']:.1%}"),
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
    print_table("lower bounds for a step", ["operation", "minimum time", "GFLOP", "MB moved"], kinds)


def _memory_row(row: dict[str, int]) -> tuple[str, str]:
    sizes = " ".join(f"{row[what] / 2**20:.2f} MiB" for what in ("step", "propagation"))
    return f"memory per image, map {row['map']}x{row['map']}: step, propagation", sizes


if __name__ == "__main__":
    main()

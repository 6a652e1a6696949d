"""A complete reconstruction by stage, as a fraction of GEMM throughput, beside a baseline."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from finola.hub import resolve
from finola.model_zoo import create, load
from speed.machine import flops, gemm_rate, peak_memory, timed

REPEATS = 5
BARS = {"share_of_gemm": 0.6, "time_over_baseline": 1.0}


@torch.inference_mode()
def bench_reconstruction(
    name: str = "mf-w2880/3072x1@64", quick: bool = False, compiled: bool = False
) -> dict[str, Any]:
    """Times of encode, propagate, decode and all of it, for one image of the model's size.

    `compiled` adds `model.compile()`: its gain and the time of the first call. `quick` skips the baseline.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    plain = (load(name) if resolve(name) else create(name).eval()).to(device)
    model = plain.for_inference()
    config = model.config
    images = torch.rand(1, 3, *config.image_size, device=device)
    q = model.encode(images)
    z = model.propagate(q)
    works: dict[str, Callable[[], object]] = {
        "encode": lambda: model.encode(images),
        "propagate": lambda: model.propagate(q),
        "decode": lambda: model.decode(z),
        "all": lambda: model(images),
        "all, norms not folded": lambda: plain(images),
    }
    result: dict[str, Any] = {"model": name, "threads": torch.get_num_threads(), "device": device.type, "bars": BARS}
    if not quick:
        baseline = stable_diffusion_baseline(device)
        result["baseline"] = (
            BASELINE if baseline else f"{BASELINE} left out: install it with pip install 'finola[compare]'."
        )
        if baseline:
            works["baseline"] = lambda: baseline(images)
    if compiled:
        faster = plain.for_inference()
        faster.compile()
        result["compile_warm_up_seconds"] = timed(lambda: faster(images), device)
        works["all, compiled"] = lambda: faster(images)
    rows = config.paths * config.map_size[1]
    result["stations"] = stations = measure(works, rows, config.channels, device)
    if "baseline" in stations:
        result["time_over_baseline"] = stations["all"]["seconds"] / stations["baseline"]["seconds"]
    return result


def measure(
    works: dict[str, Callable[[], object]], rows: int, channels: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """Every work in turns, so that all see the same machine; medians, each as a share of the median GEMM rate."""
    for work in works.values():
        work()
    rates: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        rates.append(gemm_rate(device, rows, channels))
        for name, work in works.items():
            seconds[name].append(timed(work, device))
    rate, table = statistics.median(rates), {}
    for name, work in works.items():
        median = statistics.median(seconds[name])
        table[name] = {"seconds": median, "peak_bytes": float(peak_memory(work))}
        if "compiled" not in name:
            done = flops(work)
            table[name] |= {"gflop": done / 1e9, "share_of_gemm": done / median / rate}
    table["GEMM"] = {"gflop_per_second": rate / 1e9}
    return table


BASELINE = "diffusers' AutoencoderKL (Stable Diffusion's layout, random weights)"


def stable_diffusion_baseline(device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """images → reconstruction by Stable Diffusion's auto-encoder with random weights, or None without diffusers."""
    if find_spec("diffusers") is None:
        return None
    from diffusers import AutoencoderKL

    baseline: Any = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[128, 256, 512, 512],
        layers_per_block=2,
        latent_channels=4,
    )
    baseline = baseline.eval().to(device, memory_format=torch.channels_last)
    return lambda images: baseline.decode(baseline.encode(2 * images - 1).latent_dist.mode()).sample

"""A whole reconstruction, station by station, as a share of the machine's matrix products."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from finola.bench.machine import flops, gemm_rate, timed
from finola.zoo import create

REPEATS = 5


def bench_reconstruction(name: str = "mf-w2880/3072x1@64") -> dict[str, Any]:
    """Times of encode, propagate, decode and all of it for one image of the model's size, in inference mode."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = create(name).eval().to(device)
    images = torch.rand(1, 3, *model.config.image_size, device=device)
    with torch.inference_mode():
        q = model.encode(images)
        z = model.propagate(q)
        stations = {
            "encode": lambda: model.encode(images),
            "propagate": lambda: model.propagate(q),
            "decode": lambda: model.decode(z),
            "all": lambda: model(images),
        }
        rows = {}
        for station, work in stations.items():
            work()
            rate = gemm_rate(device)
            seconds = statistics.median(timed(work, device) for _ in range(REPEATS))
            done = flops(work)
            rows[station] = {"seconds": seconds, "gflop": done / 1e9, "share_of_gemm": done / seconds / rate}
    return {"model": name, "threads": torch.get_num_threads(), "device": device.type, "stations": rows}

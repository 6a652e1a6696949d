"""How many feature maps are alive at once while one is grown: C = 3072 at 64×64, one image, inference.

Counts the bytes of every tensor that lives during `propagate`, besides q and the matrices. At most three maps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from speed.machine import peak_memory

from finola.propagation import propagate
from finola.transitions import NormLinear


@torch.inference_mode()
def maps_alive(channels: int, side: int, paths: int, start: str) -> float:
    """Peak bytes of one propagation in maps of (1, C, side, side) float32."""
    q = torch.randn(1, paths, channels)
    coefficients = NormLinear(channels).prepared()
    peak = peak_memory(lambda: propagate(q, coefficients, (side, side), start))
    return round(peak / (channels * side * side * 4), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="results/memory.json")
    args = parser.parse_args()
    rows = []
    for channels, side, paths, start in [(3072, 64, 1, "center"), (1024, 64, 4, "center"), (1024, 64, 4, "scatter")]:
        alive = maps_alive(channels, side, paths, start)
        rows.append({"C": channels, "M": paths, "side": side, "start": start, "maps_alive": alive})
        print(f"C={channels} M={paths} at {side}x{side}, {start}: {alive} maps alive at the peak")
    Path(args.out).write_text(json.dumps({"bar": 3, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

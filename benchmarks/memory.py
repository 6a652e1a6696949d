"""How many feature maps are alive at once while one is grown: C = 3072 at 64×64, one image, inference.

Counts the bytes of every tensor storage that lives during `propagate`, besides q and the matrices. At most three maps.
"""

from __future__ import annotations

import argparse
import json
import weakref
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from finola.propagation import propagate
from finola.transitions import NormLinear


class LiveBytes(TorchDispatchMode):
    """Follows every new storage from its birth to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                pointer, size = storage.data_ptr(), storage.nbytes()
                if pointer not in given and pointer not in self.known:
                    self.known.add(pointer)
                    self.alive += size
                    self.peak = max(self.peak, self.alive)
                    weakref.finalize(storage, self._gone, pointer, size)
        return out

    def _gone(self, pointer: int, size: int) -> None:
        self.known.discard(pointer)
        self.alive -= size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="results/memory.json")
    args = parser.parse_args()
    rows = []
    for channels, side, paths, start in [(3072, 64, 1, "center"), (1024, 64, 4, "center"), (1024, 64, 4, "scatter")]:
        q = torch.randn(1, paths, channels)
        coefficients = NormLinear(channels).requires_grad_(False).prepared()
        one_map = channels * side * side * 4
        with torch.inference_mode(), LiveBytes() as live:
            propagate(q, coefficients, (side, side), start)
        rows.append(
            {"C": channels, "M": paths, "side": side, "start": start, "maps_alive": round(live.peak / one_map, 2)}
        )
        print("C={C} M={M} at {side}x{side}, {start}: {maps_alive} maps alive at the peak".format(**rows[-1]))
    Path(args.out).write_text(json.dumps({"bar": 3, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

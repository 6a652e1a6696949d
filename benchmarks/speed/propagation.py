"""Speed of propagation relative to matrix products, forward and backward, and relative to the sequential loop."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finola.cli.output import progress
from finola.propagation import Coefficients, propagate
from finola.transitions import NormLinear
from speed.machine import fit_line, gemm_rate, peak_memory, timed

REPEATS = 5


class Case(NamedTuple):
    """N images, M paths of C channels, a square map; `train` adds the backward pass."""

    channels: int
    batch: int
    paths: int
    side: int
    train: bool = False
    bar: float | None = None  # share of the GEMM rate asked for

    @property
    def flops(self) -> int:
        """4·C²·(H·W − 1) per path and image; the backward pass takes twice as many again."""
        forward = 4 * self.channels**2 * (self.side**2 - 1) * self.batch * self.paths
        return 3 * forward if self.train else forward

    def describe(self) -> str:
        what = "forward + backward" if self.train else "inference"
        return f"{what}: C = {self.channels}, N = {self.batch}, M = {self.paths}, {self.side}x{self.side}"


CASES = (
    Case(1024, 1, 4, 64, bar=0.85),
    Case(1024, 16, 1, 16, bar=0.85),
    Case(3072, 1, 1, 64, bar=0.75),
    Case(256, 32, 1, 16, bar=0.5),
    Case(128, 1, 1, 256, bar=0.5),
    Case(1024, 16, 1, 16, train=True, bar=0.75),
    Case(512, 32, 1, 16, train=True, bar=0.75),
)


def bench_propagation(quick: bool = False) -> dict[str, Any]:
    """All measurements of propagation; `quick` skips the comparison with the sequential loop."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [measure(case, device) for case in progress(CASES, len(CASES), "propagation")]
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "device": device.type, "rows": rows}
    result["training_memory"] = [training_memory(case, device) for case in CASES if case.train]
    result["exponents"] = exponents(device)
    result["startup"] = startup()
    if not quick:
        result["over_sequential"] = [over_sequential(3072, side, device) for side in (16, 64)]
    return result


def measure(case: Case, device: torch.device) -> dict[str, Any]:
    """One case's time, and its share of the GEMM rate measured in turns with it."""
    q, transition = _inputs(case, device)
    work = _work(case, q, transition)
    rows = case.batch * case.paths * case.side
    work()
    seconds, rates = [], []
    for _ in range(REPEATS):
        rates.append(gemm_rate(device, rows, case.channels))
        seconds.append(timed(work, device))
    time, rate = statistics.median(seconds), statistics.median(rates)
    return {
        "case": case.describe(),
        "seconds": time,
        "gflops": case.flops / time / 1e9,
        "gemm_gflops": rate / 1e9,
        "share_of_gemm": case.flops / time / rate,
        "bar": case.bar,
        "peak_bytes": peak_memory(work),
    }


def training_memory(case: Case, device: torch.device) -> dict[str, Any]:
    """Peak bytes of a training step with the package's backward and with plain autograd, step by step."""
    q, transition = _inputs(case, device)
    ours = peak_memory(_work(case, q, transition))
    plain = peak_memory(lambda: propagate(q, transition, (case.side, case.side)).sum().backward())
    return {"case": case.describe(), "ours_bytes": ours, "autograd_bytes": plain, "ratio": ours / plain, "bar": 0.5}


def over_sequential(channels: int, side: int, device: torch.device) -> dict[str, Any]:
    """One image: the parallel form against one matrix–vector product per position and order."""
    case = Case(channels, 1, 1, side)
    q, transition = _inputs(case, device)
    coefficients = transition.coefficients()
    parallel = statistics.median(timed(_work(case, q, transition), device) for _ in range(3))
    with torch.inference_mode():
        sequential = timed(lambda: walk_every_position(q[:, 0], coefficients, side), device)
    bar = {16: 3, 64: 8}[side]
    return {"side": side, "parallel_seconds": parallel, "sequential_seconds": sequential} | {
        "ratio": sequential / parallel,
        "bar": bar,
        "paper": {16: 1.3, 64: 3}[side],
    }


def walk_every_position(q: Tensor, coefficients: Coefficients, side: int) -> Tensor:
    """The map (side, side, C) of one path, one position at a time, nothing computed twice within an order."""
    centre = side // 2
    maps = []
    for horizontal_first in (True, False):
        z: dict[tuple[int, int], Tensor] = {(centre, centre): q}
        for y, x in sorted(((y, x) for y in range(side) for x in range(side)), key=lambda p: _distance(p, centre)):
            if (y, x) == (centre, centre):
                continue
            vertical_step = y != centre if horizontal_first else x == centre
            if vertical_step:
                direction, before = ("down", (y - 1, x)) if y > centre else ("up", (y + 1, x))
            else:
                direction, before = ("right", (y, x - 1)) if x > centre else ("left", (y, x + 1))
            z[y, x] = coefficients(z[before], direction)  # type: ignore[arg-type]
        maps.append(torch.stack([torch.stack([z[y, x][0] for x in range(side)]) for y in range(side)]))
    return (maps[0] + maps[1]) / 2


def _distance(position: tuple[int, int], centre: int) -> int:
    return abs(position[0] - centre) + abs(position[1] - centre)


def startup() -> dict[str, float]:
    """Medians of three: seconds of `finola --help`, and what `import finola` adds to `import torch`."""
    clock = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

    def seconds(*words: str) -> float:
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        return float(done.stdout) if words[0] == "-c" else time.perf_counter() - begin

    def median(*words: str) -> float:
        return statistics.median(seconds(*words) for _ in range(3))

    torch_alone, both = (median("-c", clock.format(names)) for names in ("torch", "torch, finola"))
    return {"help_seconds": median("-m", "finola.cli", "--help"), "import_seconds": both - torch_alone}


def exponents(device: torch.device) -> dict[str, float]:
    """How time grows with C, the map's area and M: slopes of log time, where the products rule."""
    base = Case(512, 8, 2, 16)
    growth: dict[str, list[tuple[float, Case]]] = {
        "C": [(c, base._replace(channels=c)) for c in (512, 1024, 2048)],
        "area": [(s * s, base._replace(side=s)) for s in (16, 24, 32)],
        "M": [(m, base._replace(paths=m)) for m in (2, 4, 8)],
    }
    slopes = {}
    for name, cases in growth.items():
        times = []
        for _, case in cases:
            work = _work(case, *_inputs(case, device))
            work()
            times.append(min(timed(work, device) for _ in range(3)))
        slopes[name] = fit_line([math.log(x) for x, _ in cases], [math.log(t) for t in times])[0]
    return slopes


def _inputs(case: Case, device: torch.device) -> tuple[Tensor, NormLinear]:
    torch.manual_seed(0)
    return torch.randn(case.batch, case.paths, case.channels, device=device), NormLinear(case.channels).to(device)


def _work(case: Case, q: Tensor, transition: NormLinear) -> Callable[[], object]:
    size = (case.side, case.side)
    if case.train:
        return lambda: propagate(q, transition.coefficients(), size).sum().backward()

    @torch.inference_mode()
    def infer() -> Tensor:
        return propagate(q, transition.coefficients(), size)

    return infer

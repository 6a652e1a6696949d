"""Speed of propagation before and after a change, as fractions of GEMM throughput measured in the same run.

python benchmarks/compare_revisions.py REVISION [--rounds 3] [-o results/compare-revisions.json]
python benchmarks/compare_revisions.py REVISION --train "tile32 model.weights=tile32" masked/b-w720-128

With `--train`, the images per second of training runs on the data in FINOLA_DATA are compared instead.

The revision is checked out beside the working tree. Both versions run in turns, each in a fresh process, so that a
drift of the speed of the machine affects both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPEATS = 5
SHORT = (
    *("trainer.max_time=null", "schedule.clock=steps", "trainer.max_steps=40", "trainer.validate_first=false"),
    *("data.val_limit=2", "data.num_workers=0", "logging.every_steps=40"),
)
"""Overrides of training runs that are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="git revision to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=3, help="processes per version (default: 3)")
    parser.add_argument("--train", nargs="+", metavar="RUN", help="recipes with their overrides, each in quotes")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(shares()))
        return
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-q", before, args.revision], check=True)
        try:
            trees = {"before": before, "after": ROOT}
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
            for number in range(args.rounds):
                for name, tree in trees.items():
                    print(f"round {number + 1} of {args.rounds}: {name}", file=sys.stderr)
                    rounds[name].append(train(tree, args.train) if args.train else run(tree))
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    result = {"revision": args.revision, "cpu": cpu_model(), "rows": summary(rounds)}
    for row in result["rows"]:
        print(f"{row['case']}: before {row['before']:.2f}, after {row['after']:.2f}, ratio {row['ratio']:.2f}")
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n")


def train(tree: Path, runs: list[str]) -> dict[str, float]:
    """Images per second of short training runs, without validation, by finola from `tree`."""
    environment, found = os.environ | {"PYTHONPATH": str(tree / "src")}, {}
    for words in runs:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "finola.cli", "train", *shlex.split(words), *SHORT, "--json", "--out"]
            done = subprocess.run([*command, f"{folder}/run"], env=environment, check=True, stdout=subprocess.PIPE)
            found[words] = float(json.loads(done.stdout)["images_per_second"])
    return found


def run(tree: Path) -> dict[str, float]:
    """Shares of GEMM throughput by case, measured in a process that imports finola from `tree`."""
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{Path(__file__).parent}"}
    command = [sys.executable, __file__, "--worker", "HEAD"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def shares() -> dict[str, float]:
    """Share of GEMM throughput by case, of the finola that this process imports."""
    import torch
    from speed.machine import gemm_rate, timed

    import finola

    device = torch.device("cpu")
    result = {}
    for channels, batch, paths, side, train in CASES:
        torch.manual_seed(0)
        q = torch.randn(batch, paths, channels)
        matrices = [torch.randn(channels, channels) / channels**0.5 / 10 for _ in range(4)]
        for matrix in matrices:
            matrix.requires_grad_(train)

        def work(q: Any = q, matrices: Any = matrices, size: Any = (side, side), train: bool = train) -> None:
            with torch.inference_mode(not train):
                z = finola.propagate(q, finola.Coefficients(*matrices), size)
                if train:
                    z.sum().backward()

        work()
        seconds, rates = [], []
        for _ in range(REPEATS):
            rates.append(gemm_rate(device, batch * paths * side, channels))
            seconds.append(timed(work, device))
        flops = 4 * channels**2 * (side**2 - 1) * batch * paths * (3 if train else 1)
        kind = "forward + backward" if train else "inference"
        name = f"{kind}: C = {channels}, N = {batch}, M = {paths}, {side}x{side}"
        result[name] = flops / statistics.median(seconds) / statistics.median(rates)
    return result


CASES = (
    (1024, 1, 4, 64, False),
    (1024, 16, 1, 16, False),
    (3072, 1, 1, 64, False),
    (256, 32, 1, 16, False),
    (128, 1, 1, 256, False),
    (1024, 16, 1, 16, True),
    (512, 32, 1, 16, True),
)


def summary(rounds: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Medians over rounds, with the shares of every round."""
    rows = []
    for case in rounds["before"][0]:
        before, after = ([round[case] for round in rounds[name]] for name in ("before", "after"))
        medians = statistics.median(before), statistics.median(after)
        row = {"case": case, "before": medians[0], "after": medians[1], "ratio": medians[1] / medians[0]}
        rows.append(row | {"before_rounds": before, "after_rounds": after})
    return rows


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


if __name__ == "__main__":
    main()

"""Damaged files of every kind that this package reads end in a result or in one sentence, within seconds and memory.

Readers: `.finola` files, model folders, codec tables, recipes, COCO annotations, Parquet files, tar shards,
photos, and outputs of `finola embed` and `finola compress --shards`.
A case is decided by (seed, reader, number) alone and run in a child process. It is a failure if it raises anything but
a FinolaError, ValueError or OSError of one line, takes more than 2 s of CPU time or 1.5 GB of resident memory, or ends
its process; failures are printed with the command that repeats them. Prints a table, writes results/fuzz-readers.json,
and exits with 1 after a failure.

python benchmarks/fuzz_readers.py [--cases 20000] [--seed 0] [--only recipe coco] [--case NUMBER]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz_cases import READERS, Samples, run_case

SECONDS, MEGABYTES = 2.0, 1500.0
HANGS = 60.0  # seconds on the clock after which a child is ended
ADDRESS_SPACE = 4 * 2**30  # bytes that a child may map beyond what it has at its start
EXAMPLES = 20  # failures that the JSON file quotes for each reader
RESULT = Path(__file__).parents[1] / "results" / "fuzz-readers.json"


@dataclass
class Tally:
    """What came of the cases of one reader."""

    cases: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    peak_MB: float = 0.0

    def add(self, number: int, outcome: str, what: str, seconds: float, megabytes: float) -> None:
        self.cases += 1
        self.slowest_seconds, self.peak_MB = max(self.slowest_seconds, seconds), max(self.peak_MB, megabytes)
        if outcome != "failed" and seconds > SECONDS:
            outcome, what = "failed", f"took {seconds:.1f} s"
        if outcome != "failed" and megabytes > MEGABYTES:
            outcome, what = "failed", f"took {megabytes:.0f} MB"
        if outcome == "accepted":
            self.accepted += 1
        elif outcome == "refused":
            self.refused[what] += 1
        else:
            self.failures.append({"case": number, "what": what})


def work(connection: Connection, samples: Samples, folder: Path, seed: int) -> None:
    """Run the cases that the parent sends, in a child process with limits."""
    import resource

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ready: set[str] = set()
    while True:
        reader, number = connection.recv()
        if reader not in ready:  # imports and cached models are not part of a case
            for first in range(1, 4):
                run_case(samples, reader, 0, -first, folder / f"first-{reader}-{first}")
            ready.add(reader)
            connection.send(None)
        place = folder / f"{reader}-{number}"
        reset_peak()
        begin = time.process_time()
        outcome, what = run_case(samples, reader, seed, number, place)
        seconds = time.process_time() - begin
        shutil.rmtree(place, ignore_errors=True)
        connection.send((outcome, what, seconds, peak()))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Most megabytes resident since `reset_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


class Child:
    """A worker process, started again after it has ended or was ended."""

    def __init__(self, samples: Samples, folder: Path, seed: int) -> None:
        self.samples, self.folder, self.seed, self.starts = samples, folder, seed, 0
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.starts += 1
        place = self.folder / str(self.starts)
        self.process = context.Process(target=work, args=(other, self.samples, place, self.seed), daemon=True)
        self.process.start()
        other.close()
        self.task: tuple[str, int] | None = None
        self.since = time.monotonic()

    def give(self, task: tuple[str, int]) -> None:
        self.task, self.since = task, time.monotonic()
        self.connection.send(task)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run(tasks: Iterator[tuple[str, int]], tallies: dict[str, Tally], children: list[Child]) -> None:
    for child in children:
        if (task := next(tasks, None)) is not None:
            child.give(task)
    while busy := [child for child in children if child.task]:
        ready = wait([child.connection for child in busy], timeout=1)
        for child in busy:
            assert child.task is not None
            reader, number = child.task
            answer = ("failed", "took too long: ended", HANGS, 0.0)
            if child.connection in ready:
                try:
                    answer = child.connection.recv()
                except (EOFError, ConnectionError):
                    child.process.join()
                    answer = ("failed", f"ended the process with code {child.process.exitcode}", 0.0, 0.0)
                if answer is None:  # the reader is loaded, and the case begins
                    child.since = time.monotonic()
                    continue
            elif time.monotonic() - child.since < HANGS:
                continue
            tallies[reader].add(number, *answer)
            if child.connection not in ready or not child.process.is_alive() or answer[3] > MEGABYTES:
                child.stop()
                child.start()
            child.task = None
            if (task := next(tasks, None)) is not None:
                child.give(task)
            if sum(tally.cases for tally in tallies.values()) % 500 == 0:
                done = ", ".join(f"{name} {tally.cases}" for name, tally in tallies.items() if tally.cases)
                print(f"  {done}", file=sys.stderr, flush=True)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def report(tallies: dict[str, Tally], seed: int) -> dict[str, Any]:
    """Print the table and the failures, and return what goes into the JSON file."""
    print(f"{'reader':10} {'cases':>6} {'accepted':>8} {'refused':>8} {'failed':>6} {'slowest':>8} {'peak':>8}")
    for name, tally in tallies.items():
        numbers = f"{tally.cases:6} {tally.accepted:8} {tally.refused.total():8} {len(tally.failures):6}"
        print(f"{name:10} {numbers} {tally.slowest_seconds:6.2f} s {tally.peak_MB:5.0f} MB  {dict(tally.refused)}")
    for name, tally in tallies.items():
        for failure in tally.failures:
            command = f"python benchmarks/fuzz_readers.py --seed {seed} --only {name} --case {failure['case']}"
            print(f"FAILED {failure['what']}\n       {command}")
    readers = {
        name: {
            "cases": tally.cases,
            "accepted": tally.accepted,
            "refused": dict(sorted(tally.refused.items())),
            "failures": len(tally.failures),
            "examples": tally.failures[:EXAMPLES],
            "slowest_seconds": round(tally.slowest_seconds, 3),
            "peak_MB": round(tally.peak_MB),
        }
        for name, tally in tallies.items()
    }
    total = {key: sum(row[key] for row in readers.values()) for key in ("cases", "failures")}
    return {"seed": seed, **total, "cpu": processor(), "python": platform.python_version(), "readers": readers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000, help="in all, shared evenly by the readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--case", type=int, help="run this case alone, in this process, and keep its files")
    parser.add_argument("--workers", type=int, default=None, help="processes; as many as there are cores by default")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if args.case is not None:
            place = Path("fuzz-case")
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            READERS[args.only[0]](Samples(Path(name)), random.Random(f"{args.seed} {args.only[0]} {args.case}"), place)
            return
        from finola.data import available_cores

        tallies = {reader: Tally() for reader in args.only}
        share = -(-args.cases // len(args.only))
        tasks = ((reader, number) for reader in args.only for number in range(share))
        samples = Samples(Path(name))
        samples.make_all()
        count = args.workers or available_cores()
        children = [Child(samples, Path(name) / str(number), args.seed) for number in range(count)]
        try:
            run(tasks, tallies, children)
        finally:
            for child in children:
                child.stop()
    result = report(tallies, args.seed)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()

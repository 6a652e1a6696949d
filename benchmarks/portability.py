"""Run the test suite as other machines would run it: other instruction sets, thread counts and orders of tests.

Each configuration is one run of pytest in its own environment. Its counts go to the results file as soon as it ends, so
that an interrupted run continues where it stopped; a configuration is run again when the code, the CPU, the version
of torch or the selected tests have changed. Exits with 1 if a test failed in any selected configuration.

    python benchmarks/portability.py [--only NAME …] [--tests PATH …] [--workers 2] [--again]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import date
from pathlib import Path
from typing import Any

import torch

from finola.files import write_text

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _shuffled(seed: int) -> list[str]:
    return ["--random-order-bucket=module", f"--random-order-seed={seed}"]


# Environment and pytest arguments. aten-default is ATen without vector instructions; avx2 is oneDNN without AVX-512
# and MKL with the code path that gives the same results on every x86 CPU. Three of them also shuffle the tests, each
# with its own seed, so that four runs cover instruction sets, thread counts and orders. The pytest processes of a run
# get `--workers` cores together: with two threads each, there are half as many processes.
CONFIGURATIONS: dict[str, tuple[dict[str, str], list[str]]] = {
    "aten-default": (ONE_THREAD | {"ATEN_CPU_CAPABILITY": "default"}, _shuffled(1)),
    "avx2": (ONE_THREAD | {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}, _shuffled(2)),
    "threads-2": ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}, _shuffled(3)),
    "threads-1": (ONE_THREAD, []),
}
COLUMNS = ("configuration", "passed", "failed", "skipped", "seconds")


def cpu_name() -> str:
    """The name of the CPU as its vendor writes it, or what the platform knows."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def digest_of_code() -> str:
    """Twelve hexadecimal digits that change with any Python file of the package or of its tests."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def read_counts(report: Path) -> dict[str, Any]:
    """Passed, failed and skipped tests of a JUnit report, and the names of those that failed."""
    failed, skipped, total = [], 0, 0
    for case in ElementTree.parse(report).iter("testcase"):
        total += 1
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
    return {"passed": total - len(failed) - skipped, "failed": len(failed), "skipped": skipped, "failures": failed}


def run(name: str, tests: list[str], workers: int) -> dict[str, Any]:
    """One configuration: the tests in its environment, counted."""
    environment, arguments = CONFIGURATIONS[name]
    processes = max(1, workers // int(environment["OMP_NUM_THREADS"]))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", str(processes), *arguments, f"--junitxml={report}", *tests]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | environment)
        if not report.exists():
            sys.exit(f"pytest ended with code {done.returncode} and wrote no report; its output is above.")
        counts = read_counts(report)
        seconds = sum(float(suite.get("time", 0)) for suite in ElementTree.parse(report).iter("testsuite"))
    return {"configuration": name, "environment": environment, "arguments": arguments, **counts} | {
        "seconds": round(seconds),
        "date": date.today().isoformat(),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of all rows, and below it the tests that failed."""
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows]:
        print(f"{row['configuration']:<14}" + "".join(f"{row[column]:>9}" for column in COLUMNS[1:]))
    for row in rows:
        for test in row["failures"]:
            print(f"failed in {row['configuration']}: {test}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS), metavar="NAME",
                        help=f"configurations to run: {', '.join(CONFIGURATIONS)}")  # fmt: skip
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="tests to run (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="cores to use")
    parser.add_argument("--again", action="store_true", help="run configurations that the results file already has")
    parser.add_argument("--out", default="results/portability.json")
    args = parser.parse_args()

    out = Path(args.out)
    machine = {"cpu": cpu_name(), "system": platform.platform(terse=True), "python": platform.python_version()} | {
        "torch": torch.__version__,
        "code": digest_of_code(),
        "tests": args.tests,
    }
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    same = {key: kept.get(key) for key in machine} == machine
    rows = {row["configuration"]: row for row in kept["rows"]} if same else {}
    for name in args.only:
        if args.again or name not in rows:
            print(f"== {name}", flush=True)
            rows[name] = run(name, args.tests, args.workers)
            ordered = [rows[known] for known in CONFIGURATIONS if known in rows]
            write_text(out, json.dumps(machine | {"rows": ordered}, indent=1) + "\n")
    show([rows[known] for known in CONFIGURATIONS if known in rows])
    sys.exit(any(rows[name]["failed"] for name in args.only))


if __name__ == "__main__":
    main()

"""The page under load: concurrent visitors on loopback who send good, bad and huge files and leave while they wait.

Passes if the server neither ends nor prints a traceback, every answer is the visitor's own (`page_visitor.py` checks
the pixels), and its memory stays flat: the median of the last fifth of the time is at most 5 % above that of the second
fifth. Prints percentiles of the time from sending a file to its answer, writes results/page-load.json, and exits with 1
if it does not pass.

    python benchmarks/page_load.py [--minutes 30] [--visitors 20] [--visits 20000] [--note "shared machine"]

Needs finola[app] and Linux, whose /proc tells the memory of the server. At most `--visits` files are sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from page_visitor import HUGE_SIZE, PATIENCE, Tally, Visitor, encoded, made_photo
from PIL import Image

from finola.files import write_text

RESULT = Path(__file__).parents[1] / "results" / "page-load.json"
EVERY = 2.0  # seconds between two readings of the memory
GROWTH = 1.05  # allowed factor between the medians of the second and the last fifth
EXAMPLES = 10  # wrong answers and failures that the JSON file quotes
HANDLERS = {"upload": "receive", "quality": "compare_for_1"}  # by their names in the configuration of the page


def memory(process: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def flatness(readings: Sequence[float]) -> dict[str, Any]:
    """Memory at the start, after warm-up (median of the second fifth) and at the end (median of the last fifth).

    >>> flatness([100, 100, 200, 210, 220, 215, 210, 205, 220, 214])["flat"]
    False
    >>> flatness([100, 100, 200, 212, 220, 215, 210, 205, 208, 214])["flat"]
    True
    """
    fifth = max(1, len(readings) // 5)
    warm, end = statistics.median(readings[fifth : 2 * fifth]), statistics.median(readings[-fifth:])
    return {
        "start_MB": round(readings[0]),
        "warm_MB": round(warm),
        "end_MB": round(end),
        "peak_MB": round(max(readings)),
        "growth": round(end / warm, 4),
        "flat": end <= GROWTH * warm,
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Number, p50, p95 and maximum of answer times.

    >>> percentiles([1.0] * 95 + [2.0] * 5)
    {'count': 100, 'p50': 1.0, 'p95': 1.0, 'max': 2.0}
    """
    ordered = sorted(seconds)
    at = {name: ordered[max(0, -(-len(ordered) * share // 100) - 1)] for name, share in (("p50", 50), ("p95", 95))}
    return (
        {"count": len(ordered)} | {name: round(value, 3) for name, value in at.items()} | {"max": round(ordered[-1], 3)}
    )


def judge(tally: Tally, readings: Sequence[float], tracebacks: int, ended: bool, stored: int) -> dict[str, Any]:
    """What goes into the results: times by kind of visit, memory, errors, and whether all of it passes."""
    shown = flatness(readings)
    answered = [seconds for name, times in tally.seconds.items() if name.startswith("photo") for seconds in times]
    errors = {
        "wrong_answers": len(tally.wrong),
        "failed_visits": len(tally.failed),
        "tracebacks": tracebacks,
        "server_ended": ended,
    }
    return {
        "passed": not any(errors.values()) and bool(shown["flat"]) and bool(answered),
        "visits": tally.visits,
        **errors,
        "examples": [*tally.wrong[:EXAMPLES], *tally.failed[:EXAMPLES]],
        "seconds_to_answer": percentiles(answered) if answered else {},
        "seconds_by_kind": {name: percentiles(times) for name, times in sorted(tally.seconds.items())},
        "memory": shown,
        "upload_folder_MB_at_end": round(stored / 1e6, 1),
    }


def handlers(page: str) -> dict[str, int]:
    """Numbers of the event handlers, from the configuration in the HTML of the page."""
    found = re.search(r"window\.gradio_config\s*=\s*(\{.*?\});</script>", page, re.DOTALL)
    if found is None:
        sys.exit("The page has no configuration: this version of Gradio is not supported.")
    numbers = {event["api_name"]: event["id"] for event in json.loads(found[1])["dependencies"]}
    return {name: numbers[handler] for name, handler in HANDLERS.items()}


def sent_files() -> dict[str, bytes]:
    """Files that are made once: a `.finola` file to damage, and a photo with too many pixels."""
    from finola import compress

    huge = encoded(np.full((HUGE_SIZE[1], HUGE_SIZE[0]), 90, np.uint8))
    return {"finola": compress(Image.fromarray(made_photo(0, 0))).data, "huge": huge}


async def load(address: str, server: subprocess.Popen[str], args: argparse.Namespace) -> tuple[Tally, list[float]]:
    """All visitors at once, and the memory of the server every few seconds."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=args.visitors)
    tally, readings, until = Tally(), [memory(server.pid)], time.monotonic() + 60 * args.minutes
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE, limits=limits, trust_env=False) as client:
        numbers, files = handlers((await client.get("/")).text), sent_files()
        visitors = [Visitor(number, client, numbers, files) for number in range(args.visitors)]
        staying = asyncio.gather(*(visitor.stay(tally, until, args.visits) for visitor in visitors))
        shown = time.monotonic()
        while not staying.done() and server.poll() is None:
            await asyncio.wait([staying], timeout=EVERY)
            with contextlib.suppress(OSError, IndexError):  # the server has just ended
                readings.append(memory(server.pid))
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                problems = len(tally.wrong) + len(tally.failed)
                print(
                    f"  {tally.visits} visits, {problems} problems, {readings[-1]:.0f} MB", file=sys.stderr, flush=True
                )
        if server.poll() is not None:
            staying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await staying
    return tally, readings


def folder_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) if folder else 0


def show(found: dict[str, Any]) -> None:
    for name, row in found["seconds_by_kind"].items():
        times = "   ".join(f"{key} {row[key]:7.2f} s" for key in ("p50", "p95", "max"))
        print(f"{name:24} {row['count']:6} visits   {times}")
    total, used = found["seconds_to_answer"], found["memory"]
    if total:
        print(f"photo to answer: p50 {total['p50']:.2f} s, p95 {total['p95']:.2f} s over {total['count']} photos")
    print(f"memory: {used['start_MB']} MB at the start, {used['warm_MB']} after warm-up, {used['end_MB']} at the end, "
          f"peak {used['peak_MB']}; {'flat' if used['flat'] else 'grows'}")  # fmt: skip
    print(f"wrong answers {found['wrong_answers']}, failed visits {found['failed_visits']}, "
          f"tracebacks {found['tracebacks']}, server ended {found['server_ended']}")  # fmt: skip
    for example in found["examples"]:
        print(f"  {example}")
    print("passed" if found["passed"] else "FAILED")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--visits", type=int, default=20_000, help="at most, of all visitors together")
    parser.add_argument("--note", default="", help="circumstances of the measurement, stored with the results")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "finola.cli", "app", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[4].rstrip(",")
            tally, readings = asyncio.run(load(address, server, args))
            ended, stored = server.poll() is not None, folder_bytes(tally.folder)
        finally:
            server.terminate()
            server.wait()
        log.seek(0)
        tracebacks = log.read().count("Traceback (most recent call last)")
    found = judge(tally, readings, tracebacks, ended, stored)
    machine = {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version(), "note": args.note}
    settings = {"minutes": args.minutes, "visitors": args.visitors}
    show(found)
    write_text(args.out, json.dumps(settings | machine | found, indent=1) + "\n")
    sys.exit(0 if found["passed"] else 1)


if __name__ == "__main__":
    main()

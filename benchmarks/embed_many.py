"""Embed many photos with four workers, one of which is killed twice at random, and compare every row with one process.

The Parquet files of FINOLA_DATA are repeated under other names until there are `--photos` of them. Writes
results/embed-many.json, and exits with 1 unless every photo has exactly one row that equals that of the single process.

python benchmarks/embed_many.py [--photos 100000] [--engine local ray] [--model waves/256x1@16:64]
python benchmarks/embed_many.py --speedup     # one worker against two, and a profile of one; needs two idle cores
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "results" / "embed-many.json"
NAMES = {"local": "spawn_main", "ray": "ray::_answer"}  # in the command line of a worker process


def repeat(packs: list[Path], photos: int, folder: Path) -> int:
    """Link the packs under other names until they have `photos` rows; the last is cut. Returns the unique rows."""
    from pyarrow import parquet

    folder.mkdir()
    rows = {pack: parquet.ParquetFile(pack).metadata.num_rows for pack in packs}
    done = number = 0
    while done < photos:
        pack = packs[number % len(packs)]
        target = folder / f"copy-{number:04d}.parquet"
        if done + rows[pack] <= photos:
            target.symlink_to(pack.resolve())
        else:
            parquet.write_table(parquet.read_table(pack).slice(0, photos - done), target, row_group_size=256)
        done, number = done + min(rows[pack], photos - done), number + 1
    return min(photos, sum(rows.values()))


def command(data: Path, out: Path, args: argparse.Namespace, workers: int, engine: str) -> list[str]:
    words = [sys.executable, "-m", "finola.cli", "embed", str(data), "-o", str(out), "-m", args.model, "--json"]
    return [*words, "--workers", str(workers), "--engine", engine, "--device", "cpu"]


def workers_of(process: int, engine: str) -> list[int]:
    """Ids of the worker processes below a process that have begun to work."""
    import psutil

    found = psutil.Process(process).children(recursive=True)
    return [one.pid for one in found if NAMES[engine] in " ".join(one.cmdline()) and one.cpu_times().user > 2]


def kill_twice(process: subprocess.Popen[str], out: Path, shards: int, engine: str, rng: random.Random) -> list[int]:
    """Kill a random worker at two random moments of the run, each a number of finished shards."""
    killed: list[int] = []
    for after in sorted(rng.sample(range(1, max(3, shards * 3 // 4)), 2)):
        while process.poll() is None and len(list(out.glob("part-*.parquet"))) < after:
            time.sleep(0.2)
        time.sleep(rng.random() * 2)
        if process.poll() is None and (found := workers_of(process.pid, engine)):
            os.kill(rng.choice(found), signal.SIGKILL)
            killed.append(len(list(out.glob("part-*.parquet"))))
    return killed


def run(data: Path, out: Path, args: argparse.Namespace, workers: int, engine: str, kill: bool) -> dict[str, Any]:
    start = time.perf_counter()
    process = subprocess.Popen(
        command(data, out, args, workers, engine), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    killed: list[int] = []
    if kill:
        rng = random.Random(f"{args.seed} {engine}")
        shards = -(-args.photos // 1000)
        thread = threading.Thread(target=lambda: killed.extend(kill_twice(process, out, shards, engine, rng)))
        thread.start()
    output, errors = process.communicate()
    if kill:
        thread.join()
    seconds = time.perf_counter() - start
    if process.returncode or not output.startswith("{"):
        sys.exit(f"finola embed failed: {output[-2000:]}{errors[-2000:]}")
    repeated = [line for line in errors.splitlines() if "again" in line]
    facts = json.loads(output)
    found = {"engine": engine, "workers": workers, "rows": facts["rows"], "errors": len(facts["unreadable"])}
    return found | {"killed_after_shards": killed, "messages": repeated, "seconds": round(seconds, 1)}


def compare(out: Path, reference: Path, photos: int) -> dict[str, Any]:
    """Compare every row with that of the single process."""
    import numpy as np
    from pyarrow import parquet

    ours, theirs = (parquet.read_table(folder) for folder in (out, reference))
    indices = np.sort(ours["index"].to_numpy())
    q, expected = (np.stack(table.sort_by("index")["q"].to_numpy()) for table in (ours, theirs))
    equal = (q == expected).all(1) if q.shape == expected.shape else np.zeros(1, bool)
    return {
        "rows": len(ours),
        "missing_or_repeated": int(len(indices) != photos or (indices != np.arange(photos)).any()),
        "bitwise_equal_rows": int(equal.sum()),
        "temporary_files": len(list(out.glob(".*"))),
    }


def speedup(data: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Ratio of the throughput of two workers to one, and where one spends its time."""
    from finola.batch import embed

    seconds = {n: run(data, folder / f"speed-{n}", args, n, "local", False)["seconds"] for n in (1, 2)}
    profile = cProfile.Profile()
    profile.runcall(embed, str(data), folder / "profile", args.model, limit=2000, device="cpu")
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(12)
    print(text.getvalue())
    return {"seconds": seconds, "ratio": round(seconds[1] / seconds[2], 2), "cores": len(os.sched_getaffinity(0))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=100_000)
    parser.add_argument("--model", default="waves/256x1@16:64")
    parser.add_argument("--engine", nargs="+", choices=("local", "ray"), default=["local", "ray"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speedup", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    args = parser.parse_args()
    home = Path(os.environ["FINOLA_DATA"])
    packs = sorted(file for name in ("photos256", "imagenette128") for file in (home / name).glob("*.parquet"))
    with tempfile.TemporaryDirectory() as name:
        data, folder = Path(name) / "data", Path(name)
        unique = repeat(packs, args.photos, data)
        result: dict[str, Any] = {"photos": args.photos, "unique": unique, "model": args.model}
        if args.speedup:
            result["speedup"] = speedup(data, folder, args)
        else:
            result["single"] = run(data, folder / "single", args, 1, "local", False)
            for engine in args.engine:
                facts = run(data, folder / engine, args, 4, engine, True)
                result[engine] = facts | compare(folder / engine, folder / "single", args.photos)
    print(json.dumps(result, indent=2))
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    passed = all(
        row["rows"] == row["bitwise_equal_rows"] == args.photos and not row["missing_or_repeated"]
        for row in (result[engine] for engine in args.engine if engine in result)
    )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()

"""Distributed runs for tests, as a script: its processes are forked, so that libraries are imported once.

    python ranks.py FOLDER RUNS

RUNS is JSON: a list of runs, one after the other, each with `words` (arguments of `finola`), `world` (number of
processes) and optionally `fault`, [kind, rank, step]: at that step, that rank is killed (kill), fails (fail), or finds
the disk full (full). Process r of run i appends a line `epoch step photo …` to FOLDER/i-r.txt after
every step and writes standard error to FOLDER/i-r.err. The script prints the exit codes of all runs as JSON; a killed
process has a negative one.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

import finola
from finola.cli import main
from finola.training import loop
from finola.training.state import State


def run_ranks(folder: Path, *runs: dict[str, Any]) -> list[list[int]]:
    """Run this script and return the exit codes of the processes of every run."""
    paths = [str(Path(finola.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder), json.dumps(runs)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    codes: list[list[int]] = json.loads(done.stdout)
    return codes


def photos(folder: Path, run: int, world: int, until: int | None = None) -> list[tuple[int, int, int]]:
    """Triples (epoch, step, photo) that the processes of a run were trained on, up to a step."""
    found = []
    for rank in range(world):
        for line in (folder / f"{run}-{rank}.txt").read_text().splitlines():
            epoch, step, *indices = map(int, line.split())
            found += [(epoch, step, index) for index in indices if until is None or step <= until]
    return sorted(found)


def _observed(folder: Path, run: int, rank: int, fault: list[Any]) -> None:
    """Log the photos of every step, and cause the fault of this run."""
    kind, faulty, at = fault or ["", -1, -1]
    step = loop.train_step

    def train_step(state: State, batches: list[Any]) -> Any:
        if rank == faulty and state.step == at:
            if kind == "fail":
                raise ValueError("no more photos.")
            if kind == "full":
                os.fsync = _full
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        epoch, losses = state.epoch, step(state, batches)
        for batch in batches:
            indices = " ".join(map(str, batch.indices.tolist()))
            with (folder / f"{run}-{rank}.txt").open("a") as file:
                file.write(f"{epoch} {state.step} {indices}\n")
        return losses

    loop.train_step = train_step


def _full(file: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fork(folder: Path, number: int, run: dict[str, Any], rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    place = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": run["world"], "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()}, MASTER_ADDR="127.0.0.1")
    with (folder / f"{number}-{rank}.err").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    rank_zero_only.rank = rank  # otherwise the value at import
    _observed(folder, number, rank, run.get("fault", []))
    code = 1
    try:
        code = main([*run["words"], f"trainer.devices={run['world']}"])
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(folder: Path, number: int, run: dict[str, Any]) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [_fork(folder, number, run, rank, port) for rank in range(run["world"])]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    assert threading.active_count() == 1  # a fork copies the calling thread only
    print(json.dumps([_run(Path(sys.argv[1]), number, run) for number, run in enumerate(json.loads(sys.argv[2]))]))

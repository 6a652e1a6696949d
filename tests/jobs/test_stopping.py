"""Commands that are ended leave no process, and no file that is half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from finola.image_io import save_photo
from finola.paper.definitions import Same
from finola.paper.run import plan

COMMANDS = {
    "compress": ["compress", "data", "-o", "out", "--workers", "2", "-m", "waves512"],
    "compare": ["compare", "data", "--methods", "dct:1", "--split", "all", "--workers", "2", "--cache", "cache"],
    "embed": ["embed", "data", "-o", "out", "--workers", "2", "--shard-size", "1", "-m", "waves/64x1@8:32"],
}
STUCK = """
import ctypes, os, signal, sys
from pathlib import Path
from finola.batch.embedding import EmbedTask
from finola.cli.verbs import codec
from finola.compare import runner
from finola.files import replacing

def stuck(*_):
    with replacing(Path("out", f"{os.getpid()}.finola")) as beside:
        beside.write_bytes(b"half a file")
        os.write(1, b"stuck\\n")
        while True:  # without returning to Python, unless a signal arrives
            ctypes.PyDLL(None).pause() if sys.platform == "linux" else signal.pause()

codec.compress_one = runner.Measurement.__call__ = EmbedTask.make = stuck  # in the workers, too, which import this file

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start background jobs with SIGINT ignored
    from finola.cli import main
    sys.exit(main(sys.argv[1:]))
"""
PREPARING = """
import os, signal, sys
from finola.jobs.pool import Pool
from finola.jobs.worker import Terminated, terminating

if __name__ == "__mp_main__":  # in a worker, which imports this file
    os.write(1, b"stuck\\n")
    signal.pause()

if __name__ == "__main__":
    try:
        with terminating(), Pool(2) as pool:
            pool.call(int)
    except Terminated:
        sys.exit(143)
"""
REPRODUCE = """
import sys
from pathlib import Path

from finola.jobs.pool import Pool
from finola.paper.definitions import Same
from finola.paper.run import plan, run_job

if __name__ == "__main__":
    with Pool(1, own_process=True) as pool:
        pool.call(run_job, plan(Same("smoke", "row"), "cpu", 0, "smoke", Path("runs")))
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@contextmanager
def started(script: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script in a process group of its own, which is killed at the end of the block."""
    (folder / "script.py").write_text(script)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "script.py", *arguments]
    with subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **pipes) as process:  # type: ignore
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        ("compress", signal.SIGINT),
        ("compress", signal.SIGTERM),
        ("compare", signal.SIGKILL),
        ("embed", signal.SIGTERM),
        ("embed", signal.SIGKILL),
    ],
)
def test_workers_end_with_their_command(verb: str, number: signal.Signals, tmp_path: Path) -> None:
    for folder in ("data", "out"):
        (tmp_path / folder).mkdir()
    for index in range(4):
        save_photo(torch.rand(3, 64, 64), tmp_path / "data" / f"{index}.png")
    with started(STUCK, tmp_path, *COMMANDS[verb]) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["stuck\n"] * 2
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does on Ctrl-C
        else:
            os.kill(process.pid, number)
        _, error = process.communicate(timeout=120)  # until no process holds the pipes
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number
        assert error.startswith(f"finola {verb}: interrupted") and error.count("\n") == 1
        assert list((tmp_path / "out").rglob("*.part")) == []


def test_workers_that_are_prepared_end_without_a_word(tmp_path: Path) -> None:
    with started(PREPARING, tmp_path) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["stuck\n"] * 2
        process.terminate()
        _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (143, "")


def test_runs_of_reproduce_end_with_it(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    job = plan(Same("smoke", "row"), "cpu", 0, "smoke", tmp_path / "runs")
    job.folder.mkdir(parents=True)
    with started(REPRODUCE, tmp_path) as process, (job.folder / ".lock").open("w") as file:
        while process.poll() is None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # the run has started
                break
            fcntl.flock(file, fcntl.LOCK_UN)
        process.kill()
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for the end of the run
    assert job.status() != "finished"

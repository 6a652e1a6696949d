"""Every job is done once, whichever workers die, and an exception of a job reaches the caller."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from finola.errors import FinolaError, InputError, MissingFileError
from finola.jobs.pool import Packed, Pool
from finola.jobs.worker import ATTEMPTS

LIGHT = {"threads": None, "module": "finola.jobs.pool"}  # workers that do not import torch
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def square(folder: Path, deaths: dict[int, int], job: int) -> int:
    """Kill the process at the first attempts at a job, as many as `deaths` says; each leaves a file."""
    attempts = len(list(folder.glob(f"{job}-*")))
    (folder / f"{job}-{attempts}").touch()
    if attempts < deaths.get(job, 0):
        os.kill(os.getpid(), signal.SIGKILL)
    return job**2


@posix
@pytest.mark.parametrize("own_process", [False, True])
def test_every_job_is_done_once_whichever_workers_die(own_process: bool, tmp_path: Path) -> None:
    rng = random.Random(0)
    deaths = {job: rng.randrange(1, ATTEMPTS) for job in rng.sample(range(7), 3)}
    said: list[str] = []
    with Pool(2, own_process=own_process, say=said.append, **LIGHT) as pool:
        work = Packed(partial(square, tmp_path, deaths))
        assert sorted(pool.run(work, range(7))) == [(job, job**2) for job in range(7)]
    assert len(said) == sum(deaths.values()) and all("SIGKILL" in message for message in said)
    assert len(list(tmp_path.iterdir())) == 7 + len(said)
    assert not multiprocessing.active_children()


@posix
def test_a_job_that_always_ends_its_worker_is_given_up(tmp_path: Path) -> None:
    with (
        pytest.raises(FinolaError, match=f"job 1: .*SIGKILL, {ATTEMPTS} times"),
        Pool(2, **LIGHT) as pool,
    ):
        list(pool.run(partial(square, tmp_path, {1: 99}), range(2), "job {}".format))
    assert len(list(tmp_path.glob("1-*"))) == ATTEMPTS and not multiprocessing.active_children()


@dataclass(frozen=True)
class Batched:
    """Needs less memory with smaller batches: dies with one of more than `most`."""

    batch: int
    most: int

    def __call__(self, job: int) -> int:
        if self.batch > self.most:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.batch

    def smaller(self) -> Batched | None:
        return replace(self, batch=self.batch // 2) if self.batch > 1 else None


@posix
def test_a_worker_that_dies_again_is_followed_by_one_with_less_memory() -> None:
    with Pool(2, **LIGHT) as pool:
        assert list(pool.run(Packed(Batched(8, most=4)), [0])) == [(0, 4)]


class Incomplete(ValueError):
    """An exception that cannot be unpickled."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def fail(error: type[Exception]) -> None:
    if error is Incomplete:
        raise Incomplete("half a file", "")
    if error is MissingFileError:
        raise MissingFileError("There is no file.")
    raise OSError(errno.ENOSPC, "No space left", "a.png") if error is OSError else error("defect")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_of_a_job_is_raised_by_the_pool(workers: int) -> None:
    for error, expected, message in (
        (MissingFileError, MissingFileError, "There is no file"),
        (OSError, OSError, "No space left: 'a.png'"),
        (KeyError, KeyError, "defect"),
        (Incomplete, InputError if workers == 2 else Incomplete, "half a file"),
    ):
        with Pool(workers, **LIGHT) as pool, pytest.raises(expected, match=message):
            pool.call(fail, error)


def process_of(job: int) -> int:
    return os.getpid()


def test_jobs_have_processes_of_their_own_if_asked() -> None:
    with Pool(1, own_process=True, **LIGHT) as pool:
        processes = {process for _, process in pool.run(process_of, range(3))}
    assert len(processes) == 3 and os.getpid() not in processes
    with Pool(1) as pool:
        assert dict(pool.run(process_of, range(2))) == {0: os.getpid(), 1: os.getpid()}

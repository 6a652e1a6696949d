"""Shards on Ray, which is started on two cores: the same files as those of one process, also if a worker dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from finola.batch import embed
from finola.batch.embedding import make_task
from finola.batch.shards import Done, Shard, ShardWork, plan
from finola.data.discovery import find_source
from finola.data.sources import evenly
from finola.errors import FinolaError, InputError
from finola.jobs.ray import RayPool, concurrency
from finola.jobs.store import Store
from finola.jobs.worker import ATTEMPTS

MODEL, PHOTOS = "waves/64x1@8:32", 6


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    pytest.importorskip("ray", reason="needs the extra ray")
    if sys.platform == "win32":
        pytest.skip("signals of POSIX")
    with RayPool(2) as pool:
        yield pool


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("*.parquet")}


def test_a_killed_worker_loses_no_row(pool: RayPool, tmp_path: Path) -> None:
    expected = embed("smoke", tmp_path / "one", MODEL, split="val", limit=PHOTOS, shard_size=2)
    settings = {"crop": None, "whole": False, "budget": None, "per_tile": None, "features": None}
    settings |= {"dtype": "float32", "batch": 32, "device": "cpu", "check_device": True}
    out, marker = tmp_path / "ray", str(tmp_path / "marker")
    source = evenly(find_source("smoke", "val"), PHOTOS)
    work = ShardWork(make_task(MODEL, **settings), source, str(out), "run")  # type: ignore[arg-type]

    def killed(shard: Shard) -> Done:  # a local function, so that the workers of Ray need not import this module
        write = Store.write

        def kill(store: Store, name: str, data: bytes) -> None:
            if name == "part-00001.parquet" and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            write(store, name, data)

        Store.write = kill  # type: ignore[method-assign]
        try:
            return work(shard)
        finally:
            Store.write = write  # type: ignore[method-assign]

    found = dict(pool.run(killed, plan(PHOTOS, 2)))
    assert os.path.exists(marker) and sum(done.record.rows for done in found.values()) == expected.rows == PHOTOS
    assert contents(out) == contents(tmp_path / "one")


def test_embed_writes_the_same_files_with_ray(pool: RayPool, tmp_path: Path) -> None:
    for engine in ("local", "ray"):
        embed("smoke", tmp_path / engine, MODEL, split="val", limit=4, shard_size=2, device="cpu", engine=engine)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_job_that_always_ends_its_worker_is_given_up(pool: RayPool, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def die(job: int) -> None:
        open(os.path.join(folder, str(len(os.listdir(folder)))), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(FinolaError, match=f"{ATTEMPTS} times"):
        list(pool.run(die, [0]))
    assert len(os.listdir(folder)) == ATTEMPTS


def test_an_exception_of_a_job_is_raised(pool: RayPool) -> None:
    def fail(job: int) -> None:
        raise InputError(f"job {job}")

    with pytest.raises(InputError, match="job 3"):
        list(pool.run(fail, [3]))


@pytest.mark.parametrize(
    ("device", "workers", "gpus", "expected"),
    [("auto", None, 2, (2, 1)), ("cuda", 5, 2, (2, 1)), ("auto", None, 0, (8, 0)), ("cpu", 3, 2, (3, 0))],
)
def test_tasks_have_a_gpu_each_if_the_cluster_has_any(device, workers, gpus, expected) -> None:
    assert concurrency(device, workers, {"CPU": 8.0, "GPU": gpus}) == expected


def test_a_cluster_without_gpu_is_an_error_on_a_gpu_device() -> None:
    with pytest.raises(InputError):
        concurrency("cuda", None, {"CPU": 8.0})

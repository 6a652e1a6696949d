"""Shards on a Ray cluster with Ray Data, which schedules them on actors and restarts those that die.

Ray Data retries without limit, so each attempt at a shard is counted in a file of the output folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping

import numpy as np

from finola.batch.jobs import Done, Engine, Failure, Job, Shard, result_from_json, result_to_json
from finola.batch.storage import Folder
from finola.data import available_cores
from finola.errors import InputError, require


class ShardActor:
    """An actor of Ray Data that does one shard per batch, by the same function as the workers of one machine."""

    def __init__(self, job: Job) -> None:
        import torch

        torch.set_num_threads(1)
        self.job = job

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        shards = [Shard(*map(int, row)) for row in zip(batch["number"], batch["start"], batch["stop"], strict=True)]
        return {"result": [result_to_json(do_counted(self.job, shard)) for shard in shards]}


def do_counted(job: Job, shard: Shard) -> Done | Failure:
    """Do a shard unless it was tried often enough, with less memory after several attempts."""
    folder = Folder(job.out)
    attempt = 1 + len(folder.read(attempts_file(shard)) or b"")
    job_of_attempt = job.for_attempt(attempt)
    if job_of_attempt is None:
        return Failure(f"{shard} ended its worker {attempt - 1} times: use a smaller batch, or remove these photos.")
    folder.write(attempts_file(shard), b"." * attempt)
    result = job_of_attempt.attempt(shard)
    folder.remove(attempts_file(shard))
    if attempt > 1 and isinstance(result, Done):
        note = f"{shard} was done again after its worker had died (attempt {attempt})."
        return result._replace(notes=(*result.notes, note))
    return result


def attempts_file(shard: Shard) -> str:
    """Name of the file that has one byte for each attempt at a shard that is not finished."""
    return shard.record.replace(".json", ".attempts")


def run_on_ray(job: Job, shards: list[Shard], workers: int | None) -> Engine:
    """Do the shards on the cluster that RAY_ADDRESS names, or on this machine; by default with one actor per CPU."""
    require("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    import ray.data

    folder = Folder(job.out)
    for shard in shards:
        folder.remove(attempts_file(shard))
    # Threads of Ray, and its shutdown, print messages about actors that died to standard output, which may be parsed.
    with contextlib.redirect_stdout(sys.stderr):
        started = not ray.is_initialized()
        if started:
            # The limit of a local instance is the number of workers, also if there are fewer cores.
            cpus = None if "RAY_ADDRESS" in os.environ else max(workers or 1, available_cores())
            handler = signal.getsignal(signal.SIGTERM)
            ray.init(num_cpus=cpus, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
            if threading.current_thread() is threading.main_thread():  # Ray has replaced the handler
                signal.signal(signal.SIGTERM, handler)
        try:
            device = getattr(job.task, "device", "cpu")
            yield from _results(job, shards, *actors(device, workers, ray.cluster_resources()))
        finally:
            if started:
                ray.shutdown()


def actors(device: str, workers: int | None, cluster: Mapping[str, float]) -> tuple[int, int]:
    """Number of actors and GPUs of each, for the resources of a cluster; actors beyond its GPUs would wait forever.

    >>> actors("auto", None, {"CPU": 16, "GPU": 2}), actors("auto", 4, {"CPU": 16}), actors("cpu", None, {"CPU": 16})
    ((2, 1), (4, 0), (16, 0))
    """
    gpus = int(cluster.get("GPU", 0))
    if device.startswith("cuda") and gpus == 0:
        raise InputError(f"The Ray cluster has no GPU for device {device!r}; use the device auto or cpu.")
    if device.startswith("cuda") or (device == "auto" and gpus):
        return min(workers or gpus, gpus), 1
    return workers or max(1, int(cluster.get("CPU", 1))), 0


def _results(job: Job, shards: list[Shard], workers: int, gpus: int) -> Engine:
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"number": shard.number, "start": shard.start, "stop": shard.stop} for shard in shards]
    data = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        ShardActor,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(rows))),
        num_cpus=1,
        num_gpus=gpus or None,
    )
    for row in data.iter_rows():
        result = result_from_json(row["result"])
        yield result
        if isinstance(result, Failure):
            return

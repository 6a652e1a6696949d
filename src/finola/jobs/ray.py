"""A pool on a Ray cluster, with the methods of `finola.jobs.pool.Pool`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self, TypeVar

from finola.errors import FinolaError, InputError, require
from finola.jobs.pool import REMEDY, available_cores
from finola.jobs.worker import ATTEMPTS, SAME, answer, result_of

Job = TypeVar("Job")
Result = TypeVar("Result")


class RayPool:
    """Tasks on the cluster that RAY_ADDRESS names, or on this machine; by default one per CPU, or per GPU, at a time.

    Ray does the job of a worker that has died once more with the same memory, and this class with less.
    """

    def __init__(self, workers: int | None, device: str = "cpu") -> None:
        require("ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        os.environ.setdefault("RAY_task_oom_retries", str(SAME - 1))  # by default without limit
        import ray

        # Threads of Ray, and its shutdown, print messages about workers that died to standard output, which may be
        # parsed.
        self._context = contextlib.ExitStack()
        self._context.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not ray.is_initialized():
            # The limit of a local instance is the number of workers, also if there are fewer cores.
            cpus = None if "RAY_ADDRESS" in os.environ else max(workers or 1, available_cores())
            handler = signal.getsignal(signal.SIGTERM)
            ray.init(num_cpus=cpus, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
            self._context.callback(ray.shutdown)
            if threading.current_thread() is threading.main_thread():  # Ray has replaced the handler
                signal.signal(signal.SIGTERM, handler)
        with self._context:
            self._workers, gpus = concurrency(device, workers, ray.cluster_resources())
            self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=SAME - 1)(_answer)
            self._context = self._context.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """`function(*arguments)`, computed by this process."""
        return function(*arguments)

    def run(
        self, work: Callable[[Job], Result], jobs: Sequence[Job], name: Callable[[Job], str] = str
    ) -> Iterator[tuple[int, Result]]:
        """Yield the index and the result of every job, as they are finished. An exception of a job is raised here."""
        import ray
        from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

        shared = ray.put(work)
        waiting = deque((number, SAME) for number in range(len(jobs)))
        running: dict[Any, tuple[int, int]] = {}
        while waiting or running:
            while waiting and len(running) < self._workers:
                number, attempt = waiting.popleft()
                task = self._task if attempt == SAME else self._task.options(max_retries=0)
                running[task.remote([shared], jobs[number], attempt)] = number, attempt
            (done,), _ = ray.wait(list(running))
            number, attempt = running.pop(done)
            try:
                result = ray.get(done)
            except (NodeDiedError, OutOfMemoryError, WorkerCrashedError):
                if attempt >= ATTEMPTS:
                    raise FinolaError(f"{name(jobs[number])} ended its worker {attempt} times. {REMEDY}") from None
                waiting.appendleft((number, attempt + 1))
            else:
                yield number, result_of(result)


def _answer(work: list[Any], job: Any, attempt: int) -> bytes:
    """`answer` in a process of Ray, which gives PyTorch one thread by OMP_NUM_THREADS."""
    return answer(_fetched(work[0]), job, attempt)


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Callable[[Any], Any]:
    """The function of a run, fetched and unpickled once per process."""
    import ray

    work: Callable[[Any], Any] = ray.get(reference)
    return work


def concurrency(device: str, workers: int | None, cluster: Mapping[str, float]) -> tuple[int, int]:
    """Number of tasks at a time and GPUs of each, for the resources of a cluster; more would wait for its GPUs.

    >>> concurrency("auto", None, {"CPU": 16, "GPU": 2}), concurrency("auto", 4, {"CPU": 16})
    ((2, 1), (4, 0))
    """
    gpus = int(cluster.get("GPU", 0))
    if device.startswith("cuda") and gpus == 0:
        raise InputError(f"The Ray cluster has no GPU for device {device!r}; use the device auto or cpu.")
    if device.startswith("cuda") or (device == "auto" and gpus):
        return min(workers or gpus, gpus), 1
    return workers or max(1, int(cluster.get("CPU", 1))), 0

"""Worker processes on this machine, supervised: the shard of a worker that dies is done again by a new one."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from finola.batch.jobs import ATTEMPTS, Done, Engine, Failure, Job, Shard, Task
from finola.workers import interrupts_blocked, start_worker, stop_workers


def run_locally(job: Job, shards: list[Shard], workers: int) -> Engine:
    """Do the shards in this process, or in several. Ends with the first `Failure`."""
    if workers == 1:
        for shard in shards:
            result = job.attempt(shard)
            yield result
            if isinstance(result, Failure):
                return
        return
    supervisor = _Supervisor(job, shards, min(workers, len(shards)))
    try:
        yield from supervisor.results()
    finally:
        supervisor.stop()


class _Worker:
    """A process, the pipe to it, and the shard on which it works."""

    def __init__(self, job: Job, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.shard: Shard | None = None
        self.connection, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(other, job, threads), daemon=True)
        with interrupts_blocked():
            self.process.start()
        other.close()

    def give(self, shard: Shard, task: Task | None) -> None:
        """Send a shard, and a task if it is not that of the job."""
        self.shard = shard
        with suppress(OSError):  # a worker that has just died is noticed by its sentinel
            self.connection.send((shard, task))

    def receive(self) -> Done | Failure | None:
        """Result of the shard; None if the process has died."""
        try:
            result: Done | Failure = self.connection.recv()
        except (EOFError, OSError):
            return None
        return result


class _Supervisor:
    def __init__(self, job: Job, shards: list[Shard], workers: int) -> None:
        from finola.data import available_cores

        self.job, self.waiting = job, deque(shards)
        self.attempts = dict.fromkeys((shard.number for shard in shards), 0)
        self.threads = max(1, available_cores() // workers)
        self.workers = [_Worker(job, self.threads) for _ in range(workers)]

    def results(self) -> Iterator[Done | Failure | str]:
        for worker in self.workers:
            self._next(worker)
        while busy := [worker for worker in self.workers if worker.shard is not None]:
            ready = set(wait([handle for worker in busy for handle in (worker.connection, worker.process.sentinel)]))
            for worker in busy:
                if worker.connection not in ready and worker.process.sentinel not in ready:
                    continue
                result = worker.receive() or self._replace(worker)
                yield result
                if isinstance(result, Failure):
                    return
                if isinstance(result, Done):
                    self._next(worker)

    def _next(self, worker: _Worker) -> None:
        """Give a worker the next shard, if there is one."""
        worker.shard = None
        if self.waiting:
            shard = self.waiting.popleft()
            self.attempts[shard.number] += 1
            task = self._task_of(self.attempts[shard.number])
            worker.give(shard, None if task is self.job.task else task)

    def _task_of(self, attempt: int) -> Task | None:
        job = self.job.for_attempt(attempt)
        return None if job is None else job.task

    def _replace(self, worker: _Worker) -> Failure | str:
        """Replace a worker that has died, and queue its shard again unless it was tried often enough."""
        shard = worker.shard
        assert shard is not None
        worker.process.join()
        worker.connection.close()
        worker.shard = None
        what = f"{shard}: the worker {_describe(worker.process.exitcode)}"
        attempt = self.attempts[shard.number] + 1
        task = self._task_of(attempt)
        if task is None:
            return Failure(f"{what}, {ATTEMPTS} times: use fewer workers or a smaller batch, or remove these photos.")
        self.waiting.appendleft(shard)
        less = "" if task is self.job.task else ", with a smaller batch"
        self.workers[self.workers.index(worker)] = fresh = _Worker(self.job, self.threads)
        self._next(fresh)
        return f"{what}; the shard is done again{less} (attempt {attempt} of {ATTEMPTS})."

    def stop(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.connection.close()
        stop_workers(worker.process for worker in self.workers)


def _describe(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _work(connection: Connection[Any, Any], job: Job, threads: int) -> None:
    """Main function of a worker: do shards until the pipe is closed."""
    start_worker(threads)
    while True:
        try:
            shard, task = connection.recv()
        except (EOFError, OSError):
            return
        result = (replace(job, task=task) if task is not None else job).attempt(shard)
        try:
            connection.send(result)
        except OSError:  # the main process has ended
            return

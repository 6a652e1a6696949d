"""Supervised worker processes on this machine.

Importing this module does not import torch, so that workers can start before their command imports it.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from finola.errors import FinolaError
from finola.jobs.worker import (
    ATTEMPTS,
    SAME,
    interrupts_blocked,
    result_of,
    serve,
    stop_workers,
    with_less_memory,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Job = TypeVar("Job")
Result = TypeVar("Result")

REMEDY = "If memory ran out, use fewer workers, a smaller batch or smaller photos."


class Packed:
    """A function that only the process that calls it unpickles, with all modules that this imports.

    >>> Packed(len)([1, 2])
    2
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._data = pickle.dumps(function)

    def __getstate__(self) -> dict[str, bytes]:
        return {"_data": self._data}

    @cached_property
    def function(self) -> Any:
        return pickle.loads(self._data)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def smaller(self) -> Any:
        """The function with less memory; see `with_less_memory`."""
        return with_less_memory(self.function, SAME + 1)


class Pool:
    """Worker processes that apply a function to jobs. If one dies, a new one does its job again, at most four times.

    The workers start at once, and import `module` while the caller prepares the jobs. With one worker, jobs are done in
    this process instead. With `own_process`, every job has a new process, which may start others, and which SIGTERM
    asks to end: it is waited for. `threads` are those of PyTorch in each worker; `say` is called with messages.

    >>> with Pool(1) as pool:
    ...     list(pool.run(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    """

    def __init__(
        self,
        workers: int,
        *,
        threads: int | None = 1,
        module: str = "torch",
        own_process: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._own_process, self._say = own_process, say
        start = partial(_start, threads, module, own_process)
        self._workers = [_Worker(start) for _ in range(workers)] if workers > 1 or own_process else []
        if not own_process:
            for worker in self._workers:
                worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers, which remove their temporary files."""
        for worker in self._workers:
            worker.disconnect()
        stop_workers([worker.process for worker in self._workers if worker.process], wait=self._own_process)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """`function(*arguments)`, computed by a worker."""
        ((_, result),) = self.run(partial(_apply, function), [arguments], lambda _: "The preparation of the jobs")
        return result

    def run(
        self, work: Callable[[Job], Result], jobs: Sequence[Job], name: Callable[[Job], str] = str
    ) -> Iterator[tuple[int, Result]]:
        """Yield the index and the result of every job, as they are finished. An exception of a job is raised here.

        `name` describes a job in messages. After an exception, or if the results are not read to the end, the pool can
        only be closed.
        """
        if not self._workers:
            for number, job in enumerate(jobs):
                yield number, work(job)
            return
        waiting = deque((number, 1) for number in range(len(jobs)))
        while True:
            for worker in self._workers:
                if worker.task is None and waiting:
                    number, attempt = waiting.popleft()
                    worker.give(work, jobs[number], (number, attempt))
            if not any(worker.task for worker in self._workers):
                return
            for worker in _ready(self._workers):
                assert worker.task is not None
                number, attempt = worker.task
                answer = worker.receive()
                if answer is not None:
                    yield number, result_of(answer)
                else:
                    self._lost(name(jobs[number]), worker.exit_reason(), attempt)
                    waiting.appendleft((number, attempt + 1))
                if answer is None or self._own_process:
                    worker.end()

    def _lost(self, job: str, reason: str, attempt: int) -> None:
        """Report that a worker has died. Raises FinolaError after the last attempt."""
        if attempt >= ATTEMPTS:
            raise FinolaError(f"{job}: the worker {reason}, {attempt} times. {REMEDY}")
        if self._say is not None:
            self._say(f"{job}: the worker {reason}; it is done again (attempt {attempt + 1} of {ATTEMPTS}).")


class _Worker:
    """A process, the pipe to it, and the number of its job with that of the attempt."""

    def __init__(self, start: Callable[[], tuple[BaseProcess, Connection[Any, Any]]]) -> None:
        self._start = start
        self.process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._work: object = None  # that the process has
        self.task: tuple[int, int] | None = None

    def start(self) -> None:
        self.process, self._connection = self._start()

    def give(self, work: object, job: object, task: tuple[int, int]) -> None:
        """Send a job, and the function if the process does not have it. The process is started if there is none."""
        if self.process is None:
            self.start()
        assert self._connection is not None
        self.task = task
        data = pickle.dumps((None if work is self._work else work, job, task[1]))
        self._work = work
        with suppress(OSError):  # a worker that has just died is noticed by its sentinel
            self._connection.send_bytes(data)

    def handles(self) -> list[Any]:
        assert self.process is not None
        return [self._connection, self.process.sentinel]

    def receive(self) -> bytes | None:
        """Answer to the job; None if the process has died."""
        assert self._connection is not None
        self.task = None
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def exit_reason(self) -> str:
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def end(self) -> None:
        """Wait for the end of the process. The next job starts another one."""
        assert self.process is not None
        self.disconnect()
        self.process.join()
        self.process = self._connection = self._work = None


def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until a worker with a job has an answer or has died."""
    from multiprocessing.connection import wait

    busy = [worker for worker in workers if worker.task]
    ready = set(wait([handle for worker in busy for handle in worker.handles()]))
    return [worker for worker in busy if not ready.isdisjoint(worker.handles())]


def _start(threads: int | None, module: str, own_process: bool) -> tuple[BaseProcess, Connection[Any, Any]]:
    from multiprocessing import get_context

    context = get_context("spawn")  # a forked process would have locks of threads that it does not have
    connection, other = context.Pipe()
    process = context.Process(target=serve, args=(other, threads, module, own_process), daemon=not own_process)
    with interrupts_blocked():
        process.start()
    other.close()
    return process, connection


def _apply(function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
    return function(*arguments)


def available_cores() -> int:
    """Number of CPU cores available to this process: its affinity if supported (Linux), otherwise all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

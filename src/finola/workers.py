"""Worker processes on this machine, which end with the process that started them, also if it is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from finola.errors import FinolaError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.process import BaseProcess

STOP_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL of a worker."""
PR_SET_PDEATHSIG = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def terminating() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside the block, so that workers are ended and temporary files are removed."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def worker_pool(
    workers: int, prepare: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[Callable[..., Future[Any]]]:
    """Yield `submit(function, *arguments)` of a pool whose workers have one thread and run `prepare` first.

    An exception in the block, such as an interruption, terminates the workers, which remove their temporary files.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    others = active_children()
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_pooled, (prepare, *arguments))

    def submit(function: Callable[..., Any], *task: Any) -> Future[Any]:
        with interrupts_blocked():
            return pool.submit(_run, function, *task)

    try:
        yield submit
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        stop_workers(process for process in active_children() if process not in others)
        if isinstance(error, BrokenProcessPool):
            message = "A worker process was killed, probably because memory ran out. Use fewer --workers."
            raise FinolaError(message) from error
        raise
    finally:
        pool.shutdown()


def _start_pooled(prepare: Callable[..., None] | None, *arguments: Any) -> None:
    start_worker(threads=1)
    if prepare is not None:
        _run(prepare, *arguments)


def _run(function: Callable[..., Any], *task: Any) -> Any:
    try:
        return function(*task)
    except SystemExit:  # the pool would treat it as a result, or print it, and continue with the next task
        os._exit(1)


def start_worker(threads: int) -> None:
    """Prepare this worker process, first of all. Its main process handles Ctrl-C; SIGTERM raises SystemExit.

    Until the end of the preparation, SIGTERM ends the process at once: there are no files to remove.
    """
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, _exit)


def _exit(*_: object) -> None:
    """End by an exception, so that temporary files are removed.

    A signal to the process group is followed by that of the main process, which must not interrupt the end.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _end_with_parent() -> None:
    """End this process when its parent ends, in the middle of whatever it does."""
    import ctypes
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
    if sys.platform == "linux":
        # The thread cannot run while a library holds the GIL; the kernel needs no thread. It waits for the thread that
        # started this process, not for the whole process: the functions that start workers return after them.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_workers(processes: Iterable[BaseProcess]) -> None:
    """End worker processes by SIGTERM, then SIGKILL."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Defer SIGINT until the end of the block; processes started inside never receive it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

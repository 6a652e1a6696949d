"""Process a list of tasks in this process or in several worker processes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from finola.cli.output import describe_error, is_bad_input, print_error, progress
from finola.errors import FinolaError


class Failure(NamedTuple):
    """Error message of a failed task; unlike some exceptions, it can be pickled."""

    message: str


def work_through(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], args: argparse.Namespace, what: str
) -> tuple[list[Any], int]:
    """Call `work(*task)` for every task and return the results and the exit code.

    Tasks that fail because of invalid input are reported on standard error; the others are still processed.
    """
    results = list(progress(_each(work, tasks, args.workers), len(tasks), what, quiet=args.json))
    failures = [result for result in results if isinstance(result, Failure)]
    for failure in failures:
        print_error(args.verb, failure.message)
    return [result for result in results if not isinstance(result, Failure)], 2 if failures else 0


def _attempt(work: Callable[..., Any], *task: Any) -> Any:
    try:
        return work(*task)
    except Exception as error:  # any class, because libraries define their own; defects are re-raised
        if not is_bad_input(error):
            raise
        return Failure(describe_error(error))


def _each(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int) -> Iterator[Any]:
    """Yield results in order. On interruption, worker processes are terminated and remove their temporary files."""
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield _attempt(work, *task)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    others = active_children()
    pool = ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), _start_worker)
    try:
        with _interrupts_blocked():  # inherited by the workers: only this process handles Ctrl-C
            futures = [pool.submit(partial(_attempt_in_worker, work), *task) for task in tasks]
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise FinolaError(
            "A worker process was killed, probably because memory ran out. Use fewer --workers."
        ) from error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Defer SIGINT until the end of the block; processes started inside never receive it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that temporary files are removed


def _attempt_in_worker(work: Callable[..., Any], *task: Any) -> Any:
    try:
        return _attempt(work, *task)
    except SystemExit:  # the pool would treat it as a result and continue with the next task
        os._exit(1)

"""One piece of work after the other, in this process or in several."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from finola.cli.output import complain, is_bad_input, progress, sentence
from finola.errors import FinolaError


class Failure(NamedTuple):
    """Why one piece of work failed; unlike some exceptions, it can be sent between processes."""

    sentence: str


def work_through(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], args: argparse.Namespace, what: str
) -> tuple[list[Any], int]:
    """Call `work(*task)` for every task. Returns the results and the exit code.

    A task that fails because of its input is reported on standard error, and the others are done.
    """
    results = list(progress(_each(work, tasks, args.workers), len(tasks), what, quiet=args.json))
    failures = [result for result in results if isinstance(result, Failure)]
    for failure in failures:
        complain(args.verb, failure.sentence)
    return [result for result in results if not isinstance(result, Failure)], 2 if failures else 0


def _attempt(work: Callable[..., Any], *task: Any) -> Any:
    try:
        return work(*task)
    except Exception as error:  # of any class, because libraries have their own; a defect is raised again
        if not is_bad_input(error):
            raise
        return Failure(sentence(error))


def _each(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int) -> Iterator[Any]:
    """The results in order. An interruption ends the worker processes, which remove their temporary files."""
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
        with _interrupts_blocked():  # inherited by the workers: only this process answers Ctrl-C
            futures = [pool.submit(partial(_attempt_in_worker, work), *task) for task in tasks]
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise FinolaError("A worker process was killed, probably for lack of memory: use fewer --workers.") from error
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
    """Deliver SIGINT to this process afterwards; processes started inside never receive it."""
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
    except SystemExit:  # the pool would take it for a result and go on with the next task
        os._exit(1)

"""What a worker process does: it answers jobs, and ends with the process that started it, also if that is killed."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from finola.errors import FinolaError, InputError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

SAME, ATTEMPTS = 2, 4
"""Attempts at a job with unchanged memory, and in all."""
STOP_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL of a worker."""
PR_SET_PDEATHSIG = 1


def with_less_memory(work: Any, attempt: int) -> Any:
    """The function for the first, second, … attempt at a job, whose workers may have died because memory ran out.

    A function may have a method `smaller`, which returns it with less memory, or None if that is impossible.
    """
    for _ in range(attempt - SAME):
        work = (work.smaller() if hasattr(work, "smaller") else None) or work
    return work


def serve(connection: Connection[Any, Any], threads: int | None, module: str, own_process: bool) -> None:
    """Main function of a worker: answer jobs until the pipe is closed."""
    _end_with_parent(signal.SIGTERM if own_process else None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with suppress(ImportError):  # raised again, and reported, by the first job
        import_module(module)
    signal.signal(signal.SIGTERM, _exit)  # before this line, SIGTERM ends the process at once: there are no files
    work: Any = None
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            given, job, attempt = pickle.loads(data)
        except Exception as error:
            reply = _pickled(error)
        else:
            work = work if given is None else given
            reply = answer(work, job, attempt)
        try:
            connection.send_bytes(reply)
        except OSError:  # the main process has ended
            return


def answer(work: Callable[[Any], Any], job: Any, attempt: int = 1) -> bytes:
    """Result of a job, or its exception, for `result_of` in another process."""
    try:
        return pickle.dumps((with_less_memory(work, attempt)(job), None))
    except Exception as error:
        return _pickled(error)


def result_of(data: bytes) -> Any:
    """Return the result of `answer`, or raise the exception."""
    result, error = pickle.loads(data)
    if error is not None:
        raise error
    return result


def _pickled(error: Exception) -> bytes:
    """An exception with its traceback as a note; some classes of libraries cannot be pickled, and are replaced."""
    text = f"In a worker process:\n{''.join(traceback.format_exception(error))}"
    try:
        error.add_note(text)
        data = pickle.dumps((None, error))
        pickle.loads(data)
    except Exception:
        expected = isinstance(error, FinolaError | ValueError | OSError)
        data = pickle.dumps((None, InputError(str(error)) if expected else RuntimeError(text)))
    return data


def _exit(*_: object) -> None:
    """End by an exception, so that temporary files are removed.

    A signal to the process group is followed by that of the main process, which must not interrupt the end.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _end_with_parent(number: signal.Signals | None) -> None:
    """End this process when its parent ends: by a signal, or at once, in the middle of whatever it does."""
    import ctypes
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        wait([sentinel])
        if number is None:
            os._exit(1)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
    if sys.platform == "linux" and number is None:
        # The thread cannot run while a library holds the GIL; the kernel needs no thread. It waits for the thread that
        # started this process, not for the whole process: commands start their workers in the main thread.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_workers(processes: Sequence[BaseProcess], *, wait: bool = False) -> None:
    """End worker processes by SIGTERM and, unless they are to be waited for, after some seconds by SIGKILL."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(None if wait else STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


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

"""Connected visitors, so that jobs of visitors who have left can be cancelled."""

from __future__ import annotations

import ctypes
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

REMEMBERED = 1000  # ended sessions that are remembered; older ones have no queued jobs
POLL = 0.2  # seconds between two checks while waiting for another visitor's job


def release_memory() -> None:
    """Return freed memory to the system, where the C library is glibc.

    Jobs run in many threads, and glibc keeps what each of them has freed: the process would grow with their number.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library; Windows has no default one
        return


class VisitorLeft(Exception):
    """The visitor has closed the page, or the server is stopping: the result is no longer needed."""


class Visitors:
    """Open connections by session. A session has left when all its connections are closed.

    >>> visitors = Visitors()
    >>> with visitors.connected("one"):
    ...     visitors.check("one")
    >>> visitors.check("one")
    Traceback (most recent call last):
    finola.app.visitors.VisitorLeft: one
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._left: OrderedDict[str, None] = OrderedDict()
        self._stopped = False
        self._lock = Lock()
        self._working = Lock()

    @contextmanager
    def connected(self, session: str) -> Iterator[None]:
        """Count one connection of a session while the block runs."""
        with self._lock:
            self._open[session] += 1
            self._left.pop(session, None)
        try:
            yield
        finally:
            with self._lock:
                self._open[session] -= 1
                if not self._open[session]:
                    del self._open[session]
                    self._left[session] = None
                    if len(self._left) > REMEMBERED:
                        self._left.popitem(last=False)

    def returned(self, session: str) -> None:
        """Mark a session as present again when it sends a request, before it reconnects."""
        with self._lock:
            self._left.pop(session, None)

    def check(self, session: str | None) -> None:
        """Raise `VisitorLeft` if the session has left or the server is stopping."""
        with self._lock:
            if self._stopped or session in self._left:
                raise VisitorLeft(session)

    def stop(self) -> None:
        """Cancel the jobs of all sessions when the server stops."""
        self._stopped = True

    @contextmanager
    def working(self, check: Callable[[], None]) -> Iterator[None]:
        """Run one large job at a time, so that memory does not grow with the number of visitors."""
        check()
        while not self._working.acquire(timeout=POLL):
            check()
        try:
            check()
            yield
        finally:
            release_memory()
            self._working.release()

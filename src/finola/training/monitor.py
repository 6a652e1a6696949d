"""Detection of lost processes in distributed training.

A collective operation waits for every process. If one of them was killed, or its machine was switched off, the others
would wait until the timeout of the process group, which is half an hour by default and cannot be a minute, because
writing a checkpoint or validating may take longer than that. Therefore a thread of every process sends heartbeats to a
store on rank 0, whose thread decides which process is lost; the threads of the others read the decision.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch.distributed

from finola.errors import FinolaError, first_line
from finola.training import callbacks

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: the command can be repeated
INTERVAL = 1.0  # seconds between heartbeats
SUSPICION = 5.0  # seconds without a heartbeat that suffice after the network reported a closed connection
GRACE_PERIOD = 5.0  # seconds between a decision and the forced end of a process that waits in a collective operation
_VERDICT, _SUSPECTED, _DONE = "verdict", "suspected", b"done"
_NETWORK_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset", "broken pipe", "socket", "timed out")


class LostRankError(FinolaError, RuntimeError):
    """Another process of a distributed run was lost or failed. `announce`: whether this process should print it."""

    def __init__(self, message: str, announce: bool = True) -> None:
        super().__init__(message)
        self.announce = announce


@dataclass(frozen=True)
class Verdict:
    """Rank that ended the run, and whether it was lost without a message or failed with one."""

    rank: int
    kind: str  # lost or failed
    reason: str

    def to_bytes(self) -> bytes:
        return f"{self.rank}\n{self.kind}\n{self.reason}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Verdict:
        rank, kind, reason = data.decode().split("\n", 2)
        return cls(int(rank), kind, reason)

    def __str__(self) -> str:
        return f"rank {self.rank} {'was lost' if self.kind == 'lost' else 'failed'}: {self.reason}"


def is_network_error(error: BaseException) -> bool:
    """Whether an exception reports a broken connection to another process, rather than a failure of this one."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _NETWORK_WORDS)


class RankMonitor:
    """Heartbeats of all processes of a run, as a context in which the run takes place.

    An exception of this process is reported to the others. An exception caused by the loss of another process becomes a
    LostRankError. `timeout` is the time in seconds without a heartbeat after which a process is lost. `advice` returns
    the end of the message, which says how to resume.
    """

    def __init__(self, timeout: float, advice: Callable[[], str]) -> None:
        self.timeout, self.advice = timeout, advice
        self.verdict: Verdict | None = None
        self.rank, self.world = 0, 1
        self._children: dict[int, subprocess.Popen[Any]] = {}  # by rank
        self._store: Any = None
        self._decided, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            explained = self._explain(error) if error is not None else None
        finally:
            self._stop()
        if explained is not None:
            raise explained from error

    def adopt(self, children: list[subprocess.Popen[Any]], first_rank: int) -> None:
        """Watch the processes that Lightning started on this machine, instead of Lightning.

        Lightning would kill this process without a message. It watches a process as long as it is in its list.
        """
        self._children = dict(enumerate(children, first_rank + 1))
        children.clear()
        if self._children:
            self._launch()

    def start(self, rank: int, world: int, share: Callable[[Any], Any]) -> None:
        """Start sending heartbeats. `share` broadcasts an object of rank 0 to all ranks."""
        if self._store is not None or world == 1:
            return
        self.rank, self.world = rank, world
        open_store: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]  # documented, but not in __all__
        host, limit = os.environ.get("MASTER_ADDR", "localhost"), timedelta(seconds=self.timeout)
        store: Any = None
        if rank == 0:
            store = open_store(host, 0, None, True, timeout=limit, wait_for_workers=False)
            for key in (_VERDICT, _SUSPECTED, *map(_beat_of, range(world))):
                store.set(key, b"")
        port = share(store.port if store is not None else None)
        self._store = store or open_store(host, port, None, False, timeout=limit)
        self._launch()

    def _explain(self, error: BaseException) -> LostRankError | None:
        """Explain an exception of this process by the loss of another one, or report it to the others.

        Returns None if the exception is the failure of this process itself.
        """
        if self._store is None and not self._children:
            return None
        if is_network_error(error) and self._ask():
            assert self.verdict is not None
            return LostRankError(self.message(), self._announces())
        self._publish(Verdict(self.rank, "failed", first_line(error)))
        return None

    def message(self) -> str:
        """Why the run ended, and how to resume it."""
        verdict = str(self.verdict)
        return f"{verdict[0].upper()}{verdict[1:]}; {self.advice()}"

    def _stop(self) -> None:
        """Stop sending heartbeats. Rank 0 waits for the others, because they need its store until they have stopped."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self.timeout)
        if self._store is not None:
            self._attempt(lambda: self._store.set(_beat_of(self.rank), _DONE))
            if self.rank == 0:
                lost = {self.verdict.rank} if self.verdict is not None else set()
                self._wait_for(set(range(1, self.world)) - lost)
            self._store = None

    def _launch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rank-monitor", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        beats: dict[int, tuple[bytes, float]] = {}
        count = 0
        while self.verdict is None and not self._ended.wait(INTERVAL):
            count += 1
            self.verdict = self._failed_child() or (self._exchange(count, beats) if self._store is not None else None)
        self._decided.set()
        if self.verdict is not None and not self._ended.wait(GRACE_PERIOD):
            self._exit()

    def _exchange(self, count: int, beats: dict[int, tuple[bytes, float]]) -> Verdict | None:
        """Send a heartbeat and return the decision of rank 0, if there is one."""
        store = self._store
        try:
            store.set(_beat_of(self.rank), str(count).encode())
            verdict = store.get(_VERDICT)
            if verdict:
                return Verdict.from_bytes(verdict)
            if self.rank == 0 and (found := self._silent_rank(beats)):
                store.set(_VERDICT, found.to_bytes())
                return found
        except (RuntimeError, OSError) as error:  # the store is part of the process of rank 0
            return Verdict(0, "lost", f"its heartbeat store does not answer ({first_line(error)})")
        return None

    def _silent_rank(self, beats: dict[int, tuple[bytes, float]]) -> Verdict | None:
        """A rank without a heartbeat for too long. Ranks that finished are not expected to send one."""
        now, others = callbacks.now(), range(1, self.world)
        limit = min(self.timeout, SUSPICION) if self._store.get(_SUSPECTED) else self.timeout
        for rank, value in zip(others, self._store.multi_get([_beat_of(rank) for rank in others]), strict=True):
            if rank not in beats or beats[rank][0] != value:
                beats[rank] = value, now
            elif value != _DONE and now - beats[rank][1] > limit:
                return Verdict(rank, "lost", f"no heartbeat for {now - beats[rank][1]:.0f} s")
        return None

    def _failed_child(self) -> Verdict | None:
        for rank, child in self._children.items():
            if code := child.poll():
                # A child that reported its failure itself is described better by its report.
                reported = self._attempt(lambda: self._store.get(_VERDICT)) if self._store is not None else b""
                if reported:
                    return Verdict.from_bytes(reported)
                reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                return self._publish(Verdict(rank, "lost", f"its process {child.pid} {reason}"))
        return None

    def _publish(self, verdict: Verdict) -> Verdict:
        if self._store is not None:
            self._attempt(lambda: self._store.set(_VERDICT, verdict.to_bytes()))
        return verdict

    def _ask(self) -> bool:
        """Wait for the decision of rank 0 after a broken connection."""
        if self._store is not None:
            self._attempt(lambda: self._store.set(_SUSPECTED, b"1"))
        return self._decided.wait(self.timeout + SUSPICION) and self.verdict is not None

    def _announces(self) -> bool:
        """Whether this rank prints the decision: rank 0, or after the loss of rank 0 one process of each machine."""
        verdict = self.verdict
        if verdict is None or verdict.kind == "failed":  # the failed rank prints its own error
            return self.rank == 0 and verdict is not None and verdict.rank != 0
        return self.rank == 0 or (verdict.rank == 0 and (self.rank == 1 or os.environ.get("LOCAL_RANK") == "0"))

    def _wait_for(self, ranks: Iterable[int]) -> None:
        """Wait until these ranks have stopped, or until they must have ended themselves."""
        keys = [_beat_of(rank) for rank in ranks]
        deadline = callbacks.now() + 2 * GRACE_PERIOD
        while keys and callbacks.now() < deadline:
            values = self._attempt(lambda: self._store.multi_get(keys))
            if not values or all(value == _DONE for value in values):
                return
            threading.Event().wait(INTERVAL / 10)

    def _exit(self) -> None:
        """End this process, whose main thread waits in a collective operation that cannot be interrupted."""
        if self._announces():
            print(f"finola train: {self.message()}.", file=sys.stderr, flush=True)
        if self._store is not None:
            self._attempt(lambda: self._store.set(_beat_of(self.rank), _DONE))
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
        os._exit(EXIT_CODE)

    @staticmethod
    def _attempt(operation: Callable[[], Any]) -> Any:
        """Result of an operation of the store, or None if rank 0 no longer answers."""
        try:
            return operation()
        except (RuntimeError, OSError):
            return None


def _beat_of(rank: int) -> str:
    return f"beat/{rank}"

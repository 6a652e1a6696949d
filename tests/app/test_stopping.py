"""The server cancels jobs of visitors who have left, and stops on signals."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from finola.app.comparison import rebuild
from finola.app.models import open_model
from finola.app.photos import Photo
from finola.app.visitors import VisitorLeft, Visitors

PATIENCE = 60  # seconds until a hanging server fails the test; nothing waits so long otherwise
# The model's work is replaced by jobs that never end by themselves: one asks whether to go on, the other does not.
SERVER = """
import threading
from finola.app import handlers, page, server
from finola.app.visitors import VisitorLeft

def work(photo, opened, quality, check, effort):
    print("COMPUTING", flush=True)
    while True:
        if quality == 1:
            threading.Event().wait()
        try:
            check()
        except VisitorLeft:
            print("ENDED", flush=True)
            raise

def build(*arguments, build=page.build):
    made = build(*arguments)
    print(next(number for number, function in made.fns.items() if function.name == "choose"), flush=True)
    return made

handlers.rebuild, page.build = work, build
server._warm_up = lambda: None
server.serve(port=0)
"""


def compare(port: int, handler: int, session: str, quality: int) -> None:
    """Choose an example photo, as a browser does: its comparison is what computes."""
    body = {"fn_index": handler, "session_hash": session, "data": ["waves512", quality, 0]}
    body["event_data"] = {"choice": "coffee"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/gradio_api/queue/join", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_jobs_of_departed_visitors_are_cancelled_and_a_busy_server_stops(tmp_path: Path, sig: signal.Signals):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            handler = int(server.stdout.readline())
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as visitor:
                visitor.request("GET", "/gradio_api/heartbeat/one")
                with closing(visitor.getresponse()) as alive:
                    assert alive.status == 200
                    compare(port, handler, "one", quality=50)
                    assert server.stdout.readline() == "COMPUTING\n"
            assert server.stdout.readline() == "ENDED\n"

            compare(port, handler, "two", quality=1)
            assert server.stdout.readline() == "COMPUTING\n"
            assert list(tmp_path.glob("finola-app-*"))
            server.send_signal(sig)
            server.wait(PATIENCE)
        finally:
            server.kill()
    assert server.returncode != -signal.SIGKILL
    assert not list(tmp_path.glob("finola-app-*"))


def test_comparison_is_cancelled_at_the_next_step_after_its_visitor_left():
    opened, photo = open_model("waves512"), Photo("p", torch.zeros(3, 64, 64, dtype=torch.uint8))
    steps: list[int] = []
    rebuild(photo, opened, 50, lambda: steps.append(0))
    assert len(steps) > 4
    for last in range(1, len(steps) + 1):
        calls: list[int] = []

        def check(last: int = last, calls: list[int] = calls) -> None:
            calls.append(0)
            if len(calls) == last:
                raise VisitorLeft

        with pytest.raises(VisitorLeft):
            rebuild(photo, opened, 50, check)
        assert len(calls) == last


def test_visitor_has_left_when_all_connections_are_closed():
    visitors = Visitors()
    visitors.check("never seen")
    with visitors.connected("one"):
        with visitors.connected("one"):
            pass
        visitors.check("one")
    with pytest.raises(VisitorLeft):
        visitors.check("one")
    visitors.returned("one")
    visitors.check("one")
    visitors.stop()
    with pytest.raises(VisitorLeft):
        visitors.check("one")


def test_one_large_job_runs_at_a_time_and_waiting_jobs_can_be_cancelled():
    visitors = Visitors()
    checks = iter([None, None, VisitorLeft()])

    def check() -> None:
        if error := next(checks):
            raise error

    with visitors.working(lambda: None), pytest.raises(VisitorLeft), visitors.working(check):
        pytest.fail("two jobs ran at the same time")
    with visitors.working(lambda: None):
        pass

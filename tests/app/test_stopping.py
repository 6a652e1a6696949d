"""The server stops within seconds, and leaves no file, also when it is killed with an upload that was not read."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from finola.app.server import FOLDER, GRACE

PATIENCE = 300  # seconds until a hanging server fails the test; nothing waits so long otherwise
STOPPING = 5.0  # seconds within which the page promises to stop
# The model's work is replaced by a job that never ends by itself.
SERVER = """
import threading
from finola.app import handlers, page, server

def work(photo, opened, quality, effort):
    print("COMPUTING", photo.name, flush=True)
    threading.Event().wait(2 if quality == 2 else None)
    print("ENDED", photo.name, flush=True)

def build(*arguments, build=page.build):
    made = build(*arguments)
    print(next(number for number, function in made.fns.items() if function.name == "choose"), flush=True)
    return made

def end_soon(sig, end_soon=server.end_soon):
    print("STOPPING", flush=True)
    end_soon(sig)

handlers.rebuild, page.build, server.end_soon = work, build, end_soon
server._warm_up = lambda: None
server.serve(port=0)
"""


class Page:
    """A running server of the page."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process, self.lines = process, process.stdout
        self.handler = int(self.lines.readline())
        self.port = int(self.lines.readline().rsplit(":", 1)[1])

    def post(self, path: str, body: bytes, kind: str) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("POST", f"/gradio_api/{path}", body, {"Content-Type": kind})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()

    def compare(self, example: str, quality: int) -> None:
        """Choose an example photo, as a browser does: its comparison is what computes."""
        body = {"fn_index": self.handler, "session_hash": example, "data": ["waves512", quality, 0]}
        self.post("queue/join", json.dumps(body | {"event_data": {"choice": example}}).encode(), "application/json")

    def upload(self, size: int) -> None:
        head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'
        self.post("upload", head + bytes(size) + b"\r\n--x--\r\n", "multipart/form-data; boundary=x")


@contextmanager
def running(folder: Path) -> Iterator[Page]:
    environment = os.environ | {"TMPDIR": str(folder)}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            yield Page(server)
        finally:
            server.kill()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() or path.name.startswith("finola")]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_busy_server_stops_and_leaves_no_file(tmp_path: Path, sig: signal.Signals):
    with running(tmp_path) as page:
        page.upload(3_000_000)
        page.compare("coffee", quality=1)
        assert page.lines.readline() == "COMPUTING Coffee, an example\n"
        assert files(tmp_path) == []
        page.process.send_signal(sig)
        page.process.wait(PATIENCE)
        assert "STOPPING" in page.lines.read()
    assert page.process.returncode in (
        -sig,
        128 + sig,
        -getattr(signal, "SIGALRM", 14),
    )  # it ended itself, in spite of its computation
    assert GRACE < STOPPING
    assert files(tmp_path) == []


def test_a_killed_server_leaves_no_file(tmp_path: Path):
    (tmp_path / f"{FOLDER}1234" / "part").mkdir(parents=True)  # of a server that was killed while it started
    with running(tmp_path) as page:
        assert files(tmp_path) == []
        page.upload(3_000_000)
        page.compare("coffee", quality=1)
        page.process.kill()
        page.process.wait(PATIENCE)
    assert files(tmp_path) == []


def test_one_job_runs_at_a_time(tmp_path: Path):
    with running(tmp_path) as page:
        for example in ("coffee", "rocket"):
            page.compare(example, quality=2)
        lines = [page.lines.readline() for _ in range(4)]
    names = ("Coffee, an example", "Rocket, an example")
    assert lines == [f"{word} {name}\n" for name in names for word in ("COMPUTING", "ENDED")]

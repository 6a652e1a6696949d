"""Streams of answers: a job that joins when the one before has just ended is answered on the same stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from finola.app import streams
from finola.app.streams import Streams

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def data(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": f'data: {{"msg":"{text}"}}\n\n'.encode(), "more_body": True}


class Server:
    """Answers one job per request, as Gradio does, and then ends the stream."""

    def __init__(self, *jobs: str, closes: bool = True) -> None:
        self.jobs, self.closes = list(jobs), closes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert not scope.get("used")
        scope["used"] = True  # routing changes the scope of a request
        for message in (START, data(self.jobs.pop(0)), *([data("close_stream")] if self.closes else []), END):
            await send(message)


def collect(server: Server, on_message: Any = None, leaves: bool = False) -> list[dict[str, Any]]:
    """All messages that a browser receives, which may close the connection."""
    received: list[dict[str, Any]] = []
    kept = Streams()

    async def send(message: dict[str, Any]) -> None:
        received.append(message)
        if on_message:
            on_message(kept, message)

    async def receive() -> dict[str, Any]:
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    asyncio.run(kept.serve(server, {}, receive, send, "visitor"))
    return received


def test_stream_without_another_job_is_passed_on_unchanged(monkeypatch):
    monkeypatch.setattr(streams, "LINGER", 0.01)
    assert collect(Server("first")) == [START, data("first"), data("close_stream"), END]
    assert collect(Server("first", closes=False)) == [START, data("first"), END]


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_job_that_joins_after_the_last_answer_is_answered_on_the_same_stream(monkeypatch, delay):
    def join(kept: Streams, message: dict[str, Any]) -> None:
        if message == data("first"):  # the browser moves a slider as soon as it has the answer
            asyncio.get_running_loop().call_later(delay, kept.joined, "visitor")
            monkeypatch.setattr(streams, "LINGER", 5.0)
        else:
            monkeypatch.setattr(streams, "LINGER", 0.01)

    found = collect(Server("first", "second"), join)
    assert found == [START, data("first"), data("second"), data("close_stream"), END]


def test_other_visitors_do_not_keep_a_stream_open(monkeypatch):
    monkeypatch.setattr(streams, "LINGER", 0.05)
    found = collect(Server("first"), lambda kept, message: kept.joined("stranger"))
    assert found[-2:] == [data("close_stream"), END]


def test_job_of_a_visitor_who_has_left_is_not_answered_on_the_old_stream(monkeypatch):
    monkeypatch.setattr(streams, "LINGER", 5.0)
    server = Server("first", "second")  # Gradio cancels all jobs of a session if it finds a closed connection
    collect(server, lambda kept, message: kept.joined("visitor"), leaves=True)
    assert server.jobs == ["second"]

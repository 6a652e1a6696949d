"""Streams of answers that stay open for a moment after the last job of a session.

Gradio ends the stream of a session when no job is left, and its page closes the stream when it reads that. A job that
joins in between, such as a slider moved as soon as an image appears, would be computed without an answer on the page.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LINGER = 3.0  # seconds that a stream waits for another job
NOTICE = 0.05  # seconds within which the server notices that a connection was closed before the job was sent
CLOSE = b'"close_stream"'


class Streams:
    """Open streams by session. All methods run in the event loop of the server."""

    def __init__(self) -> None:
        self._joined: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def joined(self, session: str) -> None:
        """Report a job that Gradio has queued."""
        if (event := self._joined.get(session)) is not None:
            event.set()

    def __contains__(self, session: str) -> bool:
        return session in self._joined

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """Answer a request for the stream of a session; a job that joins within `LINGER` continues it."""
        event = self._joined.setdefault(session, asyncio.Event())
        closing: list[Message] = []  # the last messages, held back
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if closing or CLOSE in message.get("body", b""):
                if not closing:
                    event.clear()  # of the jobs that this stream has answered
                closing.append(message)
            elif message["type"] != "http.response.start" or not started:
                started = True
                await send(message)

        while True:
            await app(dict(scope), receive, sending)
            if not closing:  # the page was closed, or the session is unknown
                return
            if not await _happens(event, receive):
                break
            closing.clear()
        for message in closing:
            await send(message)


async def _happens(event: asyncio.Event, receive: Receive) -> bool:
    """Wait for the event for `LINGER` seconds. False if it does not happen, or if the page is closed."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    happened, left = asyncio.create_task(event.wait()), asyncio.create_task(disconnected())
    try:
        await asyncio.wait((happened, left), timeout=LINGER, return_when=asyncio.FIRST_COMPLETED)
        if happened.done():  # Gradio would cancel this job if it were asked to answer it on a closed connection
            await asyncio.wait((left,), timeout=NOTICE)
        return happened.done() and not left.done()
    finally:
        happened.cancel()
        left.cancel()

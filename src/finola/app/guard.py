"""Requests that reach Gradio: those of the page itself, of bounded size, with inputs of the expected type.

A web site that is open in the same browser, or another user of the same machine, can send any other request.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finola.app.photos import MAX_BYTES
from finola.app.streams import Streams
from finola.errors import InputError

# The browser may load resources from this server only.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
API = "/gradio_api"
JOIN, UPLOAD, DATA, PROGRESS = (f"{API}/{path}" for path in ("queue/join", "upload", "queue/data", "upload_progress"))
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of sessions, uploads and elements that can be selected
# All routes used by the page. Gradio has many more: files by path, a proxy, direct calls of handlers, …
SHOWN = re.compile(
    rf"/|/theme\.css|/favicon\.ico|/(?:assets|static)/[\w@%+~-][\w@%+~.-]*(?:/[\w@%+~-][\w@%+~.-]*)*"
    rf"|{DATA}|{PROGRESS}|{API}/heartbeat/{NAME.pattern}"
)
BODIES = {JOIN: 100_000, UPLOAD: MAX_BYTES + 10_000}  # maximum bytes of a request
ALL_BODIES = 5 * MAX_BYTES  # of all requests that are being received
SECONDS = 300  # to receive a request
UNREAD = 2  # uploads that wait for their job; older ones are dropped
SESSIONS = 4  # sessions with waiting jobs or answers; Gradio would keep the answers of 2,000
ANSWERS = 32  # messages, about three per job, that wait for one session


class Uploads:
    """Uploaded files, which stay in memory until a job takes them. Gradio would write them to disk."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}

    async def receive(self, request: Request) -> Response:
        """Answer an upload of one file with its key, which the page takes for a path."""
        async with request.form(max_files=1, max_fields=0) as form:
            file = form.get("files")
            if not isinstance(file, UploadFile) or not file.filename:
                raise HTTPException(400, "An upload needs one file with a name.")
            data = await file.read()
        key, name = secrets.token_hex(16), PurePath(file.filename.replace("\\", "/")).name
        self._files[key] = data, name[-100:]
        for old in list(self._files)[:-UNREAD]:
            del self._files[old]
        return JSONResponse([key])

    def take(self, key: str) -> tuple[bytes, str]:
        """Content and name of an uploaded file, which can be taken once."""
        if key not in self._files:
            raise InputError("No uploaded file was found. Drop it again.")
        return self._files.pop(key)


async def upload_progress(request: Request) -> Response:
    """Tell the page that its upload is complete, as soon as it asks."""
    return PlainTextResponse('data: {"msg": "done"}\n\n', media_type="text/event-stream")


class Guard:
    """ASGI middleware between Starlette's check of the host name and Gradio."""

    def __init__(self, app: ASGIApp, page: gr.Blocks) -> None:
        self.app, self.page, self.streams = app, page, Streams()
        self._incoming = 0  # bytes of requests that are being received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # the page does not use web sockets
            return await send({"type": "websocket.close", "code": 1008})
        send = _with_headers(send)
        try:
            scope = checked_request(scope)
            if scope["path"] == DATA:
                session = str(Request(scope).query_params.get("session_hash"))
                await self.streams.serve(self.app, scope, receive, send, session)
            elif scope["path"] == JOIN:
                await self._join(scope, receive, send)
            elif scope["path"] == UPLOAD:
                async with self._receiving(receive, BODIES[UPLOAD]) as receive:
                    await self.app(scope, receive, send)
            else:
                await self.app(scope, receive, send)
        except HTTPException as error:
            await JSONResponse({"detail": error.detail}, error.status_code)(scope, receive, send)
        except asyncio.CancelledError:  # the server stops; uvicorn would print a traceback
            return

    @asynccontextmanager
    async def _receiving(self, receive: Receive, most: int) -> AsyncIterator[Receive]:
        """Bound the bytes of a request, whatever its headers say, and the time in which it is received."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received, self._incoming = received + size, self._incoming + size
            if received > most:
                raise HTTPException(413, f"A request has at most {most} bytes.")
            if self._incoming > ALL_BODIES:
                raise HTTPException(503, "Too many uploads at a time. Try again.")
            return message

        try:
            async with asyncio.timeout(SECONDS):
                yield counted
        except TimeoutError:
            raise HTTPException(408, "The request was not completed in time.") from None
        finally:
            self._incoming -= received

    async def _join(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Queue a job with checked inputs."""
        async with self._receiving(receive, BODIES[JOIN]) as counted:
            body = checked_body(await Request(scope, counted).body(), self.page)
        await self._make_room(body["session_hash"])
        messages: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def replaced() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replaced, send)
        self.streams.joined(body["session_hash"])

    async def _make_room(self, session: str) -> None:
        """Drop the oldest sessions beyond `SESSIONS`, those without a stream first."""
        queue = self.page._queue
        answers = queue.pending_messages_per_session
        if session in answers:
            if answers[session].qsize() >= ANSWERS:
                raise HTTPException(429, "Too many answers were not fetched. Reload the page.")
            return
        oldest = sorted(answers, key=lambda name: name in self.streams)
        for name in oldest[: max(0, len(answers) - SESSIONS + 1)]:
            await queue.clean_events(session_hash=name)
            answers.pop(name, None)
            queue.pending_event_ids_session.pop(name, None)


def checked_request(scope: Scope) -> Scope:
    """Return the request without headers by which it could name another server. Raises HTTPException if not allowed."""
    path, method, headers = scope["path"], scope["method"], Headers(scope=scope)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    link = path == "/" and method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    own = site in ("same-origin", "none") or link  # a link on another site may open the page
    if not own or (origin is not None and origin != f"http://{headers.get('host')}"):
        raise HTTPException(403, "Requests from other web sites are not allowed.")
    if not (SHOWN.fullmatch(path) if method in ("GET", "HEAD") else method == "POST" and path in BODIES):
        raise HTTPException(404, "Page not found.")
    forwarding = (b"x-forwarded-", b"x-gradio-server")
    return {**scope, "headers": [header for header in scope["headers"] if not header[0].startswith(forwarding)]}


def checked_body(body: bytes, page: gr.Blocks) -> dict[str, Any]:
    """Rebuild the request of an event from checked values, and raise HTTPException if one is invalid.

    Gradio would resolve file names and URLs inside any input of any component before it calls a handler. An uploaded
    file is passed on by its key, as the choice of the event.
    """
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise HTTPException(400, "The request is not a JSON object.")
    number, session, data, event = (sent.get(key) for key in ("fn_index", "session_hash", "data", "event_data"))
    inputs = page.fns[number].inputs if type(number) is int and number in page.fns else None
    if inputs is None or not isinstance(data, list) or len(data) != len(inputs):
        raise HTTPException(400, "The request is not for an event of this page.")
    choice = event.get("choice") if isinstance(event, dict) else None
    values: list[Any] = []
    for component, value in zip(inputs, data, strict=True):
        match component:
            case gr.State():  # stored on the server: values from the browser are ignored
                value = None
            case gr.File():
                choice, value = value.get("path") if isinstance(value, dict) else None, None
            case gr.Dropdown() if value in [choice for _, choice in component.choices]:
                pass
            case gr.Slider() if type(value) in (int, float) and -1e9 < value < 1e9:
                pass
            case _:
                raise HTTPException(400, f"The value of a {type(component).__name__} is invalid.")
        values.append(value)
    if not isinstance(session, str) or not NAME.fullmatch(session):
        raise HTTPException(400, "The session's name is invalid.")
    chosen = choice if isinstance(choice, str) and NAME.fullmatch(choice) else ""
    trigger = sent.get("trigger_id")
    return {
        "fn_index": number,
        "session_hash": session,
        "data": values,
        "event_data": {"choice": chosen},
        "trigger_id": trigger if type(trigger) is int else None,
    }


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sending

"""Validation of every request before it reaches Gradio: host name, origin, route and body."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from finola.app.payload import MAX_BODY, SESSION, checked_body
from finola.app.streams import Application, Message, Receive, Scope, Send, Streams
from finola.app.uploads import Uploads
from finola.app.visitors import Visitors
from finola.errors import InputError

if TYPE_CHECKING:
    import gradio as gr

# The browser may load resources from this server only.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
API = "/gradio_api"
JOIN, UPLOAD, DATA, HEARTBEAT = f"{API}/queue/join", f"{API}/upload", f"{API}/queue/data", f"{API}/heartbeat/"
# All routes used by the page. Gradio has many more: files by path, a proxy, direct calls of handlers, …
SHOWN = re.compile(
    rf"/|/theme\.css|/favicon\.ico|/(?:assets|static)/[\w@%+~-][\w@%+~.-]*(?:/[\w@%+~-][\w@%+~.-]*)*"
    rf"|{DATA}|{HEARTBEAT}{SESSION.pattern}|{API}/upload_progress"
)
SENT = (JOIN, UPLOAD)


class Guard:
    """ASGI middleware that rejects requests that are not allowed, before they reach Gradio."""

    def __init__(
        self, app: Application, *, page: gr.Blocks, uploads: Uploads, visitors: Visitors, hosts: Iterable[str]
    ) -> None:
        self.app, self.page, self.uploads, self.visitors = app, page, uploads, visitors
        self.hosts = frozenset(_host_name(host) for host in hosts)
        self.streams = Streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # the page does not use web sockets
            return await send({"type": "websocket.close", "code": 1008})
        send = _with_headers(send)
        if refusal := self._refusal(scope):
            return await _answer(send, *refusal)
        path, session = scope["path"], ""
        with ExitStack() as connection:
            try:
                if path == JOIN:
                    body, session = checked_body(await _read(receive), self.page, self.uploads)
                    self.visitors.returned(session)
                    scope, receive = _replace_body(scope, receive, body)
                elif path == DATA:
                    session = _session_of(scope)
                connection.enter_context(self._connection(scope, session))
                if path == UPLOAD:
                    send = _with_own_paths(send, self.uploads)
            except InputError as error:
                return await _answer(send, 400, str(error))
            if path == DATA:
                return await self.streams.serve(self.app, scope, receive, send, session)
            await self.app(scope, receive, send)
            if path == JOIN:
                self.streams.joined(session)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason if the request is not allowed."""
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        for host in hosts + [value for name, value in headers if name == b"x-forwarded-host"]:
            if not self.trusts(host):
                return 403, f"The host {host[:100]!r} is not allowed. Start the page with --allow-host NAME."
        if len(hosts) != 1:
            return 400, "A request needs exactly one Host header."
        first = dict(reversed(headers))
        path, method = scope["path"], scope["method"]
        if not _same_site(first, hosts[0], navigation=path == "/" and method in ("GET", "HEAD")):
            return 403, "Requests from other web sites are not allowed."
        if method in ("GET", "HEAD"):
            return None if SHOWN.fullmatch(path) else (404, "Page not found.")
        if method != "POST" or path not in SENT:
            return 404, "Page not found."
        if not first.get(b"content-length", "").isdecimal():
            return 411, "A request needs a Content-Length header."
        return None

    def trusts(self, host: str) -> bool:
        """Whether a Host header names this server.

        A page of another site can only reach this server under a name which its owner controls (DNS rebinding), never
        under an IP address: where the server listens on all addresses, every IP address is accepted.
        """
        try:
            name = _host_name(host)
        except ValueError:
            return False
        return name in self.hosts or (_is_address(name) and bool(self.hosts & {"0.0.0.0", "::"}))

    def _connection(self, scope: Scope, session: str) -> AbstractContextManager[None]:
        """Context of a request: registers a visitor's connection, or reserves space for an upload."""
        path = scope["path"]
        if path == UPLOAD:
            headers = dict(scope["headers"])
            return self.uploads.receiving(int(headers[b"content-length"]))
        if path.startswith(HEARTBEAT):
            return self.visitors.connected(path.removeprefix(HEARTBEAT))
        return self.visitors.connected(session) if path == DATA else nullcontext()


def _session_of(scope: Scope) -> str:
    """The session whose stream is requested."""
    session = str(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0])
    if not SESSION.fullmatch(session):
        raise InputError("The session's name is invalid.")
    return session


def _host_name(host: str) -> str:
    """The name or address in a Host header, without port and brackets, in lower case.

    >>> _host_name("LocalHost:7860"), _host_name("[::1]:80"), _host_name("::1")
    ('localhost', '::1', '::1')
    """
    if _is_address(host):
        return str(ipaddress.ip_address(host))
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d{1,5})?", host, re.ASCII)
    if found is None:
        raise ValueError(host)
    name = found[1] or found[2].rstrip(".").lower()
    return str(ipaddress.ip_address(name)) if found[1] or _is_address(name) else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_site(headers: dict[bytes, str], host: str, navigation: bool) -> bool:
    """Whether a request was sent by this page, without a page, or by following a link to the page."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "none")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return False
    return site in ("same-origin", "none") or (navigation and headers.get(b"sec-fetch-mode") == "navigate")


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise InputError("The request was interrupted.")
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise InputError(f"The request has more than {MAX_BODY} bytes.")
        more = message.get("more_body", False)
    return body


def _replace_body(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    replaced_names = (b"content-length", b"content-type")
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in replaced_names]
    headers = [*kept, (b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replaced() -> Message:
        return messages.pop() if messages else await receive()

    return {**scope, "headers": headers}, replaced


def _with_headers(send: Send) -> Send:
    """Add security headers to every response and remove CORS headers."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [
                (name, value)
                for name, value in message.get("headers", [])
                if name.lower() not in HEADERS and not name.lower().startswith(b"access-control-")
            ]
            message = {**message, "headers": [*kept, *HEADERS.items()]}
        await send(message)

    return sending


def _with_own_paths(send: Send, uploads: Uploads) -> Send:
    """Replace the paths in the answer to an upload by paths that no other upload has."""
    start: Message = {}
    body = b""

    async def sending(message: Message) -> None:
        nonlocal start, body
        if message["type"] == "http.response.start":
            start = message
            return
        body += message.get("body", b"")
        if message.get("more_body", False):
            return
        if start["status"] == 200 and body:
            body = json.dumps([uploads.claim(path) for path in json.loads(body)]).encode()
        kept = [(name, value) for name, value in start.get("headers", []) if name.lower() != b"content-length"]
        await send({**start, "headers": [*kept, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    return sending


async def _answer(send: Send, status: int, words: str) -> None:
    body = json.dumps({"detail": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

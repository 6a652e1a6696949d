"""Attacks on the page over HTTP by a web site or another user of the machine: none reads a file or fills memory."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from finola.app import guard, streams
from finola.app.guard import ANSWERS, SESSIONS, UNREAD, Guard
from finola.app.photos import MAX_BYTES, example
from finola.app.server import STATES, create_app
from finola.image_io import to_pillow

MARK = b"the secret of this machine"
HOME = "http://127.0.0.1:7860"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page's application; Gradio needs an event loop while it is built, and would leave its own unclosed."""

    async def create() -> Any:
        return create_app()

    with pytest.MonkeyPatch.context() as environment:
        for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
            environment.setenv(name, "")
        environment.setattr(streams, "LINGER", 0.0)  # these tests read every stream to its end
        environment.setenv("TMPDIR", str(tmp_path_factory.mktemp("page")))
        environment.setattr("tempfile.tempdir", None)
        yield asyncio.run(create())


@pytest.fixture
def folder(app: Any) -> Path:
    """The folder of Gradio, which does not exist."""
    folder = Path(mounted(app).get_blocks().GRADIO_CACHE)
    assert not folder.exists()
    return folder


@pytest.fixture(scope="module")
def running(app: Any) -> Iterator[TestClient]:
    with TestClient(app, base_url=HOME, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(running: TestClient, folder: Path) -> Iterator[TestClient]:
    yield running
    assert not folder.exists()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A photo that can be recognised by its bytes."""
    path = tmp_path / "secret.png"
    Image.new("RGB", (64, 64), "red").save(path)
    path.write_bytes(path.read_bytes() + MARK)
    return path


def mounted(app: Any) -> Any:
    """Gradio's own application inside ours."""
    return next(route.app for route in app.routes if hasattr(getattr(route, "app", None), "get_blocks"))


def answer(client: TestClient, body: dict[str, Any]) -> str:
    """Everything that an event handler returns to the browser."""
    joined = client.post("/gradio_api/queue/join", json=body)
    if joined.status_code != 200:
        return joined.text
    return client.get("/gradio_api/queue/data", params={"session_hash": body["session_hash"]}).text


def attacks(secret: Path, folder: Path) -> list[Any]:
    """Values by which Gradio can be made to open a file or a URL."""
    meta = {"_type": "gradio.FileData"}
    paths = [
        str(secret),
        f"{folder}/../../{secret.parent.name}/{secret.name}",
        f"file://{secret}",
        f"/gradio_api/file={secret}",
        "http://files.example/secret.png",
        f"{folder}/x\0y",
    ]
    files: list[Any] = [{"path": path, "meta": meta} for path in paths]
    known = {"path": str(secret), "url": f"{HOME}/gradio_api/file={secret}", "orig_name": "secret.png", "meta": meta}
    remote = {"path": f"{folder}/none", "url": "http://files.example/secret.png", "meta": meta}
    stream = {"path": str(secret), "is_stream": True, "meta": meta}
    nested = [[known], {"a": {"b": [known]}}, {"__type__": "update", "value": known}, {"value": known}]
    return [*files, known, remote, stream, *nested, str(secret), json.dumps(known), {}, True, "x" * 200_000]


def test_no_input_of_any_handler_opens_a_file_or_a_url(client, folder, secret, monkeypatch):
    looked_up: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *name, **_: looked_up.append(name))
    page = mounted(client.app).get_blocks()
    assert len(page.fns) > 10
    for number, function in page.fns.items():
        usual = [getattr(component, "value", None) for component in function.inputs]
        for place, component in enumerate(function.inputs):
            if type(component).__name__ == "State":
                continue  # never read from the browser: the next test
            for attack in attacks(secret, folder):
                body = {"fn_index": number, "session_hash": f"a{number}-{place}", "data": list(usual)}
                body["data"][place] = attack
                told = answer(client, body)
                refused = any(words in told for words in ("is invalid", "No uploaded file", "at most"))
                assert refused, (function.name, place, attack)
                assert "secret" not in told and MARK.decode() not in told
        event = {"choice": {"path": str(secret), "meta": {"_type": "gradio.FileData"}}}
        if function.name in ("choose", "choose_other", "point"):
            body = {"fn_index": number, "session_hash": f"b{number}", "data": usual, "event_data": event}
            assert "secret" not in answer(client, body)
    assert looked_up == []
    for path in (secret, f"{folder}/../../secret.png", "http://files.example/secret.png"):
        assert client.get(f"/gradio_api/file={path}").status_code == 404


def test_state_sent_by_a_browser_is_ignored(client, folder, secret):
    page = mounted(client.app).get_blocks()
    number = next(n for n, function in page.fns.items() if function.name == "draw_animation")
    told = answer(client, {"fn_index": number, "session_hash": "s", "data": [{"path": str(secret)}, "waves512"]})
    assert "secret" not in told and "Drop it again" in told


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 50_000,
        b"\xff",
        b'{"fn_index": NaN}',
        b'{"fn_index": ' + b"1" * 5000 + b"}",
        b'{"fn_index": true, "session_hash": "a", "data": []}',
    ]
    + [json.dumps({"fn_index": 0, "session_hash": s, "data": []}).encode() for s in ("../a", "", None, "a" * 99, "ok")],
)
def test_malformed_request_is_rejected(client, body):
    assert client.post("/gradio_api/queue/join", content=body).status_code == 400


def test_gradio_also_rejects_paths_that_were_not_uploaded(client, secret):
    """The second line of defence, behind the check of the request."""
    from gradio.context import LocalContext
    from gradio.exceptions import InvalidPathError
    from gradio.processing_utils import _check_allowed

    LocalContext.blocks.set(mounted(client.app).get_blocks())
    with pytest.raises(InvalidPathError):
        _check_allowed(str(secret), True)


class Recorder:
    """Stands in for Gradio behind the guard, and records what reaches it."""

    def __init__(self) -> None:
        self.reached: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append((scope["method"], scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def registered(router: Any) -> Iterator[Any]:
    """Every route of an application, also of the routers that it includes."""
    for route in router.routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else registered(included)


def test_only_the_routes_that_the_page_uses_reach_gradio(app):
    recorder, gradio = Recorder(), mounted(app)
    sent, reached = TestClient(Guard(recorder, gradio.get_blocks()), base_url=HOME), recorder.reached
    routes = {
        (method, route.path) for route in registered(gradio) for method in getattr(route, "methods", None) or ["GET"]
    }
    assert len(routes) > 40
    for method, path in routes:
        filled = path.replace("{path:path}", "x.js").replace("{session_hash}", "abc").replace("{", "").replace("}", "")
        sent.request(method, filled, params={"session_hash": "abc"}, content=b"" if method == "POST" else None)
    assert {path for _, path in reached} == {
        "/", "/theme.css", "/favicon.ico", "/static/x.js", "/assets/x.js", "/gradio_api/queue/data",
        "/gradio_api/heartbeat/abc", "/gradio_api/upload_progress", "/gradio_api/upload",
    }  # fmt: skip
    assert {method for method, _ in reached} <= {"GET", "HEAD", "POST"}
    reached.clear()
    for path in ("/assets/../x", "/assets/%2e%2e/x", "/static//etc/passwd", "/static/.hidden", "/assets/..%5cx"):
        assert sent.get(path).status_code == 404
    assert reached == []


def upload(client: TestClient, content: bytes, name: str = "cat.png") -> Any:
    return client.post("/gradio_api/upload", files={"files": (name, content)})


def multipart(content: bytes, disposition: str = 'name="files"; filename="x.png"', parts: int = 1) -> bytes:
    head = f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()
    return (head + content + b"\r\n") * parts + b"--x--\r\n"


def cat() -> bytes:
    stream = io.BytesIO()
    to_pillow(example("chelsea").pixels[:, :64, :64]).save(stream, "PNG")
    return stream.getvalue()


def handler(client: TestClient, name: str) -> int:
    functions = mounted(client.app).get_blocks().fns
    return next(number for number, function in functions.items() if function.name == name)


def take(client: TestClient, uploaded: Any) -> str:
    """What the page says when it reads an upload."""
    file = {"path": uploaded.json()[0], "meta": {"_type": "gradio.FileData"}}
    return answer(client, {"fn_index": handler(client, "receive_other"), "session_hash": "s", "data": [file]})


@pytest.mark.parametrize("name", ["../../evil.png", "/evil.png", "..\\evil.png", "evil\0.png", ".", "..", "e" * 999])
def test_no_file_name_is_used_as_a_path(client, folder, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uploaded = upload(client, cat(), name)
    if uploaded.status_code == 200:
        told = take(client, uploaded)
        assert ": 64" in told and "../" not in told and "e" * 101 not in told
    assert not folder.exists() and list(tmp_path.iterdir()) == []


def test_upload_is_read_once_and_never_written(client):
    uploaded = upload(client, cat())
    assert "cat.png: 64" in take(client, uploaded)
    assert "No uploaded file" in take(client, uploaded)


def test_equal_uploads_are_independent(client):
    uploads = [upload(client, cat()) for _ in range(2)]
    assert all("cat.png: 64" in take(client, uploaded) for uploaded in uploads)


def test_unread_uploads_are_bounded(client):
    uploads = [upload(client, cat()) for _ in range(UNREAD + 3)]
    told = [take(client, uploaded) for uploaded in uploads]
    assert ["cat.png: 64" in words for words in told] == [False] * 3 + [True] * UNREAD


@pytest.mark.parametrize("declared", [None, "100"])
def test_the_size_of_an_upload_is_bounded_by_its_bytes_and_not_by_its_headers(client, declared):
    """Content-Length may be missing or wrong beside `Transfer-Encoding: chunked`."""

    def chunks() -> Iterator[bytes]:
        yield multipart(b"")[:-9]
        for number in range(3 * MAX_BYTES // 10**6):
            sent.append(number)
            yield bytes(10**6)

    headers = {"content-type": "multipart/form-data; boundary=x", "transfer-encoding": "chunked"}
    sent: list[int] = []
    response = client.post(
        "/gradio_api/upload", content=chunks(), headers=headers | ({"content-length": declared} if declared else {})
    )
    assert response.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        multipart(b"x" * 10**6, parts=20),
        multipart(b"x" * 100, 'name="files"'),
        multipart(b"x" * 100, 'name="files"; filename=""'),
        multipart(b"x" * 100, 'filename="x.png"'),
        multipart(b"x" * (MAX_BYTES + 20_000)),
        multipart(b"x" * (MAX_BYTES + 20_000), 'name="text"'),
        multipart(b"x")[:-5],
        b"",
        b"--x",
    ],
    ids=["20 files", "no name", "empty name", "no field", "too large", "long field", "cut", "empty", "boundary"],
)
@pytest.mark.parametrize("query", ["", "?upload_id=a"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Starlette does not close a cut file
def test_an_upload_that_is_not_one_file_is_refused(client, body, query, capfd):
    headers = {"content-type": "multipart/form-data; boundary=x"}
    response = client.post(f"/gradio_api/upload{query}", content=body, headers=headers)
    assert response.status_code in (400, 413)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", f"multipart/form-data; boundary={'b' * 5000}", "text/plain", ""]
)
def test_an_upload_with_a_wrong_content_type_is_refused(client, kind, capfd):
    response = client.post("/gradio_api/upload", content=multipart(b"x"), headers={"content-type": kind})
    assert response.status_code == 400
    assert "Traceback" not in capfd.readouterr().err


def test_uploads_that_were_announced_or_cut_do_not_keep_others_out(client, monkeypatch):
    """Connections that send a part of an upload, and nothing more, are closed in time and counted by what they sent."""
    monkeypatch.setattr(guard, "SECONDS", 0.1)
    monkeypatch.setattr(guard, "ALL_BODIES", 5000)

    async def send_part(size: int, path: str) -> int:
        parts = [{"type": "http.request", "body": multipart(bytes(size))[:-9], "more_body": True}]
        status: list[int] = []

        async def receive() -> Any:
            return parts.pop() if parts else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            status.append(message.get("status", 0))

        headers = {"host": "localhost", "content-length": "40000000", "content-type": "multipart/form-data; boundary=x"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": raw}
        await client.app(scope | {"http_version": "1.1", "scheme": "http"}, receive, send)
        return status[0]

    async def run() -> list[int]:
        return await asyncio.gather(
            *(send_part(0 if n else 4000, guard.UPLOAD) for n in range(10)), send_part(0, guard.JOIN)
        )

    assert set(asyncio.run(run())) == {408}
    assert asyncio.run(send_part(6000, guard.UPLOAD)) == 503
    assert asyncio.run(send_part(4500, guard.UPLOAD)) == 408  # nothing is counted any more


def test_answers_that_nobody_fetches_are_bounded(client, monkeypatch):
    """Gradio would keep them for 2,000 sessions, and any number for each of them."""
    queue = mounted(client.app).get_blocks()._queue
    body = {"fn_index": handler(client, "<lambda>"), "data": []}

    def joined(session: str) -> int:
        return client.post("/gradio_api/queue/join", json=body | {"session_hash": session}).status_code

    assert {joined(f"many-{number}") for number in range(3 * SESSIONS)} == {200}
    assert len(queue.pending_messages_per_session) <= SESSIONS
    assert len(queue.pending_event_ids_session) <= SESSIONS
    told = [joined("one") for _ in range(3 * ANSWERS)]
    assert told[0] == 200 and 429 in told
    assert queue.pending_messages_per_session["one"].qsize() <= 2 * ANSWERS
    assert [joined(f"next-{number}") for number in range(SESSIONS)] == [200] * SESSIONS
    assert joined("one") == 200


def test_the_photos_of_the_last_sessions_are_stored(client):
    states = mounted(client.app).state_holder
    body = {"fn_index": handler(client, "choose"), "data": ["waves512", 20, 0], "event_data": {"choice": "coffee"}}
    for number in range(STATES + 2):
        answer(client, body | {"session_hash": f"visitor-{number}"})
    assert set(states.session_data) == {f"visitor-{number}" for number in range(2, STATES + 2)}


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1:7860", True),
        ("LOCALHOST", True),
        ("localhost:9000", True),  # ssh -L 9000:localhost:7860
        ("evil.example", False),
        ("127.0.0.1.evil.example:7860", False),
        ("localhost@evil.example", False),
        ("localhost.evil.example", False),
        ("192.168.1.5:7860", False),
        ("[x", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_are_served(client, host, served):
    assert client.get("/", headers={"host": host}).status_code == (200 if served else 400)
    origin = {"origin": f"http://{host}"}
    assert client.get("/", headers={"host": host, **origin}).status_code == (200 if served else 400)
    forwarded = client.get("/", headers={"x-forwarded-host": host, "x-gradio-server": f"http://{host}"})
    assert forwarded.status_code == 200 and "evil.example" not in forwarded.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[x"},
        {"origin": "https://127.0.0.1:7860"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "http://localhost:7860"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_requests_from_other_sites_are_rejected(client, headers, capfd):
    assert client.post("/gradio_api/queue/join", headers=headers, json={}).status_code == 403
    assert client.post("/gradio_api/upload", headers=headers, files={"files": ("a.png", b"x")}).status_code == 403
    assert client.get("/gradio_api/queue/data?session_hash=a", headers=headers).status_code == 403
    assert client.get("/gradio_api/heartbeat/a", headers=headers).status_code == 403
    preflight = headers | {"access-control-request-method": "POST"}
    assert client.options("/gradio_api/queue/join", headers=preflight).status_code in (403, 404)
    response = client.get("/", headers=headers)
    if headers.get("sec-fetch-mode") != "navigate":
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control-")]
    assert "Traceback" not in capfd.readouterr().err


def test_nothing_is_shared_with_other_origins(client):
    for path in ("/", "/theme.css", "/gradio_api/file=x", "/config"):
        response = client.get(path)
        assert not [name for name in response.headers if name.startswith("access-control-")]
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200  # a link to the page on another site works
    assert client.get("/", headers=link | {"sec-fetch-mode": "no-cors"}).status_code == 403


def test_web_sockets_are_rejected(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/gradio_api/queue/join"):
        pass

"""Attacks on the page over HTTP: none reads a file, reaches another machine or comes from another site."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from finola.app import streams
from finola.app import uploads as uploads_module
from finola.app.guard import Guard
from finola.app.photos import example
from finola.app.server import LOOPBACK, create_app
from finola.app.uploads import AGE, MAX_BYTES, Uploads
from finola.app.visitors import Visitors
from finola.errors import InputError
from finola.image_io import to_pillow

MARK = b"the secret of this machine"
HOME = "http://127.0.0.1:7860"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page's application; Gradio needs an event loop while it is built, and would leave its own unclosed."""

    async def create() -> Any:
        return create_app(tmp_path_factory.mktemp("page") / "uploads")

    with pytest.MonkeyPatch.context() as environment:
        for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
            environment.setenv(name, "")
        environment.setattr(streams, "LINGER", 0.0)  # these tests read every stream to its end
        yield asyncio.run(create())


@pytest.fixture
def folder(app: Any) -> Path:
    """The upload folder, empty."""
    folder = Path(mounted(app).get_blocks().GRADIO_CACHE)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def running(app: Any) -> Iterator[TestClient]:
    with TestClient(app, base_url=HOME, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(running: TestClient, folder: Path) -> TestClient:
    return running


@pytest.fixture
def secret(folder: Path) -> Path:
    """A photo outside the upload folder that can be recognised by its bytes."""
    path = folder.parent / "secret.png"
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
        f"{folder}/../{secret.name}",
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
                assert "invalid" in told or "not an upload" in told or "more than" in told, (
                    function.name,
                    place,
                    attack,
                )
                assert "secret" not in told and MARK.decode() not in told
        event = {"choice": {"path": str(secret), "meta": {"_type": "gradio.FileData"}}}
        if function.name in ("choose", "choose_other", "point"):
            body = {"fn_index": number, "session_hash": f"b{number}", "data": usual, "event_data": event}
            assert "secret" not in answer(client, body)
    assert not [path for path in folder.rglob("*") if path.is_file() and MARK in path.read_bytes()]
    assert looked_up == []
    for path in (secret, f"{folder}/../secret.png", "http://files.example/secret.png"):
        assert client.get(f"/gradio_api/file={path}").status_code == 404


def test_state_sent_by_a_browser_is_ignored(client, folder, secret):
    page = mounted(client.app).get_blocks()
    number = next(n for n, function in page.fns.items() if function.name == "draw_animation")
    told = answer(client, {"fn_index": number, "session_hash": "s", "data": [{"path": str(secret)}, "waves512"]})
    assert "secret" not in told and "Drop it again" in told


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"[" * 50_000, b'{"fn_index": NaN}', b'{"fn_index": true, "session_hash": "a", "data": []}']
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


def guarded(app: Any, folder: Path, hosts: tuple[str, ...]) -> tuple[TestClient, Recorder]:
    recorder, page = Recorder(), mounted(app).get_blocks()
    guard = Guard(recorder, page=page, uploads=Uploads(folder), visitors=Visitors(), hosts=(*LOOPBACK, *hosts))
    return TestClient(guard, base_url=HOME), recorder


def registered(router: Any) -> Iterator[Any]:
    """Every route of an application, also of the routers that it includes."""
    for route in router.routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else registered(included)


def test_only_the_routes_that_the_page_uses_reach_gradio(app, folder):
    sent, recorder = guarded(app, folder, ())
    reached, gradio = recorder.reached, mounted(app)
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


@pytest.mark.parametrize(
    "name", ["../../evil.png", "/evil.png", "..\\evil.png", "evil\0.png", ".", "..", "", "e" * 999]
)
def test_upload_stays_in_its_folder_for_any_file_name(client, folder, name):
    before = {path for path in folder.parent.rglob("*") if folder not in path.parents}
    response = client.post("/gradio_api/upload", files={"files": (name, b"x")})
    for path in response.json() if response.status_code == 200 else []:
        assert folder in Path(path).resolve().parents
    assert before == {path for path in folder.parent.rglob("*") if folder not in path.parents}


def test_upload_is_read_once_and_deleted(client, folder, tmp_path):
    to_pillow(example("chelsea").pixels[:, :64, :64]).save(tmp_path / "cat.png")
    page = mounted(client.app).get_blocks()
    number = next(n for n, function in page.fns.items() if function.name == "receive_other")
    uploaded = client.post("/gradio_api/upload", files={"files": ("cat.png", (tmp_path / "cat.png").read_bytes())})
    file = {"path": uploaded.json()[0], "meta": {"_type": "gradio.FileData"}}
    body = {"fn_index": number, "session_hash": "s", "data": [file]}
    assert "cat.png: 64" in answer(client, body)
    assert not [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert "not an upload" in answer(client, body)


def test_equal_uploads_of_two_visitors_are_independent(client, folder, tmp_path):
    """Gradio gives equal files the same path; reading the one must not delete the other."""
    to_pillow(example("chelsea").pixels[:, :16, :16]).save(tmp_path / "cat.png")
    content = (tmp_path / "cat.png").read_bytes()
    paths = [client.post("/gradio_api/upload", files={"files": ("cat.png", content)}).json()[0] for _ in range(2)]
    assert len(set(paths)) == 2
    uploads = Uploads(folder)
    assert uploads.bytes_stored() <= 2 * len(content)
    assert [uploads.take(path) for path in paths] == [content] * 2
    assert not list(folder.iterdir())


def test_unread_uploads_are_deleted_and_bounded(client, folder, monkeypatch):
    def send(size: int) -> int:
        return client.post("/gradio_api/upload", files={"files": (f"{size}.png", bytes(size))}).status_code

    monkeypatch.setattr(uploads_module, "FOLDER_BYTES", 30_000)
    assert send(10_000) == 200
    assert send(25_000) == 400
    now = 0.0
    stored = Uploads(folder, clock=lambda: now)
    assert 10_000 <= stored.bytes_stored() <= 30_000
    stored.delete_old()
    now = AGE - 1
    stored.delete_old()
    assert stored.bytes_stored() >= 10_000
    now = AGE + 1
    stored.delete_old()
    assert list(folder.iterdir()) == []
    assert send(25_000) == 200
    assert client.post("/gradio_api/upload", headers={"content-length": f"{2 * MAX_BYTES}"}).status_code == 400
    assert client.post("/gradio_api/upload", content=iter([b"x"])).status_code == 411


def test_uploads_are_kept_when_the_time_of_day_jumps(tmp_path):
    """To a clock that was set a year forward, a file just written is a year old."""
    path = tmp_path / "fresh.png"
    path.write_bytes(b"x")
    os.utime(path, (time.time() - 365 * 86400,) * 2)
    now = 0.0
    stored = Uploads(tmp_path, clock=lambda: now)
    for now in (0.0, AGE - 1):  # noqa: B007 (the clock reads it)
        stored.delete_old()
        assert path.exists()
    path.write_bytes(b"longer")  # still being received
    for now, kept in ((AGE + 1, True), (2 * AGE, True), (2 * AGE + 2, False)):  # noqa: B007
        stored.delete_old()
        assert path.exists() == kept


def test_links_in_the_upload_folder_are_not_followed(folder, secret):
    (folder / "link.png").symlink_to(secret)
    with pytest.raises(InputError):
        Uploads(folder).take(str(folder / "link.png"))
    assert secret.exists()


@pytest.mark.parametrize(
    ("hosts", "host", "served"),
    [
        ((), "127.0.0.1:7860", True),
        ((), "LOCALHOST", True),
        ((), "[::1]:7860", True),
        ((), "evil.example", False),
        ((), "127.0.0.1.evil.example:7860", False),
        ((), "localhost@evil.example", False),
        ((), "localhost.evil.example", False),
        ((), "192.168.1.5:7860", False),
        ((), "", False),
        (("192.168.1.5",), "192.168.1.5:7860", True),
        (("192.168.1.5",), "192.168.1.6:7860", False),
        (("0.0.0.0",), "192.168.1.5:7860", True),
        (("::",), "[2001:db8::1]:7860", True),
        (("0.0.0.0",), "evil.example", False),
        (("0.0.0.0", "box.local"), "Box.local:7860", True),
    ],
)
def test_only_allowed_host_names_are_served(app, folder, hosts, host, served):
    client, _ = guarded(app, folder, hosts)
    assert client.get("/", headers={"host": host}).status_code == (200 if served else 403)
    origin = {"origin": f"http://{host}"}
    assert client.get("/", headers={"host": host, **origin}).status_code == (200 if served else 403)
    forwarded = client.get("/", headers={"x-forwarded-host": host})
    assert forwarded.status_code == (200 if served else 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "http://localhost:7860"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_requests_from_other_sites_are_rejected(client, folder, headers):
    assert client.post("/gradio_api/queue/join", headers=headers, json={}).status_code == 403
    assert client.post("/gradio_api/upload", headers=headers, files={"files": ("a.png", b"x")}).status_code == 403
    assert client.get("/gradio_api/queue/data?session_hash=a", headers=headers).status_code == 403
    assert client.get("/gradio_api/heartbeat/a", headers=headers).status_code == 403
    preflight = headers | {"access-control-request-method": "POST"}
    assert client.options("/gradio_api/queue/join", headers=preflight).status_code in (403, 404)
    assert list(folder.rglob("*")) == []


def test_nothing_is_shared_with_other_origins(client):
    for headers in ({}, {"origin": HOME}, {"origin": HOME, "sec-fetch-site": "same-origin"}):
        for path in ("/", "/theme.css", "/gradio_api/file=x", "/config"):
            response = client.get(path, headers=headers)
            assert not [name for name in response.headers if name.startswith("access-control-")]
            assert response.headers["cross-origin-resource-policy"] == "same-origin"
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200  # a link to the page on another site works
    assert client.get("/", headers=link | {"sec-fetch-mode": "no-cors"}).status_code == 403


def test_web_sockets_are_rejected(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/gradio_api/queue/join"):
        pass

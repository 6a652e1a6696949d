from __future__ import annotations

import socket
import sys

import pytest

from finola.app.server import listen
from finola.cli import main


def test_missing_gradio_prints_the_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'finola[app]'" in error and error.count("\n") == 1


def test_public_links_are_not_supported(capsys):
    assert main(["app", "--share"]) == 2
    assert "--share" in capsys.readouterr().err


def test_port_in_use_is_rejected():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"[Pp]ort {port} .*--port"):
            listen("127.0.0.1", port)


def test_invalid_address_or_port_is_rejected():
    with pytest.raises(ValueError, match="7860"):
        listen("203.0.113.1", None)  # reserved for documentation
    with pytest.raises(ValueError, match="99999"):
        listen("127.0.0.1", 99_999)


def test_default_port_is_the_first_free_one():
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert 7860 <= first.getsockname()[1] < second.getsockname()[1]


def test_allowed_hosts_are_passed_to_the_server(monkeypatch):
    from finola.app import server

    served: list[tuple[object, ...]] = []
    monkeypatch.setattr(server, "serve", lambda host, port, ready, allowed: served.append((host, tuple(allowed))))
    assert main(["app", "--host", "0.0.0.0", "--allow-host", "box.local", "--allow-host", "box"]) == 0
    assert main(["app"]) == 0
    assert served == [("0.0.0.0", ("box.local", "box")), ("127.0.0.1", ())]

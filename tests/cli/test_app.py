from __future__ import annotations

import importlib.util
import socket

import pytest

from finola.app.server import listen
from finola.cli import main


def test_without_gradio_one_sentence_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["app"]) == 2
    assert capsys.readouterr().err == "finola app: the page needs Gradio: pip install finola[app].\n"


def test_there_is_no_public_link(capsys):
    with pytest.raises(SystemExit):
        main(["app", "--share"])
    assert "--share" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .*--port"):
            listen("127.0.0.1", port)


def test_an_address_or_port_that_is_none_is_one_sentence():
    with pytest.raises(ValueError, match="any port from 7860"):
        listen("203.0.113.1", None)  # kept for documentation: no machine has it
    with pytest.raises(ValueError, match="port 99999"):
        listen("127.0.0.1", 99_999)


def test_without_a_port_the_first_free_one_is_taken():
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert 7860 <= first.getsockname()[1] < second.getsockname()[1]


def test_further_names_of_the_machine_reach_the_server(monkeypatch):
    from finola.app import server

    served: list[tuple[object, ...]] = []
    monkeypatch.setattr(server, "serve", lambda host, port, ready, allowed: served.append((host, tuple(allowed))))
    assert main(["app", "--host", "0.0.0.0", "--allow-host", "box.local", "--allow-host", "box"]) == 0
    assert main(["app"]) == 0
    assert served == [("0.0.0.0", ("box.local", "box")), ("127.0.0.1", ())]

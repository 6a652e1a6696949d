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
            listen(port)


def test_invalid_port_is_rejected():
    with pytest.raises(ValueError, match="99999"):
        listen(99_999)


def test_default_port_is_the_first_free_one():
    with listen(None) as first, listen(None) as second:
        assert 7860 <= first.getsockname()[1] < second.getsockname()[1]


@pytest.mark.parametrize("option", ["--host=0.0.0.0", "--allow-host=box.local"])
def test_page_listens_on_the_loopback_interface_only(option, capsys):
    assert main(["app", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err
    with listen(None) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"

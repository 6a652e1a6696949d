"""Names of files may have any bytes: they are printed as text, and written to files as valid UTF-8."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from faults import failed

from finola.cli import main
from finola.cli.output import print_error, print_line, print_table, progress_bar
from finola.image_io import save_photo

NAMES = {
    "[/b].png": "[/b].png",
    "[bold]x.png": "[bold]x.png",
    "[link=x]\x1b]8;;x\x1b\\y.png": "[link=x]\\x1b]8;;x\\x1b\\y.png",
    "\x1b[2J\x1b[31mred.png": "\\x1b[2J\\x1b[31mred.png",
    "two\nlines\r\t.png": "two\\nlines\\r\\t.png",
    "right\u202eleft.png": "right\\u202eleft.png",
    "csi\x9b31m.png": "csi\\x9b31m.png",
    "bad\udcff.png": "bad\\xff.png",
    "日本 é.png": "日本 é.png",
}
ODD, SHOWN = "[bold]\x1b[31m\udcff", "[bold]\\x1b[31m\\xff"
"""A file name with markup, an escape sequence and a byte that is not UTF-8, and how it is printed."""


@pytest.fixture
def odd(tmp_path, monkeypatch) -> Path:
    """A photo whose folder and name are hostile to terminals and to files of text."""
    if sys.platform in ("darwin", "win32"):
        pytest.skip("names of files are Unicode here")
    monkeypatch.chdir(tmp_path)
    folder = Path("[", f"b]{ODD}")  # [/b] ends bold text
    folder.mkdir(parents=True)
    save_photo(torch.rand(3, 40, 50), "photo.png")
    os.rename("photo.png", folder / f"{ODD}.png")
    return folder / f"{ODD}.png"


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_text(name, capsys, monkeypatch):
    print_table(name, ["photo", name], [(name, "1"), ("tuple", (name, "2"))])
    assert capsys.readouterr().out.count(NAMES[name]) == 4
    print_line(name)
    print_error("verb", name)
    monkeypatch.setattr("finola.cli.output.PROGRESS_SECONDS", 0)
    with progress_bar(name) as report:
        report(1, 2)
    said = capsys.readouterr()
    assert said.out == f"{NAMES[name]}\n"
    assert said.err.startswith(f"finola verb: {NAMES[name]}\nfinola: {NAMES[name]}, 1 of 2 ")


def test_progress_bar_of_a_terminal_shows_names_as_text(capsys, monkeypatch):
    monkeypatch.setattr("finola.cli.output.PROGRESS_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress_bar("[/b]\x1b[5m") as report:
        report(1, 2)
    assert "[/b]\\x1b[5m" in capsys.readouterr().err


def test_commands_print_names_as_text(odd, capsys):
    assert main(["compress", str(odd), "-m", "waves512"]) == 0
    assert f"{SHOWN}.finola" in capsys.readouterr().out
    assert main(["decompress", str(odd.with_suffix(".finola"))]) == 0
    assert f"[/b]{SHOWN}/{SHOWN}" in capsys.readouterr().out
    assert f"[/b]{SHOWN}/{SHOWN}.png" in failed(capsys, ["info", str(odd)])
    assert main(["info", f"--{ODD}"]) == 2
    assert SHOWN in capsys.readouterr().err

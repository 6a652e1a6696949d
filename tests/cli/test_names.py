"""Names of files may have any bytes: they are printed as text, and written to files as valid UTF-8."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


WAVES = "waves/64x1@8:32"


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


def test_titles_of_tables_are_not_wrapped(capsys):
    title = "a title that is wider than its table " * 9
    print_table(title, ["a"], [("b",)])
    assert title.rstrip() in capsys.readouterr().out.splitlines()


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


def texts(value: Any) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["evaluate", WAVES, "DATA", "--split", "all", "-o", "OUT"], "images.csv"),
        (["evaluate", WAVES, "DATA", "--split", "all", "-o", "OUT"], "summary.json"),
        (["compare", "DATA", "--split", "all", "--methods", "dct:1", "--workers", "1", "-o", "OUT/x.json"], "x.json"),
        (["embed", "DATA", "-m", WAVES, "-o", "OUT"], "_errors.jsonl"),
        (["embed", "DATA", "-m", WAVES, "-o", "OUT"], "_manifest.json"),
        (["embed", "DATA", "-m", WAVES, "-o", "OUT"], "_shards/00000.json"),
        (["compress", "DATA", "--shards", "-m", "waves512", "-o", "OUT"], "_errors.jsonl"),
    ],
)
def test_files_have_names_as_valid_utf8(arguments, file, odd, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (odd.parent / f"unreadable{ODD}.png").write_bytes(b"no photo")
    out = Path(f"out{ODD}")
    out.mkdir()
    words = [word.replace("DATA", str(odd.parent)).replace("OUT", str(out)) for word in arguments]
    assert main(words) in (0, 2)
    text = (out / file).read_text(encoding="utf-8")
    if not file.endswith(".csv"):
        parsed = [json.loads(line) for line in (text.splitlines() if file.endswith("jsonl") else [text])]
        text = "".join(texts(parsed))
    assert text.encode() and "\\xff" in text
    capsys.readouterr()
    assert main([*words, "--force", "--json"]) in (0, 2)
    said = capsys.readouterr()
    assert all(one.encode() for one in texts(json.loads(said.out)))
    assert said.err == "" or f"unreadable{SHOWN}.png" in said.err


def test_rows_of_embeddings_have_names_as_valid_utf8(odd):
    require = pytest.importorskip("pyarrow.parquet")
    assert main(["embed", str(odd.parent), "-m", WAVES, "-o", "out"]) == 0
    assert require.read_table("out/part-00000.parquet")["id"].to_pylist() == ["[bold]\x1b[31m\\xff.png"]


@pytest.mark.parametrize("name", ["$_{$.png", "bad\udcff$.png"])
def test_plots_show_names_as_text(name, odd):
    os.rename(odd, name)
    assert main(["curvature", name, "-m", WAVES, "-o", "x.png"]) == 0
    assert main(["compare", name, "--methods", "dct:1", "--workers", "1", "--cache", "cache", "--plot", "y.png"]) == 0

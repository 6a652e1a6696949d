"""Photos at URLs: folders, single files and patterns; hidden files and credentials."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

import finola.urls as urls
from finola.data.discovery import find_source
from finola.errors import InputError, MissingFileError
from finola.image_io import save_photo
from finola.urls import without_credentials


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder inside a hidden one, with two photos and a hidden file."""
    folder = tmp_path / ".data" / "photos"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        save_photo(torch.rand(3, 8, 8), folder / f"{name}.png")
    (folder / ".b.png").write_bytes(b"")
    return folder


@pytest.mark.parametrize(("end", "count"), [("", 2), ("/", 2), ("/a.png", 1), ("/*.png", 2), ("/{a,b}.png", 2)])
def test_hidden_parents_do_not_hide_the_photos_that_were_asked_for(photos: Path, end: str, count: int) -> None:
    source = find_source(f"file://{photos}{end}")
    assert len(source) == count and source.open(0).size == (8, 8)


def test_hidden_files_alone_are_not_data(photos: Path) -> None:
    for path in photos.glob("[ab].png"):
        path.unlink()
    with pytest.raises(MissingFileError):
        find_source(f"file://{photos}")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://me:p@ss@host/x",
        "https://me@host/x?sig=secret",
        "s3://key:secret@bucket/x",
        "simplecache::https://host/x?token=secret",
        "zip://a.png::https://host/x?secret",
        "az://c/x?sig=secret",
    ],
)
def test_urls_are_shown_without_credentials(url: str) -> None:
    shown = without_credentials(url)
    assert not any(word in shown for word in ("me", "p@ss", "ss@", "secret", "key"))
    assert shown.split("?")[0].endswith("/x")


def test_messages_are_shown_without_credentials_and_patterns_are_kept() -> None:
    message = "500, url='https://h/x?token=secret': see ftp://me:secret@h/y"
    assert "secret" not in without_credentials(message) and without_credentials(message).endswith("ftp://h/y")
    assert without_credentials("s3://bucket/day=1/??.tar") == "s3://bucket/day=1/??.tar"


@pytest.mark.parametrize("end", ["", "/", "/a.png", "/*.png", "/{a,b}.tar"])
def test_a_server_that_never_answers_is_an_error(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(urls, "SILENT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system accepts connections, and nobody answers
        host = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=f"{host}.*[Tt]imeout"):
            find_source(f"http://{host}{end}")

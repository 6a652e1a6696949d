"""Arguments are resolved to files: photos below folders, patterns, names in FINOLA_DATA, photos of scikit-image."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finola.codec.container import read_container
from finola.data.checks import read_json
from finola.data.discovery import find_source
from finola.data.remote import open_binary
from finola.errors import EXTRAS, InputError, MissingFileError, UnknownNameError, require
from finola.image_io import read_photo
from finola.locations import evenly_spaced, locate, photos_below, skimage_photos
from finola.serialization import read_shapes


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_photos_below_a_folder_are_sorted_and_other_files_skipped(tmp_path: Path) -> None:
    put(tmp_path, "b.jpg", "a/z.PNG", "a/notes.txt", ".hidden.jpg", ".cache/c.jpg", "c/phone.heic")
    if os.name != "nt":  # on Windows a link needs the rights of an administrator
        (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert photos_below(tmp_path) == ["a/z.PNG", "b.jpg", "c/phone.heic"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has other special files")
def test_special_files_are_neither_listed_nor_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    put(tmp_path, "a.png", "inner/b.png")
    Path("link.png").symlink_to("a.png")
    Path("broken.png").symlink_to("missing.png")
    os.mkfifo("fifo.png")
    Path("device.png").symlink_to(os.devnull)
    Path("inner", "fifo.png").symlink_to(tmp_path / "fifo.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.png")
        assert photos_below(tmp_path) == ["a.png", "broken.png", "inner/b.png", "link.png"]
        for name in ("fifo.png", "device.png", "socket.png", "inner/fifo.png"):
            for read in (read_photo, read_container, read_json, open_binary, read_shapes, locate_data):
                with pytest.raises(InputError, match=name):
                    read(Path(name))
    assert len(find_source(tmp_path)) == len(find_source(f"file://{tmp_path}")) == 4


def locate_data(path: Path) -> None:
    find_source(str(path))


@pytest.mark.skipif(os.name == "nt", reason="Windows has other special files")
@pytest.mark.parametrize("suffix", [".parquet", ".tar"])
def test_special_files_are_no_tables(suffix: str, tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    os.mkfifo(tmp_path / f"fifo{suffix}")
    (tmp_path / f"device{suffix}").symlink_to(os.devnull)
    assert len(find_source(tmp_path)) == 1
    with pytest.raises(InputError, match="device"):
        find_source(f"{tmp_path}/device*")


def test_paths_take_precedence_over_patterns_and_names_in_finola_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    put(home, "photos/1.png", "mine/2.png")
    put(here, "mine/3.png", "mine/[4].png", "mine/deep/5.png")
    monkeypatch.chdir(here)
    monkeypatch.setenv("FINOLA_DATA", str(home))
    assert locate("mine") == [Path("mine")] and locate("photos") == [home / "photos"]
    assert locate("mine/[4].png") == [Path("mine/[4].png")]
    assert locate("mine/*.png") == [Path("mine/3.png"), Path("mine/[4].png")]
    assert locate("mine/**/5.png") == [Path("mine/deep/5.png")]
    assert locate("photos/*.png") == [home / "photos" / "1.png"]
    assert locate(None) == [home]
    with pytest.raises(MissingFileError, match=r"'elsewhere'.*mine, photos"):
        locate("elsewhere")
    with pytest.raises(InputError):
        locate("x" * 5000)


def test_photos_of_scikit_image_are_found_by_name() -> None:
    assert locate("skimage:astronaut") == [skimage_photos()["astronaut"]]
    with pytest.raises(UnknownNameError, match=r"'astronomer'.*astronaut"):
        locate("skimage:astronomer")


@given(st.integers(1, 300), st.integers(1, 300))
def test_evenly_spaced_indices_cover_both_ends(length: int, count: int) -> None:
    found = evenly_spaced(length, count)
    assert len(found) == min(length, count) and sorted(set(found)) == found and found[0] == 0
    assert count == 1 or found[-1] == length - 1
    if count < length:
        assert found == np.linspace(0, length - 1, count).round().astype(int).tolist()


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_photos_below_one_is_rejected(count: int) -> None:
    with pytest.raises(InputError, match=str(count)):
        evenly_spaced(5, count)


def test_a_missing_dependency_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, extra in EXTRAS.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"{module}.*finola\[{extra}\]"):
            require(module)


def test_locations_need_the_standard_library_only() -> None:
    code = "import sys; import finola.locations, finola.files; "
    code += "print([name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"

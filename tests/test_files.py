from __future__ import annotations

import errno
import os

import pytest
import torch

import finola
from finola.errors import InputError, MissingFileError, OutputExistsError
from finola.files import output_path, output_paths, write_tensors, write_text


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path):
    for text in ("old", "new"):
        write_text(tmp_path / "a.txt", text)
        assert (tmp_path / "a.txt").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_crash_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch):
    write_text(tmp_path / "a.txt", "old")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_names_of_any_length_are_written(tmp_path):
    name = "n" * (os.pathconf(tmp_path, "PC_NAME_MAX") - 4 if hasattr(os, "pathconf") else 251) + ".txt"
    write_text(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_saved_weights_have_default_permissions(tmp_path):
    write_text(tmp_path / "a.txt", "text")
    write_tensors(tmp_path / "b.safetensors", {"a": torch.zeros(1)})
    finola.create("waves/16x1@4:16").save_pretrained(tmp_path / "model")
    files = [tmp_path / "a.txt", tmp_path / "b.safetensors", tmp_path / "model" / "model.safetensors"]
    assert len({file.stat().st_mode for file in files}) == 1


def test_an_output_is_checked_before_it_is_written(tmp_path):
    folder, photo, other = tmp_path / "data", tmp_path / "photo.png", tmp_path / "other.txt"
    folder.mkdir()
    for path in (photo, other, folder / "0.png"):
        path.write_text("kept")
    (tmp_path / "link.png").symlink_to(folder / "0.png")
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "missing.png")
    os.link(photo, tmp_path / "hard.png")
    for target in (photo, tmp_path / "data" / ".." / "photo.png", tmp_path / "hard.png", tmp_path / "link.png"):
        with pytest.raises(OutputExistsError, match="never overwritten"):
            output_path(target, [photo, folder], force=True)
    for target in (other, tmp_path / "nowhere.png"):
        with pytest.raises(OutputExistsError, match="--force"):
            output_path(target, [photo, folder])
        assert output_path(target, [photo, folder], force=True) == target
    assert output_path(folder / "new.png", [folder]) == folder / "new.png"


@pytest.mark.parametrize("target", ["file.txt/x.png", "file.txt/sub/x.png", "folder", os.devnull])
def test_an_output_that_cannot_be_a_file_is_an_input_error(target, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(InputError):
        output_paths([tmp_path / target], force=True, create=True)


def test_folders_are_created_only_when_every_output_is_allowed(tmp_path):
    first, second = tmp_path / "new" / "a.png", tmp_path / "new" / "b.png"
    with pytest.raises(MissingFileError):
        output_path(first)
    for twin in (first, tmp_path / "new" / "A.png", tmp_path / "new" / "." / "a.png"):
        with pytest.raises(OutputExistsError):
            output_paths([first, twin], create=True)
    assert list(tmp_path.iterdir()) == []
    assert output_paths([first, second], create=True) == [first, second] and first.parent.is_dir()


def test_a_failed_write_names_its_file(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        write_text(tmp_path / "a.txt", "text")
    assert caught.value.filename == str(tmp_path / "a.txt") and list(tmp_path.iterdir()) == []


def test_bytes_of_names_that_are_not_utf_8_are_escaped(tmp_path):
    write_text(tmp_path / "a.csv", os.fsdecode(b"\xff.png"))
    assert (tmp_path / "a.csv").read_bytes() == b"\\xff.png"

from __future__ import annotations

import os

import pytest

from finola.files import write_text


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
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

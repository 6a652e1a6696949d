from __future__ import annotations

import os

import pytest
import torch

import finola
from finola.files import write_tensors, write_text


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


def test_weights_may_be_read_by_whoever_may_read_other_files(tmp_path):
    write_text(tmp_path / "a.txt", "text")
    write_tensors(tmp_path / "b.safetensors", {"a": torch.zeros(1)})
    finola.create("waves/16x1@4:16").save_pretrained(tmp_path / "model")
    files = [tmp_path / "a.txt", tmp_path / "b.safetensors", tmp_path / "model" / "model.safetensors"]
    assert len({file.stat().st_mode for file in files}) == 1

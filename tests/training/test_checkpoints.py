"""Checkpoints hold tensors and plain values, are replaced whole, and are read without unpickling objects."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from training.runs import run

from finola.training.checkpoints import LAST, PREVIOUS, find_resumable, plain, read_checkpoint, write_checkpoint
from finola.training.randomness import capture, restore


class Harmful:
    def __reduce__(self) -> tuple:
        return os.system, ("touch harmed",)


def test_a_run_s_checkpoint_needs_no_unpickling(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.max_steps=2", "trainer.ema=0.9", "trainer.max_time=1h")
    for name in ("last.ckpt", "best.ckpt"):
        content = torch.load(tmp_path / "run" / name, weights_only=True)
        assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks"} <= content.keys()
        assert {"EMA", "RandomState", "Saving", "Clock"} <= content["callbacks"].keys()
        assert content["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [{"epoch": 0, "step": 2}]
        assert plain(content).keys() == content.keys()


def test_a_harmful_file_is_refused_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Harmful()}, tmp_path / LAST)
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read as a checkpoint"):
        read_checkpoint(tmp_path / LAST)
    (tmp_path / PREVIOUS).write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ValueError, match=r"previous\.ckpt cannot be read as a checkpoint: it is truncated or damaged"):
        read_checkpoint(tmp_path / PREVIOUS)
    assert not (tmp_path / "harmed").exists()


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"checkpoint\.callbacks\.mine is a ndarray; a checkpoint holds tensors"):
        write_checkpoint({"callbacks": {"mine": np.zeros(3)}}, tmp_path / LAST)
    assert list(tmp_path.iterdir()) == []


def test_values_become_plain() -> None:
    given = OrderedDict(a=(1, 2.0, "x"), b=[None, True], c=torch.ones(2))
    result = plain(given)
    assert type(result) is dict and result["a"] == (1, 2.0, "x") and result["b"] == [None, True]


def test_the_last_one_always_exists_and_the_one_before_is_kept(tmp_path: Path) -> None:
    for step in range(3):
        write_checkpoint({"global_step": step}, tmp_path / LAST)
    assert read_checkpoint(tmp_path / LAST)["global_step"] == 2
    assert read_checkpoint(tmp_path / PREVIOUS)["global_step"] == 1
    assert find_resumable(tmp_path) == (tmp_path / LAST, "")
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}
    assert find_resumable(tmp_path / "new") == (None, "")


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint({"global_step": 1}, tmp_path / LAST)

    def full(content: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint({"global_step": 2}, tmp_path / LAST)
    assert read_checkpoint(tmp_path / LAST)["global_step"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {LAST}


def test_without_links_the_one_before_is_still_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    for step in range(2):
        write_checkpoint({"global_step": step}, tmp_path / LAST)
    assert [read_checkpoint(tmp_path / name)["global_step"] for name in (LAST, PREVIOUS)] == [1, 0]


def test_random_generators_return_to_where_they_were(tmp_path: Path) -> None:
    import random

    draw = lambda: (random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())  # noqa: E731
    draw()
    write_checkpoint({"random": capture()}, tmp_path / LAST)
    first = draw()
    restore(read_checkpoint(tmp_path / LAST)["random"])
    assert draw() == first

"""Checkpoints hold tensors and plain values, are replaced whole, and are read without unpickling objects."""

from __future__ import annotations

import errno
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.runs import full_after, run

from finola.errors import CorruptFileError
from finola.training import checkpoint_files as checkpoints
from finola.training.checkpoint_files import (
    LAST,
    PREVIOUS,
    _seal,
    find_resumable,
    plain,
    read_checkpoint,
    write_checkpoint,
)
from finola.training.rng_state import capture, restore


def content(step: int) -> dict[str, Any]:
    """The least that a run can be resumed from."""
    weights = {"a": torch.arange(40.0) + step, "b": torch.ones(3)}
    return {"global_step": step, "state_dict": weights, "optimizer_states": [], "loops": {}}


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
    write_checkpoint(content(1), tmp_path / PREVIOUS)
    for write in (
        lambda: torch.save({"global_step": 5, "state_dict": Harmful()}, tmp_path / LAST),
        lambda: (tmp_path / LAST).write_bytes(pickle.dumps(Harmful())),
        lambda: torch.save(content(5), tmp_path / LAST),  # harmless, but nothing proves that it is intact
    ):
        write()
        with pytest.raises(CorruptFileError, match=r"last\.ckpt"):
            read_checkpoint(tmp_path / LAST)
        path, step, sentence = find_resumable(tmp_path)
        assert (path, step) == (tmp_path / PREVIOUS, 1) and str(tmp_path / LAST) in sentence
    with (tmp_path / LAST).open("w+b") as file:  # with a checksum that fits
        torch.save({"global_step": 5, "state_dict": Harmful()}, file)
        _seal(file)
    with pytest.raises(CorruptFileError, match=r"last\.ckpt"):
        read_checkpoint(tmp_path / LAST)
    assert find_resumable(tmp_path)[1] == 1
    assert not (tmp_path / "harmed").exists()


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    """Flips over the whole file and all of its directory, and truncations: never another content, never an error."""
    write_checkpoint(content(1), tmp_path / LAST)
    write_checkpoint(content(2), tmp_path / LAST)
    whole = (tmp_path / LAST).read_bytes()
    directory = whole.index(b"PK\x01\x02")
    generator = torch.Generator().manual_seed(0)
    flips = [*torch.randint(directory, (200,), generator=generator).tolist(), *range(directory, len(whole))]
    spoiled = [
        whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :] for position in flips
    ]
    spoiled += [whole[:length] for length in torch.randint(len(whole), (50,), generator=generator).tolist()]
    spoiled += [whole + b"x", b"", whole[1:], whole[:-1]]
    for data in spoiled:
        (tmp_path / LAST).write_bytes(data)
        path, step, sentence = find_resumable(tmp_path)
        assert (path, step) == (tmp_path / PREVIOUS, 1)
        assert f"{tmp_path / LAST} cannot be read" in sentence and "Resuming from previous.ckpt" in sentence
    (tmp_path / LAST).write_bytes(whole)
    assert find_resumable(tmp_path) == (tmp_path / LAST, 2, "")


@pytest.mark.parametrize("change", [{"global_step": "7"}, {"global_step": None}, "global_step", "state_dict", "loops"])
def test_an_intact_file_that_is_no_run_s_checkpoint_is_not_resumed_from(tmp_path: Path, change: Any) -> None:
    whole = content(5)
    spoiled = whole | change if isinstance(change, dict) else {key: whole[key] for key in whole if key != change}
    write_checkpoint(content(1), tmp_path / PREVIOUS)
    write_checkpoint(spoiled, tmp_path / LAST)
    path, step, sentence = find_resumable(tmp_path)
    assert (path, step) == (tmp_path / PREVIOUS, 1) and str(tmp_path / LAST) in sentence
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(CorruptFileError, match="No older checkpoint is left"):
        find_resumable(tmp_path)


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
        write_checkpoint(content(step), tmp_path / LAST)
    assert read_checkpoint(tmp_path / LAST)["global_step"] == 2
    assert read_checkpoint(tmp_path / PREVIOUS)["global_step"] == 1
    assert find_resumable(tmp_path) == (tmp_path / LAST, 2, "")
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}
    assert find_resumable(tmp_path / "new") == (None, 0, "")


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint({"global_step": 1}, tmp_path / LAST)

    monkeypatch.setattr(checkpoints._Recorder, "write", full_after(1000))
    with pytest.raises(OSError, match="No space left") as caught:  # torch.save reports a RuntimeError of its own
        write_checkpoint({"global_step": 2, "weights": torch.zeros(10_000)}, tmp_path / LAST)
    assert caught.value.errno == errno.ENOSPC
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

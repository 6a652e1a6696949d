"""Checkpoints contain tensors and plain values, are written atomically, and are read without unpickling objects."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.runs import full_after, run

from finola.errors import CorruptFileError
from finola.training import checkpointing as checkpoints
from finola.training.checkpoint import (
    LAST,
    PREVIOUS,
    _append_checksum,
    find_resumable,
    plain,
    read_checkpoint,
    write_checkpoint,
)
from finola.training.state import capture, restore


def content(step: int) -> dict[str, Any]:
    """Minimal content of a checkpoint that can be resumed from."""
    weights = {"a": torch.arange(40.0) + step, "b": torch.ones(3)}
    return {"global_step": step, "state_dict": weights, "optimizer_states": [], "loops": {}}


class Harmful:
    def __reduce__(self) -> tuple:
        return os.system, ("touch harmed",)


def test_checkpoint_loads_with_weights_only(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.max_steps=2", "trainer.ema_decay=0.9", "trainer.max_time=1h")
    for name in ("last.ckpt", "best.ckpt"):
        content = torch.load(tmp_path / "run" / name, weights_only=True)
        assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks"} <= content.keys()
        assert {"EMA", "RandomState", "Saving", "Clock"} <= content["callbacks"].keys()
        assert content["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [{"epoch": 0, "step": 2}]
        assert plain(content).keys() == content.keys()


def test_malicious_checkpoint_is_rejected_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(content(1), tmp_path / PREVIOUS)
    for write in (
        lambda: torch.save({"global_step": 5, "state_dict": Harmful()}, tmp_path / LAST),
        lambda: (tmp_path / LAST).write_bytes(pickle.dumps(Harmful())),
        lambda: torch.save(content(5), tmp_path / LAST),  # harmless, but without checksum
    ):
        write()
        with pytest.raises(CorruptFileError, match=r"last\.ckpt"):
            read_checkpoint(tmp_path / LAST)
        path, step, message = find_resumable(tmp_path)
        assert (path, step) == (tmp_path / PREVIOUS, 1) and str(tmp_path / LAST) in message
    with (tmp_path / LAST).open("w+b") as file:  # with a valid checksum
        torch.save({"global_step": 5, "state_dict": Harmful()}, file)
        _append_checksum(file)
    with pytest.raises(CorruptFileError, match=r"last\.ckpt"):
        read_checkpoint(tmp_path / LAST)
    assert find_resumable(tmp_path)[1] == 1
    assert not (tmp_path / "harmed").exists()


def test_every_corrupted_byte_is_detected(tmp_path: Path) -> None:
    """Flip bits across the file and its zip directory, and truncate: the previous checkpoint is used each time."""
    write_checkpoint(content(1), tmp_path / LAST)
    write_checkpoint(content(2), tmp_path / LAST)
    whole = (tmp_path / LAST).read_bytes()
    directory = whole.index(b"PK\x01\x02")
    generator = torch.Generator().manual_seed(0)
    flips = [*torch.randint(directory, (200,), generator=generator).tolist(), *range(directory, len(whole))]
    corrupted = [
        whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :] for position in flips
    ]
    corrupted += [whole[:length] for length in torch.randint(len(whole), (50,), generator=generator).tolist()]
    corrupted += [whole + b"x", b"", whole[1:], whole[:-1]]
    for data in corrupted:
        (tmp_path / LAST).write_bytes(data)
        path, step, message = find_resumable(tmp_path)
        assert (path, step) == (tmp_path / PREVIOUS, 1)
        assert str(tmp_path / LAST) in message and "previous.ckpt" in message
    (tmp_path / LAST).write_bytes(whole)
    assert find_resumable(tmp_path) == (tmp_path / LAST, 2, "")


@pytest.mark.parametrize("change", [{"global_step": "7"}, {"global_step": None}, "global_step", "state_dict", "loops"])
def test_checkpoint_without_required_entries_is_not_resumed_from(tmp_path: Path, change: Any) -> None:
    whole = content(5)
    corrupted = whole | change if isinstance(change, dict) else {key: whole[key] for key in whole if key != change}
    write_checkpoint(content(1), tmp_path / PREVIOUS)
    write_checkpoint(corrupted, tmp_path / LAST)
    path, step, message = find_resumable(tmp_path)
    assert (path, step) == (tmp_path / PREVIOUS, 1) and str(tmp_path / LAST) in message
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(CorruptFileError, match=re.escape(str(tmp_path / LAST))):
        find_resumable(tmp_path)


def test_unsupported_types_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"checkpoint\.callbacks\.mine .*ndarray"):
        write_checkpoint({"callbacks": {"mine": np.zeros(3)}}, tmp_path / LAST)
    assert list(tmp_path.iterdir()) == []


def test_values_are_converted_to_plain_types() -> None:
    given = OrderedDict(a=(1, 2.0, "x"), b=[None, True], c=torch.ones(2))
    result = plain(given)
    assert type(result) is dict and result["a"] == (1, 2.0, "x") and result["b"] == [None, True]


def test_last_and_previous_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in range(3):
        write_checkpoint(content(step), tmp_path / LAST)
    assert read_checkpoint(tmp_path / LAST)["global_step"] == 2
    assert read_checkpoint(tmp_path / PREVIOUS)["global_step"] == 1
    assert find_resumable(tmp_path) == (tmp_path / LAST, 2, "")
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}
    assert find_resumable(tmp_path / "new") == (None, 0, "")


def test_failed_write_keeps_the_existing_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint({"global_step": 1}, tmp_path / LAST)

    monkeypatch.setattr(checkpoints._Recorder, "write", full_after(1000))
    with pytest.raises(OSError, match="No space left") as caught:  # torch.save itself raises a RuntimeError
        write_checkpoint({"global_step": 2, "weights": torch.zeros(10_000)}, tmp_path / LAST)
    assert caught.value.errno == errno.ENOSPC
    assert read_checkpoint(tmp_path / LAST)["global_step"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {LAST}


def test_previous_checkpoint_is_kept_on_file_systems_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    for step in range(2):
        write_checkpoint({"global_step": step}, tmp_path / LAST)
    assert [read_checkpoint(tmp_path / name)["global_step"] for name in (LAST, PREVIOUS)] == [1, 0]


def test_random_generator_states_are_restored(tmp_path: Path) -> None:
    import random

    draw = lambda: (random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())  # noqa: E731
    draw()
    write_checkpoint({"random": capture()}, tmp_path / LAST)
    first = draw()
    restore(read_checkpoint(tmp_path / LAST)["random"])
    assert draw() == first

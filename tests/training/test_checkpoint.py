"""Checkpoints contain tensors and plain values, are written atomically, and are read without unpickling objects."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.runs import run

from finola.errors import CorruptFileError
from finola.training.checkpoint import (
    LAST,
    MARKER,
    PREVIOUS,
    find_resumable,
    plain,
    read_checkpoint,
    write_checkpoint,
)
from finola.training.state import capture, restore


def content(step: int) -> dict[str, Any]:
    """Minimal content of a checkpoint that can be resumed from."""
    weights = {"a": torch.arange(40.0) + step, "b": torch.ones(3)}
    return {"step": step, "epoch": 0, "batch": step, "task": weights, "optimiser": None, "random": []}


class Harmful:
    def __reduce__(self) -> tuple:
        return os.system, ("touch harmed",)


def test_checkpoint_contains_the_whole_state(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.max_steps=2", "trainer.ema_decay=0.9", "trainer.max_time=1h")
    for name in ("last.ckpt", "best.ckpt"):
        content = read_checkpoint(tmp_path / "run" / name)
        assert {"step", "epoch", "batch", "seconds", "best", "metrics", "task", "optimiser", "average", "random"} == {
            *content
        } - {"best_step", "validated_step"}
        assert (content["epoch"], content["batch"], content["step"]) == (0, 2, 2)
        assert content["average"].keys() == {key[6:] for key in content["task"]}


def test_malicious_checkpoint_is_rejected_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(content(1), tmp_path / PREVIOUS)
    for write in (
        lambda: torch.save({"step": 5, "task": Harmful()}, tmp_path / LAST),
        lambda: (tmp_path / LAST).write_bytes(pickle.dumps(Harmful())),
        lambda: torch.save(content(5), tmp_path / LAST),  # harmless, but without checksum
    ):
        write()
        with pytest.raises(CorruptFileError, match=r"last\.ckpt"):
            read_checkpoint(tmp_path / LAST)
        found, message = find_resumable(tmp_path)
        assert found is not None and found["step"] == 1 and str(tmp_path / LAST) in message
    data = io.BytesIO()
    torch.save({"step": 5, "task": Harmful()}, data)
    (tmp_path / LAST).write_bytes(data.getvalue() + MARKER + hashlib.sha256(data.getvalue()).digest())
    with pytest.raises(CorruptFileError, match=r"last\.ckpt"):
        read_checkpoint(tmp_path / LAST)
    assert find_resumable(tmp_path)[0]["step"] == 1  # type: ignore[index]
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
        found, message = find_resumable(tmp_path)
        assert found is not None and found["step"] == 1
        assert str(tmp_path / LAST) in message and "previous.ckpt" in message
    (tmp_path / LAST).write_bytes(whole)
    found, message = find_resumable(tmp_path)
    assert found is not None and found["step"] == 2 and not message


@pytest.mark.parametrize("change", [{"step": "7"}, {"step": None}, "step", "task", "batch"])
def test_checkpoint_without_required_entries_is_not_resumed_from(tmp_path: Path, change: Any) -> None:
    whole = content(5)
    corrupted = whole | change if isinstance(change, dict) else {key: whole[key] for key in whole if key != change}
    write_checkpoint(content(1), tmp_path / PREVIOUS)
    write_checkpoint(corrupted, tmp_path / LAST)
    found, message = find_resumable(tmp_path)
    assert found is not None and found["step"] == 1 and str(tmp_path / LAST) in message
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(CorruptFileError, match=re.escape(str(tmp_path / LAST))):
        find_resumable(tmp_path)


def test_unsupported_types_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"checkpoint\.mine\.own .*ndarray"):
        write_checkpoint({"mine": {"own": np.zeros(3)}}, tmp_path / LAST)
    assert list(tmp_path.iterdir()) == []


def test_values_are_converted_to_plain_types() -> None:
    given = OrderedDict(a=(1, 2.0, "x"), b=[None, True], c=torch.ones(2))
    result = plain(given)
    assert type(result) is dict and result["a"] == (1, 2.0, "x") and result["b"] == [None, True]


def test_last_and_previous_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in range(3):
        write_checkpoint(content(step), tmp_path / LAST)
    assert read_checkpoint(tmp_path / LAST)["step"] == 2
    assert read_checkpoint(tmp_path / PREVIOUS)["step"] == 1
    found, message = find_resumable(tmp_path)
    assert found is not None and found["step"] == 2 and not message
    assert {path.name for path in tmp_path.iterdir()} == {LAST, PREVIOUS}
    assert find_resumable(tmp_path / "new") == (None, "")


def test_failed_write_keeps_the_existing_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint({"step": 1}, tmp_path / LAST)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_checkpoint({"step": 2, "weights": torch.zeros(10_000)}, tmp_path / LAST)
    assert caught.value.errno == errno.ENOSPC
    assert read_checkpoint(tmp_path / LAST)["step"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {LAST}


def test_previous_checkpoint_is_kept_on_file_systems_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    for step in range(2):
        write_checkpoint({"step": step}, tmp_path / LAST)
    assert [read_checkpoint(tmp_path / name)["step"] for name in (LAST, PREVIOUS)] == [1, 0]


def test_random_generator_states_are_restored(tmp_path: Path) -> None:
    import random

    draw = lambda: (random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())  # noqa: E731
    draw()
    write_checkpoint({"random": capture()}, tmp_path / LAST)
    first = draw()
    restore(read_checkpoint(tmp_path / LAST)["random"])
    assert draw() == first

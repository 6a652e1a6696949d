"""A lost process ends the others, and the run resumes on any number of them without losing or repeating a photo."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from training.ranks import photos, run_ranks
from training.runs import TINY, weights

import finola
from finola.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes as POSIX does")

SHORT = ("schedule.epochs=1", "data.val_limit=4")


def words(folder: Path, *overrides: str, resume: bool = False) -> list[str]:
    return ["train", "smoke", *TINY, *SHORT, *overrides, "--out", str(folder), *(["--resume"] if resume else [])]


FAULTS: dict[str, tuple[list[Any], list[int], int, str]] = {  # fault, exit codes, rank that reports it, text
    "first-killed": (["kill", 0, 2], [-9, 2], 1, "connection to another process was lost"),
    "failed": (["fail", 1, 2], [2, 2], 1, "no more photos"),
    "disk-full": (["full", 0, 2], [2, 2], 0, "No space left on device"),
}
ACCUMULATE, EMA, FSDP = "trainer.accumulate_grad_batches=2", "trainer.ema_decay=0.9", "trainer.strategy=fsdp"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All runs of this module in one script, whose start takes longer than a run."""
    folder = tmp_path_factory.mktemp("runs")

    def plan(world: int, name: str, *overrides: str, resume: bool = False, **fault: Any) -> dict[str, Any]:
        return {"world": world, "words": words(folder / name, *overrides, resume=resume), **fault}

    every = "checkpoint.every_steps=1"
    plans = {
        "killed": plan(2, "run", every, ACCUMULATE, fault=["kill", 1, 3]),
        "four": plan(4, "run", ACCUMULATE, "trainer.max_steps=5", resume=True),
        "one": plan(1, "run", ACCUMULATE, resume=True),
        "whole": plan(1, "whole", ACCUMULATE),
        "ddp": plan(2, "ddp", ACCUMULATE, EMA, "trainer.max_steps=4"),
        "fsdp-1": plan(2, "fsdp", ACCUMULATE, EMA, FSDP, "trainer.max_steps=2"),
        "fsdp-2": plan(2, "fsdp", ACCUMULATE, EMA, FSDP, "trainer.max_steps=4", resume=True),
        "after-fsdp": plan(1, "fsdp", ACCUMULATE, EMA, resume=True),
    }
    plans |= {name: plan(2, name, every, fault=row[0]) for name, row in FAULTS.items()}
    codes = run_ranks(folder, *plans.values())
    return Runs(folder, list(plans), dict(zip(plans, codes, strict=True)))


@dataclass
class Runs:
    """Runs by name: directory, order, and exit codes of their ranks."""

    folder: Path
    names: list[str]
    codes: dict[str, list[int]]

    def photos(self, name: str, until: int | None = None) -> list[tuple[int, int, int]]:
        return photos(self.folder, self.names.index(name), len(self.codes[name]), until)

    def errors(self, name: str) -> list[str]:
        number = self.names.index(name)
        return [(self.folder / f"{number}-{rank}.err").read_text() for rank in range(len(self.codes[name]))]


def test_killed_rank_ends_the_others_and_the_epoch_continues_on_four_ranks_and_on_one(runs: Runs) -> None:
    assert runs.codes["killed"] == [2, -9]
    assert [runs.codes[name] for name in ("four", "one", "whole")] == [[0, 0, 0, 0], [0], [0]]
    message = runs.errors("killed")[0]
    assert "connection to another process was lost" in message and f"--resume --out {runs.folder / 'run'}" in message
    assert message.count("\n") == 1
    seen = [*runs.photos("killed", until=3), *runs.photos("four"), *runs.photos("one")]
    assert sorted(photo for _, _, photo in seen) == list(range(64))  # one epoch, each photo once
    assert sorted(seen) == runs.photos("whole")  # and each in the same step as in a run on one rank
    assert {step for _, step, _ in runs.photos("four")} == {4, 5}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_one_rank_ends_the_other_with_a_message(runs: Runs, name: str) -> None:
    _, codes, speaker, text = FAULTS[name]
    assert runs.codes[name] == codes
    printed = runs.errors(name)
    assert text in printed[speaker] and printed[speaker].count("finola train:") == 1
    assert "Traceback" not in "".join(printed)
    assert read_checkpoint(runs.folder / name / "last.ckpt")["step"] == 2


def test_fsdp_trains_and_resumes_as_ddp_does_and_exports_its_model(runs: Runs) -> None:
    """With EMA and Muon. The last part of the run is trained by one process, from the same kind of checkpoint."""
    names = ("ddp", "fsdp-1", "fsdp-2", "after-fsdp")
    assert [runs.codes[name] for name in names] == [[0, 0], [0, 0], [0, 0], [0]]
    seen = [*runs.photos("fsdp-1"), *runs.photos("fsdp-2"), *runs.photos("after-fsdp")]
    assert sorted(seen) == runs.photos("whole")
    divided, copied = weights(runs.folder / "fsdp", "previous.ckpt"), weights(runs.folder / "ddp")
    assert divided.keys() == copied.keys()
    for key, value in copied.items():
        torch.testing.assert_close(divided[key], value, rtol=1e-3, atol=1e-4 * float(value.abs().max() + 1e-6))
    assert finola.load(runs.folder / "fsdp" / "model").state_dict().keys() <= {key[6:] for key in copied}

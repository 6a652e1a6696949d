"""Small runs for tests: a wave model without batch norm on synthetic or bundled photos, in this process or another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import finola
from finola.recipes.recipe import Recipe
from finola.training import load_recipe, loop, train
from finola.training.checkpoint import read_checkpoint
from finola.training.data import Photos
from finola.training.log import read_curve
from finola.training.run import Outcome
from finola.training.state import State

COMMON = (  # for every task
    "data.limit=64",
    "data.val_batch_size=null",
    "data.val_limit=5",
    "data.batch_size=8",
    "data.num_workers=0",
    "schedule.epochs=3",
    "trainer.accelerator=cpu",
    "trainer.validate_first=false",
    "checkpoint.every_minutes=0",
    "logging.every_steps=1",
)
TINY = (  # for the recipe smoke
    *COMMON,
    "model.name=waves+conv/32x1@4:16",
    "data.crops_per_image=1",
    "data.val_size=16",
    "logging.samples=2",
)
STEPS_PER_EPOCH = 8


def tiny(*overrides: str) -> Recipe:
    """The smoke recipe with tiny settings: milliseconds per step, eight steps per epoch, three epochs."""
    return load_recipe("smoke", [*TINY, *overrides])


def run(folder: Path, *overrides: str, **options: Any) -> Outcome:
    return train(tiny(*overrides), folder, quiet=True, **options)


def start(
    folder: Path, *overrides: str, recipe: str = "smoke", settings: tuple[str, ...] = TINY, resume: bool = False
) -> subprocess.Popen[str]:
    """Start `finola train` in a separate process."""
    words = ["train", recipe, *settings, *overrides, "--out", str(folder), *(["--resume"] if resume else [])]
    environment = os.environ | {
        "PYTHONPATH": str(Path(finola.__file__).parents[1]),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    command = [sys.executable, "-m", "finola.cli", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(folder: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    content = read_checkpoint(folder / name)
    moments = content["optimiser"]["state"]
    return content["task"] | {f"moment {i}": state["exp_avg"] for i, state in moments.items()}


def same_weights(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def loss_curve(folder: Path) -> dict[int, float]:
    return {int(row["step"]): row["train/loss"] for row in read_curve(folder / "metrics.csv") if "train/loss" in row}


def killed(folder: Path, where: str, *overrides: str) -> int:
    """Train in a process that kills itself: in the step numbered `where`, or while it writes its second checkpoint."""
    code = """
import os, signal, sys
from pathlib import Path
import pytest
from training.runs import run, send_signal
from finola.training import checkpoint
folder, where, *overrides = sys.argv[1:]
with pytest.MonkeyPatch.context() as patch:
    if where == "writing":
        keep = checkpoint._keep
        def die(*names):
            keep(*names)
            os.kill(os.getpid(), signal.SIGKILL)
        checkpoint._keep = die
    else:
        send_signal(patch, signal.SIGKILL, int(where))
    run(Path(folder), *overrides)
"""
    paths = [str(Path(finola.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    command = [sys.executable, "-c", code, str(folder), where, *overrides]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600).returncode


def before_steps(patch: pytest.MonkeyPatch, action: Callable[[State], None]) -> None:
    """Call `action(state)` before every optimisation step."""
    step = loop.train_step

    def wrapped(state: State, batches: list[Any]) -> dict[str, torch.Tensor]:
        action(state)
        return step(state, batches)

    patch.setattr(loop, "train_step", wrapped)


def send_signal(patch: pytest.MonkeyPatch, number: signal.Signals, step: int, validating: bool = False) -> None:
    """Send a signal to this process before a step, or during the validation after `step` steps."""
    if not validating:
        before_steps(patch, lambda state: os.kill(os.getpid(), number) if state.step == step else None)
        return
    validate, batches = loop.validate, Photos.validation_batches

    def in_validation(state: State, *rest: Any) -> None:
        def interrupted(self: Photos, *arguments: Any) -> Iterator[Any]:
            for count, batch in enumerate(batches(self, *arguments)):
                if count == 0:
                    os.kill(os.getpid(), number)
                yield batch

        with pytest.MonkeyPatch.context() as inner:
            if state.step == step:
                inner.setattr(Photos, "validation_batches", interrupted)
            validate(state, *rest)

    patch.setattr(loop, "validate", in_validation)

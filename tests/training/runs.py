"""Small runs for tests: a wave model without batch norm on synthetic or bundled photos, in this process or another."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

import finola
from finola.training import load_recipe, train
from finola.training.checkpoint import read_checkpoint
from finola.training.recipe import Recipe
from finola.training.log import read_curve
from finola.training.run import Outcome

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
    moments = content["optimizer_states"][0]["state"]
    return content["state_dict"] | {f"moment {i}": state["exp_avg"] for i, state in moments.items()}


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
from training.runs import SignalAt, run
from finola.training import checkpointing as checkpoints
from finola.training import trainer as engine
folder, where, *overrides = sys.argv[1:]
if where == "writing":
    link = checkpoints.link
    def die(*names):
        link(*names)
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.link = die
else:
    build = engine.build_callbacks
    engine.build_callbacks = lambda *args: [SignalAt(signal.SIGKILL, int(where)), *build(*args)]
run(Path(folder), *overrides)
"""
    paths = [str(Path(finola.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    command = [sys.executable, "-c", code, str(folder), where, *overrides]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600).returncode


def full_after(size: int) -> Callable[..., int]:
    """Method `write` of a file on a disk with `size` free bytes."""
    written = 0

    def write(self: Any, data: bytes) -> int:
        nonlocal written
        written += len(data)
        if written > size:
            self.error = OSError(errno.ENOSPC, "No space left on device")
            raise self.error
        return len(data)

    return write


class SignalAt(Callback):
    """Send a signal to this process during a training step or validation."""

    def __init__(self, number: signal.Signals, step: int, validating: bool = False) -> None:
        self.number, self.step, self.validating = number, step, validating

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if not self.validating and trainer.global_step == self.step:
            os.kill(os.getpid(), self.number)

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.validating and trainer.global_step == self.step:
            os.kill(os.getpid(), self.number)

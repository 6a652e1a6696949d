"""The training loop: from a batch to the optimiser step, validation, checkpoints, and the end of a run."""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor

from finola.data import Batch
from finola.training.checkpoint import BEST, RunDirectory
from finola.training.devices import gather, is_distributed, now
from finola.training.log import Log
from finola.training.state import State


def fit(state: State, run: RunDirectory, log: Log) -> str | None:
    """Train until a limit of the recipe, or until a signal, whose name is returned."""
    task, photos, section = state.task, state.photos, state.recipe.trainer
    with Stop(state) as stop:
        task.set_training_mode()
        if section.validate_first and state.step == 0:
            validate(state, run, log, stop)
        while not state.finished and stop.signal is None:
            for batches in photos.steps(state.epoch, state.batch):
                losses = train_step(state, batches)
                epoch_ends = state.batch == photos.batches_per_epoch
                if epoch_ends:
                    state.epoch, state.batch = state.epoch + 1, 0
                logged = state.step % state.recipe.logging.every_steps == 0
                if logged:
                    state.check_finite()
                    log.step(state, losses)
                stop.agree(waits=logged or epoch_ends or state.finished)
                if state.finished:
                    break
                if epoch_ends and state.epoch % section.check_val_every_n_epoch == 0 and stop.signal is None:
                    validate(state, run, log, stop)
                if epoch_ends or stop.signal is not None or stop.checkpoint_is_due():
                    run.save(state)
                    stop.saved()
                if epoch_ends or stop.signal is not None:
                    break
        if state.finished and state.validated_step != state.step:
            if stop.signal is None:
                validate(state, run, log, stop)
            run.save(state)
    return stop.signal


def train_step(state: State, batches: list[Batch]) -> dict[str, Tensor]:
    """One optimisation step, on the batches of its passes. Returns the losses and the norm of the gradients."""
    fabric, trainer, passes = state.fabric, state.recipe.trainer, len(batches)
    state.set_learning_rates()
    means: dict[str, Tensor] = {}
    for number, batch in enumerate(batches, 1):
        with fabric.no_backward_sync(state.module, enabled=number < passes):
            losses = state.module(state.photos.on_device(batch, fabric))  # Task.forward
            loss = torch.stack(list(losses.values())).sum()
            if number == 1:
                # Gradients freed before the forward pass would leave the top of the heap empty: the system takes such
                # memory back, and page faults would slow down every step on the CPU.
                state.stepping.zero_grad()
            fabric.backward(loss / passes)
        for name, value in {"loss": loss, **(losses if len(losses) > 1 else {})}.items():
            means[name] = means.get(name, 0) + value.detach() / passes
    limit = trainer.gradient_clip_val or math.inf
    norm: Any = fabric.clip_gradients(state.module, state.stepping, max_norm=limit, error_if_nonfinite=False)
    norm = gather(norm)
    state.note_finite(means["loss"], norm)
    state.stepping.step()
    state.step, state.batch = state.step + 1, state.batch + passes
    if state.average is not None:
        state.average.update(state.task, state.step)
    return means | {"gradient_norm": norm}


def validate(state: State, run: RunDirectory, log: Log, stop: Stop) -> None:
    """Compute the validation metrics, log them, and store the best weights. A signal ends it without metrics."""
    with log.validation():
        with state.validating():
            batches = state.photos.validation_batches(state.fabric, stop.requested)
            metrics = state.task.validate(batches, state.photos.val)
            stop.agree()
            if stop.signal is not None:  # photos are missing
                return
            log.samples(state)
        if state.note(metrics):
            run.save(state, BEST)
        log.metrics(state, metrics)


class Stop:
    """When to stop and when to save: signals, the time of rank 0 and the interval of checkpoints.

    A single process decides after every step. Several agree where they wait for each other anyway: at logged steps and
    at the end of an epoch. Inside the context signals are received; a second Ctrl-C ends the run without a checkpoint.
    """

    def __init__(self, state: State) -> None:
        self.state, self.section = state, state.recipe.checkpoint
        self.signal: str | None = None
        self._received, self._due = 0, False
        self._start, self._saved_at = now() - state.seconds, now()
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._receive) for number in stop_signals()}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number

    def requested(self) -> bool:
        """Whether this process received a signal."""
        return self._received != 0

    def agree(self, waits: bool = True) -> None:
        """Decide in all processes alike, and set the time. `waits`: the processes wait for each other anyway."""
        fabric, minutes = self.state.fabric, self.section.every_minutes
        if not waits and fabric.world_size > 1:
            return
        elapsed, due = now() - self._start, minutes > 0 and now() - self._saved_at >= 60 * minutes
        decisions = [float(self._received), float(due), elapsed if fabric.is_global_zero else 0.0]
        if is_distributed():
            tensor = torch.tensor(decisions, dtype=torch.float64, device=fabric.device)
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
            decisions = tensor.tolist()
        self._due, self.state.seconds = bool(decisions[1]), decisions[2]
        self.signal = signal.Signals(int(decisions[0])).name if decisions[0] else None

    def checkpoint_is_due(self) -> bool:
        """Whether the interval of checkpoints has passed, in steps or in minutes."""
        steps = self.section.every_steps
        return self._due or (steps > 0 and self.state.step % steps == 0)

    def saved(self) -> None:
        """Start the interval of checkpoints anew."""
        self._saved_at, self._due = now(), False


def stop_signals() -> list[signal.Signals]:
    """Signals that stop a run after writing a checkpoint, as far as the platform has them: Windows lacks SIGUSR1."""
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]

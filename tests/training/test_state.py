"""A step decides nothing by values, so that a GPU need not be waited for, and all precisions train every task."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dispatch import Dispatched
from training.runs import COMMON, TINY

from finola.data import Batch
from finola.data.detection import ObjectBatch
from finola.training import load_recipe
from finola.training.devices import build_fabric
from finola.training.loop import train_step
from finola.training.state import State
from finola.training.tasks.base import build_task

ENCODER = ("model.weights=null", "model.name=test_resnet", "data.size=32", "optimiser.layer_decay=null")
TASKS: dict[str, tuple[str, ...]] = {
    "smoke": (*TINY, "trainer.gradient_clip_val=1.0"),
    "tile32": (*COMMON, "model.name=waves+nets/32x1@4:16+elastic2", "data.size=32", "codebook.photos=1"),
    "photo256": (*COMMON, "model.name=waves+nets/32x1@4:16"),
    "masked/e-w720-128": (*COMMON, "model.name=test_resnet/16x1@4:64+patch"),
    "masked/b-w720-128": (*COMMON, "model.name=test_resnet/16x1@4:64+tran1"),
    "probe/tran1-w720-128": (*COMMON, *ENCODER),
    "moco/w720-128": (*COMMON, *ENCODER, "moco.queue_size=16", "moco.norm_batch_size=2", "data.batch_size=4"),
    "detection/dec-211-w720-192": (*COMMON, "model.weights=null", "head.frozen=false", "objects.short_side=[32,32]"),
}


def state_and_batch(name: str, *words: str) -> tuple[State, Any]:
    """The state of a run that is about to take a step on random images."""
    torch.manual_seed(0)
    recipe: Any = load_recipe(name, [*TASKS[name], "trainer.ema_decay=0.9", *words])
    none = torch.zeros(4, dtype=torch.int64)
    batch: Any = Batch(torch.rand(4, 3, *recipe.image_size), none, none, none.bool())
    if name == "tile32":
        batch = batch._replace(images=torch.rand(4, 3, 32, 32))
    if hasattr(recipe, "classes"):
        recipe = replace(recipe, classes=["a", "b"])
    if name.startswith("detection/"):
        box = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.zeros(1, dtype=torch.int64)}
        batch = ObjectBatch(torch.rand(2, 3, 64, 64), torch.full((2, 2), 64), [box, box], none[:2], none[:2].bool())
    photos: Any = SimpleNamespace(steps_per_epoch=1, on_device=lambda batch, fabric: batch)
    task = build_task(recipe)
    task.set_training_mode()
    return State(build_fabric(recipe.trainer), recipe, task, photos), batch


@pytest.mark.parametrize("name", TASKS)
def test_a_step_does_not_wait_for_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, batch = state_and_batch(name)
    train_step(state, [batch])  # fills caches
    monkeypatch.setattr(State, "check_finite", lambda self: None)  # at once on the CPU, on a GPU with what is logged
    monkeypatch.setattr("finola.checks.can_read", lambda values: False)  # as on a GPU
    monkeypatch.setattr(state.stepping, "step", lambda: None)  # PyTorch's, which reads its counter of steps on the CPU
    with Dispatched() as dispatched:
        train_step(state, [batch])
    assert len(dispatched.names) > 100 and dispatched.waits == []


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("detection/")])
def test_every_task_trains_in_every_precision(name: str, precision: str) -> None:
    state, batch = state_and_batch(name, f"trainer.precision={precision}")
    before = {key: value.clone() for key, value in state.task.model.named_parameters()}
    losses = train_step(state, [batch])
    assert all(value.isfinite() for value in losses.values())
    after = dict(state.task.model.named_parameters())
    assert any(not torch.equal(after[key], value) for key, value in before.items())
    assert all(value.isfinite().all() for value in after.values())

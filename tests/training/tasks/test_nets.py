"""Training of networks around exact waves: the codebook is fitted, runs resume, the filter cannot raise the rate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.runs import COMMON, weights

import finola
from finola.errors import InputError
from finola.recipes.recipe import Recipe
from finola.training import load_recipe, train
from finola.training.tasks.nets import Nets

OWN = (
    "model.name=waves+nets/64x1@4:16+elastic2",
    "data.path=smoke",
    "data.size=32",
    "data.val_size=64",
    "data.val_limit=2",
    "codebook.photos=2",
    "codebook.steps=2",
    "schedule.clock=steps",
    "schedule.epochs=10",
    "logging.samples=1",
    "trainer.max_time=1h",
)


def recipe(*overrides: str) -> Recipe:
    return load_recipe("tile32", [*COMMON, *OWN, *overrides])


def test_a_run_fits_the_codebook_and_resumes_exactly(tmp_path: Path) -> None:
    train(recipe("trainer.max_steps=4"), tmp_path / "whole", quiet=True)
    train(recipe("trainer.max_steps=2"), tmp_path / "parts", quiet=True)
    outcome = train(recipe("trainer.max_steps=4"), tmp_path / "parts", resume=True, quiet=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())
    assert outcome.model is not None
    model = finola.load(Path(outcome.model))
    untrained = finola.create(str(model.config))
    assert not torch.equal(model.encoder.codebook.bases, untrained.encoder.codebook.bases)
    assert model(torch.rand(1, 3, 50, 70)).shape == (1, 3, 50, 70)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_gradients_reach_the_filter_only_without_quantisation(fraction: float) -> None:
    task = Nets(recipe(f"loss.quantised_fraction={fraction}"))  # type: ignore[arg-type]
    task.project_tiles(torch.rand(2, 3, 32, 32)).square().sum().backward()
    gradient = task.model.encoder.prefilter.last.weight.grad
    assert (gradient is not None and bool(gradient.any())) == (fraction == 0)


def test_the_task_needs_exact_waves() -> None:
    with pytest.raises(InputError, match="waves/64x1@4:16"):
        recipe("model.name=waves/64x1@4:16").check()

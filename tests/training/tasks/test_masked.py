"""Masked pre-training runs, resumes and exports the complete model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.runs import COMMON, weights

from finola.masked import MaskedFinola, random_places
from finola.recipes.recipe import Recipe
from finola.training import load_recipe, train
from finola.training.log import read_curve


def masked(variant: str, *overrides: str) -> Recipe:
    name = "test_resnet/16x1@4:64+" + ("patch" if variant == "e" else "tran1")
    own = (f"model.name={name}", "data.path=smoke", f"mask.variant={variant}", "logging.samples=2")
    return load_recipe("masked/b-w720-128", [*COMMON, *own, *overrides])


@pytest.mark.parametrize("variant", ["e", "b"])
def test_run_finishes_and_exports_the_decoder(variant: str, tmp_path: Path) -> None:
    outcome = train(masked(variant, "trainer.max_steps=9"), tmp_path / "run", quiet=True)
    assert outcome.status == "finished" and outcome.model is not None
    model = MaskedFinola.from_pretrained(outcome.model).eval()
    assert model.variant == variant
    state = {key.removeprefix("model."): value for key, value in weights(tmp_path / "run", "best.ckpt").items()}
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    places = random_places(2, model.map_size)
    assert model(torch.rand(2, 3, 64, 64), places).images.shape == (2, 3, 64, 64)
    assert [row for row in read_curve(tmp_path / "run" / "metrics.csv") if "val/psnr" in row]
    assert list((tmp_path / "run" / "samples").glob("*.png"))


def test_resumed_run_repeats_the_mask_positions(tmp_path: Path) -> None:
    train(masked("b", "trainer.max_steps=6"), tmp_path / "whole", quiet=True)
    train(masked("b", "trainer.max_steps=3"), tmp_path / "parts", quiet=True)
    train(masked("b", "trainer.max_steps=6"), tmp_path / "parts", resume=True, quiet=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())

"""Counts of parameters and multiply–adds: stored in the package, and equal to those of the models and of the paper."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import finola
from finola.hub import bundled_models
from finola.masked import MaskedFinola, random_places
from finola.model_counts import COUNTS, count, sizes
from finola.model_zoo import known_names
from finola.paper.tables import MODELS
from finola.training import load_recipe

RECOGNISING = [name for names in MODELS.values() for name in names if "@" not in name]


def test_counts_are_stored_for_all_listed_models() -> None:
    assert set(json.loads(COUNTS.read_text())) == {*bundled_models(), *known_names(), *RECOGNISING}


@pytest.mark.parametrize(
    "name",
    [*bundled_models(), "waves512", "masked/e-w720", "masked/b-w2880", "mf-w2880/512x4@64+convae", "waves/1024x1@16"],
)
def test_stored_counts_equal_those_of_the_modules(name: str) -> None:
    """python docs/counts.py writes them anew."""
    assert sizes(name) == count(name)


def test_counts_of_an_unlisted_model_are_those_of_its_parts() -> None:
    model = finola.create("waves+conv/32x1@4:32")
    counted = {part: size.parameters for part, size in sizes("waves+conv/32x1@4:32").items()}
    parts = {"encoder": model.encoder, "pooling": model.pool, "propagation": model.transition, "decoder": model.decoder}
    assert counted == {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


@pytest.mark.parametrize("variant", ["e", "b"])
def test_counts_of_masked_models_are_those_of_the_module(variant: str) -> None:
    recipe = load_recipe(f"masked/{variant}-w720")
    model = MaskedFinola(recipe.model.name, variant).eval().requires_grad_(False)
    counted = sizes(f"masked/{variant}-w720")
    assert sum(part.parameters for part in counted.values()) == sum(p.numel() for p in model.parameters())
    places = random_places(1, model.map_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.grow(model.see(torch.rand(1, 3, 256, 256), places), places)
    expected = sum(part.multiply_adds for name, part in counted.items() if name != "decoder")
    assert counter.get_total_flops() == 2 * expected


def test_models_for_recognition_have_the_paper_s_sizes_and_recipes() -> None:
    totals = {
        name: [sum(getattr(part, key) for part in sizes(name).values()) for key in ("parameters", "multiply_adds")]
        for name in RECOGNISING
    }
    for width, millions, giga in ((720, 7, 0.7), (1440, 20, 2.6), (2880, 57, 9.9)):  # table:finola-vs-self-sup
        parameters, multiply_adds = totals[f"probe/tran4-w{width}"]
        assert round(parameters / 1e6) == millions and round(multiply_adds / 1e9, 1) == giga
    for name, parameters in (("522-w720", 18.2), ("211-w2880", 9.2)):  # of the head
        assert sizes(f"detection/dec-{name}")["head"].parameters / 1e6 == pytest.approx(parameters, rel=5e-3)
    assert all(load_recipe(name).name == name for name in RECOGNISING)

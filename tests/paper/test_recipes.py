"""Each recipe builds its model at reduced size and runs one optimisation step."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from finola.config import RECURRENT, ModelConfig
from finola.data import Batch
from finola.paper.definitions import TWIN
from finola.paper.recipes import canonical
from finola.paper.tables import MODELS
from finola.recipes.loading import list_recipes, load_recipe, settings_of
from finola.recipes.recipe import MocoRecipe, Recipe
from finola.training.optim import build_optimiser, peak_lr
from finola.training.tasks.base import build_task

RECIPES = list_recipes()
STEPPED: set[str] = set()
"""Recipes already tested; rows that differ only in channels are identical at reduced size."""
ROWS = [name.removeprefix("paper/") for name in RECIPES if name.startswith("paper/")]


@cache
def loaded(name: str) -> Recipe:
    return load_recipe(name)


def reduced(recipe: Recipe) -> Recipe:
    """Same type of model with few channels, a small map and a small encoder."""
    config = ModelConfig.parse(recipe.model.name)
    encoder = config.encoder if config.returns_q else "test_resnet"
    side = 64 if recipe.task == "masked" else 32  # a masked map is 1/16 of the image
    small = replace(config, encoder=encoder, channels=16, map_size=(4, 4), image_size=(side, side))
    return replace(recipe, model=replace(recipe.model, name=str(small)))


ON_ENCODERS = ("classify", "moco")
ON_OTHER_DATA = (*ON_ENCODERS, "detect", "segment")


@pytest.mark.parametrize("name", [name for name in RECIPES if loaded(name).task not in ON_OTHER_DATA])
def test_every_recipe_runs_a_step(name: str) -> None:
    recipe = loaded(name)
    recipe = reduced(recipe)
    recipe = replace(recipe, model=replace(recipe.model, weights=None))
    recipe = replace(recipe, name="", about="", **({"paper_psnr": None} if recipe.task == "reconstruction" else {}))
    if repr(recipe) not in STEPPED:
        take_a_step(recipe)
        STEPPED.add(repr(recipe))


@pytest.mark.parametrize("name", [name for name in RECIPES if loaded(name).task in ON_ENCODERS])
def test_every_recipe_on_an_encoder_runs_a_step(name: str) -> None:
    recipe = loaded(name)
    encoder = "mf-w720" if recipe.optimiser.layer_decay else "test_resnet"
    recipe = replace(recipe, model=replace(recipe.model, name=encoder, weights=None), name="", about="")
    recipe = replace(recipe, data=replace(recipe.data, size=32))
    if isinstance(recipe, MocoRecipe):
        recipe = replace(recipe, moco=replace(recipe.moco, queue_size=8))
    else:
        recipe = replace(recipe, classes=["a", "b"])
    if repr(recipe) not in STEPPED:
        take_a_step(recipe)
        STEPPED.add(repr(recipe))


def take_a_step(recipe: Recipe) -> None:
    task = build_task(recipe)
    before = {key: value.clone() for key, value in task.model.named_parameters()}
    optimiser = build_optimiser(task.model, recipe)
    images = torch.rand(4, 3, *recipe.image_size)
    none = torch.zeros(4, dtype=torch.int64)
    loss = torch.stack(list(task.losses(images, Batch(images, none, none, none.bool())).values())).sum()
    loss.backward()
    optimiser.step()
    assert loss.isfinite()
    without = [key for key, p in task.model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without, f"these would stop several processes from training together: {without}"
    assert any(not torch.equal(before[key], value) for key, value in task.model.named_parameters())


@pytest.mark.parametrize("row", ROWS)
def test_every_paper_recipe_has_the_paper_s_settings_and_a_small_twin(row: str) -> None:
    paper, twin = loaded(f"paper/{row}"), loaded(f"cpu/{row}")
    assert peak_lr(paper) == pytest.approx(1.5e-4 * 128 / 256)
    settings = settings_of(paper)
    expected = {
        "data.batch_size": 128,
        "data.crop": "resized",
        "data.crops_per_image": 1,
        "data.size": None,
        "optimiser.weight_decay": 0.1,
        "optimiser.decay_norms_and_biases": True,
        "optimiser.groups": {},
        "schedule.epochs": 100,
        "schedule.warmup_epochs": 10,
        "schedule.final_lr_fraction": 0.0,
        "trainer.ema_decay": None,
        "trainer.gradient_clip_val": None,
        "model.compile": False,
        "trainer.accumulate_grad_batches": 1,
        "model.init": None,
    }
    assert {key: settings[key] for key in expected} == expected
    large, small = ModelConfig.parse(paper.model.name), ModelConfig.parse(twin.model.name)
    assert large.image_size == (256, 256) and small.image_size == (32, 32)
    assert small.channels * 32 == large.channels and small.map_size <= large.map_size
    same = ("paths", "start", "speeds", "position")
    assert all(getattr(large, field) == getattr(small, field) for field in same)
    assert small.transition == (TWIN.grower if large.transition == "conv-ae" else large.transition)


def test_small_twins_differ_in_their_models_only() -> None:
    settings = [settings_of(replace(loaded(f"cpu/{row}"), name="", about="")) for row in ROWS]
    for one in settings:
        scaled = ModelConfig.parse(one.pop("model.name")).transition in RECURRENT
        assert one.pop("model.transition_scale") == (0.3 if scaled else 1)
    assert all(one == settings[0] for one in settings)


@pytest.mark.parametrize("name", [f"masked/{variant}-w{width}" for variant in "eb" for width in (720, 1440, 2880)])
def test_masked_recipes_have_the_paper_s_settings(name: str) -> None:
    settings = settings_of(loaded(name))
    expected = {
        "task": "masked",
        "data.batch_size": 1024,
        "data.crop": "resized",
        "optimiser.base_lr": 1.5e-4,
        "optimiser.weight_decay": 0.1,
        "schedule.epochs": 1600,
        "schedule.warmup_epochs": 10,
        "mask.variant": name.split("/")[1][0],
        "mask.one_jump": False,
    }
    assert {key: settings[key] for key in expected} == expected
    assert ModelConfig.parse(settings["model.name"]).image_size == (256, 256)


def test_every_reconstruction_model_of_the_paper_has_a_recipe() -> None:
    known = {loaded(name).model.name for name in RECIPES}
    listed = {group: names for group, names in MODELS.items() if "ours" not in group and "§4.1" not in group}
    assert {name for names in listed.values() for name in names} <= known | set(RECIPES)


def test_every_recipe_is_listed_once_with_a_description() -> None:
    assert sorted(set(RECIPES)) == RECIPES
    for name in RECIPES:
        assert loaded(name).name == name and loaded(name).about
    small = [name.removeprefix("cpu/") for name in RECIPES if name.startswith("cpu/")]
    assert small == ROWS


def test_recipes_have_the_same_canonical_name_exactly_if_their_settings_are_equal() -> None:
    by_settings: dict[str, set[str]] = {}
    by_canonical_name: dict[str, set[str]] = {}
    for name in RECIPES:
        settings = repr(replace(loaded(name), name="", about=""))
        by_settings.setdefault(settings, set()).add(name)
        by_canonical_name.setdefault(canonical(name), set()).add(name)
    assert sorted(map(sorted, by_settings.values())) == sorted(map(sorted, by_canonical_name.values()))
    assert all(name in names for name, names in by_canonical_name.items())


def test_a_file_may_be_based_on_a_generated_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: paper/channels/512\nseed: 5\n", encoding="utf-8")
    base = loaded("paper/channels/512")
    assert load_recipe(tmp_path / "mine.yaml") == replace(base, name="mine", seed=5)


def test_reading_recipes_does_not_import_torch() -> None:
    code = (
        "import sys; from finola.recipes.loading import list_recipes, load_recipe; "
        "list_recipes(); load_recipe('paper/channels/512'); load_recipe('smoke'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)

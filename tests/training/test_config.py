"""Recipes are read completely, or rejected with a one-line error message."""

from __future__ import annotations

from pathlib import Path

import pytest

from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError
from finola.training.config import ReconstructionRecipe
from finola.training.loading import list_recipes, load_recipe, save_recipe, settings_of
from finola.training.sections import seconds
from finola.training.validation import known_keys

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("optimizer.base_lr=1", ["'optimizer.base_lr'", "optimiser.base_lr?"]),
        ("epochs=3", ["schedule.epochs?"]),
        ("data.batchsize=3", ["data.batch_size?"]),
        ("trainer.device=3", ["trainer.devices?"]),
        ("optimiser.groups.mine.lrr=1", ["optimiser.groups.NAME.lr?"]),
        ("loging.samples=1", ["logging.samples?"]),
        ("sed=1", ["seed?"]),
        ("schedule.epochs=many", ["schedule.epochs", "'many' (str)", "integer"]),
        ("optimiser.weight_decay=[1]", ["optimiser.weight_decay", "[1] (list)", "number"]),
        ("trainer.compile=maybe", ["trainer.compile", "'maybe' (str)", "true or false"]),
        ("data.scale=3", ["data.scale", "3 (int)", "list of numbers"]),
        ("data.size=2.5", ["data.size", "2.5 (float)", "integer"]),
        ("data.batch_size=null", ["data.batch_size", "integer"]),
        ("optimiser=3", ["optimiser", "3 (int)", "optimiser.base_lr"]),
        ("seed", ["'seed'", "key=value"]),
        ("data.batch_size=0", ["data.batch_size", "0", "1"]),
        ("data.crop=middle", ["data.crop", "'middle'", "resized, random, centre"]),
        ("model.name=''", ["model.name"]),
        ("model.name=", ["model.name", "string"]),
        ("model.init=wave", ["model.init", "'wave'", "random, waves"]),
        ("trainer.max_time=90", ["trainer.max_time", "'90'", "45s, 30m, 1h30m or 2d"]),
        ("trainer.max_time=0s", ["trainer.max_time", "'0s'", "30m"]),
        ("trainer.max_time=-1s", ["trainer.max_time", "'-1s'", "30m"]),
        ("trainer.max_steps=0", ["trainer.max_steps", "0", "at least 1"]),
        ("trainer.max_steps=-5", ["trainer.max_steps", "-5", "at least 1"]),
        ("trainer.devices=two", ["trainer.devices", "'two'", "auto"]),
        ("trainer.ema_decay=1", ["trainer.ema_decay", "1.0", "0.999"]),
        ("schedule.clock=time", ["schedule.clock=time", "trainer.max_time"]),
        ("task=masked", ["'model.init'", "masked", "reconstruction", "model."]),
        ("task=[1]", ["task", "[1]", "string"]),
        ("optimiser.rate=1", ["'optimiser.rate'", "optimiser.lr"]),
        ("optimiser.groups.waves.rate=1", ["'optimiser.groups.waves.rate'", "optimiser.groups.waves.lr"]),
        ("trainer.ema=0.9", ["'trainer.ema'", "trainer.ema_decay"]),
    ],
)
def test_invalid_settings_raise_one_line_with_key_value_and_remedy(override: str, values: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        load_recipe("smoke", [override])
    message = str(raised.value)
    assert all(value in message for value in values) and "\n" not in message


@pytest.mark.parametrize(
    ("name", "override", "values"),
    [
        ("masked/b-w720-128", "trainer.compile=true", ["trainer.compile", "masked"]),
        ("masked/b-w720-128", "loss.quantised_fraction=1", ["loss.quantised_fraction", "masked"]),
        ("detection/dec-211-w720", "data.augment=moco", ["data.augment"]),
        ("detection/dec-211-w720", "data.crops_per_image=2", ["data.crops_per_image"]),
        ("detection/dec-211-w720", "head.kind=lin", ["head.kind", "'lin'", "mf-dec-522, mf-dec-211"]),
        ("detection/mask-rcnn-w720", "head.dropout=0.1", ["head.dropout"]),
        ("detection/mask-rcnn-w720", "objects.short_side=480", ["objects.short_side", "480 (int)", "list of integers"]),
        ("detection/mask-rcnn-w720", "objects.short_side=[{}, 800]", ["objects.short_side", "list of integers"]),
        ("detection/mask-rcnn-w720", "data.crop=random", ["'data.crop'", "segment", "reconstruction", "data."]),
        ("detection/mask-rcnn-w720", "optimiser.groups.all.muon=true", ["groups.all.muon", "optimiser.kind=sgd"]),
        ("detection/dec-211-w720", "schedule.clock=time", ["schedule.clock=time", "schedule.milestones"]),
        ("masked/b-w720-128", "model.name=''", ["model.name=mf-w720/256x1@8:128+tran1"]),
        ("probe/lin-w720", "head.dropout=0.1", ["head.dropout", "head.kind=lin"]),
        ("probe/lin-w720", "data.crop=centre", ["data.flip", "data.crop=centre"]),
    ],
)
def test_settings_without_effect_are_rejected(name: str, override: str, values: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        load_recipe(name, ["trainer.max_time=1h", override])
    message = str(raised.value)
    assert all(value in message for value in values) and "\n" not in message


def test_unknown_recipe_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"'smoek'.* smoke"):
        load_recipe("smoek")
    with pytest.raises(MissingFileError, match=r"missing\.yaml"):
        load_recipe("missing.yaml")


def test_unknown_key_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: smoke\nschedule: {epoch: 3}\n")
    with pytest.raises(InputError, match=r"'schedule\.epoch' in mine\.yaml.* schedule\.epochs"):
        load_recipe(tmp_path / "mine.yaml")


def test_invalid_yaml_raises_corrupt_file_error(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "broken.yaml").write_text("model: {name: [")
    for name in ("list", "broken"):
        with pytest.raises(CorruptFileError, match=rf"{name}\.yaml"):
            load_recipe(tmp_path / f"{name}.yaml")


def test_file_overrides_its_base_and_overrides_take_precedence(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("base: smoke\nseed: 5\nschedule: {epochs: 7}\n")
    (tmp_path / "second.yaml").write_text("base: first\nschedule: {final_lr_fraction: 0.5}\n")
    recipe = load_recipe(tmp_path / "second.yaml", ["seed=6", "optimiser.groups.waves.lr=1e-6"])
    assert (recipe.seed, recipe.schedule.epochs, recipe.schedule.final_lr_fraction) == (6, 7, 0.5)
    assert recipe.optimiser.groups["waves"].lr == 1e-6 and recipe.optimiser.groups["refinements"].lr == 0.02
    assert recipe.name == "second" and recipe.data.path == "smoke"


def test_circular_bases_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b\n")
    (tmp_path / "b.yaml").write_text("base: a\n")
    with pytest.raises(InputError, match=r"[ab]\.yaml"):
        load_recipe(tmp_path / "a.yaml")


def test_overriding_a_section_replaces_all_its_settings() -> None:
    assert load_recipe("smoke", ["optimiser.groups={}"]).optimiser.groups == {}


def test_saved_recipe_loads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe("waves-tile64", ["trainer.max_time=1h30m", "data.size=128"])
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("recipe.yaml")), ids=lambda path: path.parent.name)
def test_recipes_of_the_bundled_models_load(path: Path) -> None:
    """So that the weights can be trained again with the settings that their cards name."""
    assert load_recipe(path).model.name


def test_every_setting_has_a_dotted_key() -> None:
    settings = settings_of(load_recipe("waves-tile64"))
    plain = {key for key in settings if ".groups." not in key}
    assert plain <= {*known_keys(ReconstructionRecipe), "optimiser.groups"}
    assert "smoke" in list_recipes() and not any(name.rpartition("/")[2].startswith("_") for name in list_recipes())


def test_durations() -> None:
    assert [seconds(text) for text in ("45s", "30m", "1h30m", "2d")] == [45, 1800, 5400, 172800]


BOMB = "a: &a [x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'.replace('a0', 'a')] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        "about: ${oc.env:FINOLA_TOKEN}",
        'about: "$\\x7boc.env:FINOLA_TOKEN}"',
        "about: >-\n  a\n  ${oc.env:FINOLA_TOKEN}",
        "optimiser: {groups: {'${oc.env:FINOLA_TOKEN}': {lr: 1}}}",
        "model: {frozen: ['${about}']}",
        "about: ${seed}",
        "about: ???",
        "about: &a b\nname: *a",
        BOMB,
        "x: " + "[" * 100_000,
        "- " * 100_000,
        "{" * 100_000,
        "? " * 100_000,
        "seed: " + "9" * 5000,
        "seed: " + "9" * 40,
        "seed: 1" + ":59" * 1000,
        "seed: .inf",
        "optimiser: {lr: .nan}",
        "optimiser: {groups: {mine: 3}}",
        "about: !!binary aGVsbG8=",
        "about: !!python/object/apply:pathlib.Path [x]",
        'about: "\\ud800"',
        "null: 3",
        "? [a, b]\n: 3",
        "base: .",
        "base: [1]",
        "seed: 1\nseed: 2",
        "seed: 2001-01-01",
        "a" * 5000 + ": 1",
        "classes: [" + "x, " * 40_000 + "]",
        "about: " + "x" * 2**20,
    ],
    ids=range(31),
)
def test_untrusted_recipes_are_bounded_and_not_interpolated(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINOLA_TOKEN", "hf-secret")
    base = "" if text.startswith(("base", "x", "-", "{", "?")) else "base: smoke\n"
    (tmp_path / "theirs.yaml").write_text(base + text)
    with pytest.raises(InputError) as raised:
        load_recipe(tmp_path / "theirs.yaml")
    message = str(raised.value)
    assert "\n" not in message and "hf-secret" not in message and len(message) < 1000


@pytest.mark.parametrize(
    "override",
    [
        "about=${oc.env:FINOLA_TOKEN}",
        "optimiser.groups.${oc.env:FINOLA_TOKEN}.lr=1",
        "seed=[[[",
        "seed=" + "[" * 100_000,
        "seed={",
        "seed=" + "9" * 5000,
        "seed=" + "9" * 40,
        "optimiser.lr=1" + "0" * 400,
        "optimiser.lr=1e999",
        "seed=-1",
        "classes=&a [*a]",
        "about=!!binary aGVsbG8=",
        "seed=\0",
        "about=" + "x" * 10_000,
        "x" * 5000 + "=1",
        "optimiser.groups.mine=3",
        "loss.quantisation_steps=[[80, 168], 168]",
        "objects={}",
        "optimiser.groups.mine.match=[null]",
        "trainer.max_time=" + "9" * 400 + "d",
    ],
    ids=range(20),
)
def test_overrides_are_bounded_and_not_interpolated(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINOLA_TOKEN", "hf-secret")
    with pytest.raises(InputError) as raised:
        load_recipe("smoke", [override])
    message = str(raised.value)
    assert "\n" not in message and "hf-secret" not in message and len(message) < 1000


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"about: \xff\xfe")
    with pytest.raises(InputError, match=r"binary\.yaml"):
        load_recipe(tmp_path / "binary.yaml")

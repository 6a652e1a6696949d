"""Recipes are read completely, or rejected with a one-line error message."""

from __future__ import annotations

from pathlib import Path

import pytest

from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError
from finola.recipes.loading import known_keys, list_recipes, load_recipe, save_recipe, settings_of
from finola.recipes.recipe import ReconstructionRecipe
from finola.recipes.sections import seconds

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("optimizer.base_lr=1", ["'optimizer.base_lr'", "optimiser.base_lr"]),
        ("epochs=3", ["'epochs'", "schedule.epochs"]),
        ("data.batchsize=3", ["data.batch_size"]),
        ("trainer.device=3", ["trainer.devices"]),
        ("optimiser.groups.mine.lrr=1", ["optimiser.groups.NAME.lr"]),
        ("loging.samples=1", ["logging.samples"]),
        ("sed=1", ["seed"]),
        ("schedule.epochs=many", ["schedule.epochs", "'many'", "integer"]),
        ("optimiser.weight_decay=[1]", ["optimiser.weight_decay", "['1']", "number"]),
        ("model.compile=maybe", ["model.compile", "'maybe'", "true or false"]),
        ("data.scale=3", ["data.scale", "'3'", "list of numbers"]),
        ("data.size=2.5", ["data.size", "'2.5'", "integer"]),
        ("data.batch_size=null", ["data.batch_size", "integer"]),
        ("optimiser=3", ["optimiser", "'3'", "optimiser.base_lr"]),
        ("seed", ["'seed'", "key=value"]),
        ("data.batch_size=0", ["data.batch_size", "0", "1"]),
        ("data.crop=middle", ["data.crop", "'middle'", "resized, random, centre"]),
        ("model.name=''", ["model.name"]),
        ("model.name=", ["model.name"]),
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
        ("task=[1]", ["task", "1", "reconstruction"]),
        ("task=reconstructoin", ["'reconstructoin'", "reconstruction?"]),
        ("data.flip=yes", ["data.flip", "'yes'", "true or false"]),
        ("data.limit=-3", ["data.limit", "-3", "at least 1"]),
        ("trainer.ema_decay=2", ["trainer.ema_decay", "2.0", "between 0 and 1"]),
        ("trainer.precision=8-mixed", ["trainer.precision", "8-mixed", "bf16-mixed"]),
        ("data.scale=[0.9,0.3]", ["data.scale", "[0.9, 0.3]", "smallest"]),
        ("data.scale=[0.5]", ["data.scale", "[0.5]", "smallest"]),
        ("optimiser.groups=3", ["optimiser.groups", "'3'", "section"]),
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
        ("masked/b-w720-128", "model.compile=true", ["model.compile", "masked"]),
        ("masked/b-w720-128", "loss.quantised_fraction=1", ["loss.quantised_fraction", "masked"]),
        ("detection/dec-211-w720", "data.augment=moco", ["data.augment"]),
        ("detection/dec-211-w720", "data.crops_per_image=2", ["data.crops_per_image"]),
        ("detection/dec-211-w720", "head.kind=lin", ["head.kind", "'lin'", "mf-dec-522, mf-dec-211"]),
        ("detection/mask-rcnn-w720", "head.dropout=0.1", ["head.dropout"]),
        ("detection/mask-rcnn-w720", "objects.short_side=480", ["objects.short_side", "'480'", "list of integers"]),
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


def test_an_empty_section_removes_what_its_base_has(tmp_path: Path) -> None:
    assert load_recipe("smoke", ["optimiser.groups={}"]).optimiser.groups == {}
    (tmp_path / "mine.yaml").write_text("base: smoke\noptimiser: {lr: 1, groups: {}}\n")
    assert load_recipe(tmp_path / "mine.yaml").optimiser.groups == {}
    assert list(load_recipe("smoke", ["optimiser.groups={}", "optimiser.groups.a.lr=1"]).optimiser.groups) == ["a"]


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
    assert plain <= {*known_keys(ReconstructionRecipe)}
    assert "smoke" in list_recipes() and not any(name.rpartition("/")[2].startswith("_") for name in list_recipes())


def test_durations() -> None:
    assert [seconds(text) for text in ("45s", "30m", "1h30m", "2d")] == [45, 1800, 5400, 172800]


BOMB = "a: &a [x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'.replace('a0', 'a')] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
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
        "seed: &a [*a]",
        "a" * 5000 + ": 1",
        "about: " + "x" * 2**20,
    ],
    ids=range(24),
)
def test_untrusted_recipes_are_bounded(text: str, tmp_path: Path) -> None:
    base = "" if text.startswith(("base", "x", "-", "{", "?")) else "base: smoke\n"
    (tmp_path / "theirs.yaml").write_text(base + text)
    with pytest.raises(InputError) as raised:
        load_recipe(tmp_path / "theirs.yaml")
    message = str(raised.value)
    assert "\n" not in message and len(message) < 1000


@pytest.mark.parametrize(
    "override",
    [
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
        "about=" + "x" * 2**21,
        "a." * 5000 + "b=1",
        "optimiser.groups." * 9 + "lr=1",
        "x" * 5000 + "=1",
        "optimiser.groups.mine=3",
        "data.scale=[[0.1, 0.2], 1]",
        "objects={}",
        "optimiser.groups.mine.match=[[x]]",
        "trainer.max_time=" + "9" * 400 + "d",
    ],
    ids=range(20),
)
def test_overrides_are_bounded(override: str) -> None:
    with pytest.raises(InputError) as raised:
        load_recipe("smoke", [override])
    message = str(raised.value)
    assert "\n" not in message and len(message) < 1000


@pytest.mark.parametrize(
    "text", ["${oc.env:FINOLA_TOKEN}", "${seed}", "???", "2001-01-01", "no", "1e3", "null", "0x1f"]
)
def test_text_means_itself(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is interpolated, and the type of a setting, not the notation of its value, decides what it means."""
    monkeypatch.setenv("FINOLA_TOKEN", "hf-secret")
    groups = f"optimiser: {{groups: {{'{text}': {{lr: 1}}}}}}"
    (tmp_path / "theirs.yaml").write_text(f"base: smoke\nabout: {text}\n{groups}\n")
    recipe = load_recipe(tmp_path / "theirs.yaml", [f"model.frozen=[{text!r}]"])
    assert (recipe.about, recipe.model.frozen) == (text, [text])
    assert recipe.optimiser.groups[text].lr == 1
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"about: \xff\xfe")
    with pytest.raises(InputError, match=r"binary\.yaml"):
        load_recipe(tmp_path / "binary.yaml")

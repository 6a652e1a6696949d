"""Recipes are read in full or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from finola.errors import InputError
from finola.training.config import seconds
from finola.training.loading import known_keys, list_recipes, load_recipe, save_recipe, settings_of


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optimizer.base_rate=1", "sets 'optimizer.base_rate', which no recipe has: did you mean optimiser.base_rate?"),
        ("epochs=3", "did you mean schedule.epochs?"),
        ("data.batchsize=3", "did you mean data.batch_size?"),
        ("trainer.device=3", "did you mean trainer.devices?"),
        ("optimiser.groups.mine.rat=1", "did you mean optimiser.groups.NAME.rate?"),
        ("loging.samples=1", "did you mean logging.samples?"),
        ("sed=1", "did you mean seed?"),
        ("schedule.epochs=many", "sets schedule.epochs to 'many' (str), but a whole number is wanted."),
        ("optimiser.weight_decay=[1]", "sets optimiser.weight_decay to [1] (list), but a number is wanted."),
        ("trainer.compile=maybe", "sets trainer.compile to 'maybe' (str), but true or false is wanted."),
        ("data.scale=3", "sets data.scale to 3 (int), but a list of numbers is wanted."),
        ("data.size=2.5", "sets data.size to 2.5 (float), but a whole number or nothing is wanted."),
        ("data.batch_size=null", "leaves data.batch_size empty, but a whole number is wanted."),
        ("optimiser=3", "sets optimiser to 3 (int), but it is a section of settings such as optimiser.base_rate."),
        ("seed", "'seed' is no override; write key=value"),
        ("data.batch_size=0", "data.batch_size is 0; it is at least 1."),
        ("data.crop=middle", "data.crop is 'middle'; it is one of resized, random, centre."),
        ("model.name=''", "the recipe has no model.name"),
        ("model.name=", "leaves model.name empty, but text is wanted."),
        ("model.init=wave", "model.init is 'wave'; it is waves, random, or left out."),
        ("trainer.max_time=90", "trainer.max_time is '90'; write it like 45s, 30m, 1h30m or 2d."),
        ("trainer.devices=two", "trainer.devices is 'two'; it is auto or the number of processes per node."),
        ("trainer.ema=1", "trainer.ema is 1.0; it is a decay between 0 and 1"),
        ("schedule.clock=time", "schedule.clock=time needs trainer.max_time"),
        ("objects.short=480", "sets objects.short to 480 (int), but a list of whole numbers is wanted."),
        ("model.encoder_size=0", "model.encoder_size is 0; it is a side in pixels"),
        ("task=masked", "model.init=waves has no effect in the task masked"),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_the_remedy(override: str, sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        load_recipe("smoke", [override])
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "override", "sentence"),
    [
        ("masked/b-w720-128", "trainer.compile=true", "trainer.compile has no effect in the task masked"),
        ("masked/b-w720-128", "loss.fit_q=1", "loss.fit_q has no effect in the task masked"),
        ("detection/dec-211-w720", "data.augment=moco", "data.augment has no effect on photos with objects"),
        ("detection/dec-211-w720", "data.crops_per_image=2", "data.crops_per_image has no effect on photos with"),
        ("detection/dec-211-w720", "head.kind=lin", "head.kind is 'lin'; it is one of mf-dec-522, mf-dec-211."),
        ("detection/mask-rcnn-w720", "head.dropout=0.1", "head.dropout has no effect on photos with objects"),
        ("detection/mask-rcnn-w720", "optimiser.groups.all.muon=true", "muon has no effect with optimiser.kind=sgd"),
        ("detection/dec-211-w720", "schedule.clock=time", "schedule.clock=time has no effect beside schedule.drops"),
        ("masked/b-w720-128", "model.name=''", "add one such as model.name=waves+conv/256x1@16:64."),
        ("probe/lin-w720", "head.dropout=0.1", "head.dropout has no effect with head.kind=lin"),
        ("probe/lin-w720", "data.crop=centre", "data.flip has no effect with data.crop=centre"),
    ],
)
def test_what_would_do_nothing_is_refused(name: str, override: str, sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        load_recipe(name, ["trainer.max_time=1h", override])
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'smoek': did you mean smoke"):
        load_recipe("smoek")
    with pytest.raises(FileNotFoundError, match=r"no recipe file missing\.yaml"):
        load_recipe("missing.yaml")


def test_a_wrong_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: smoke\nschedule: {epoch: 3}\n")
    with pytest.raises(ValueError, match=r"mine\.yaml sets 'schedule\.epoch', which .* did you mean schedule\.epochs"):
        load_recipe(tmp_path / "mine.yaml")


def test_a_file_that_is_no_recipe_is_said(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "broken.yaml").write_text("model: {name: [")
    for name in ("list", "broken"):
        with pytest.raises(ValueError, match=f"{name}.yaml (is no recipe|cannot be read as YAML)"):
            load_recipe(tmp_path / f"{name}.yaml")


def test_a_file_changes_its_base_and_overrides_change_both(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("base: smoke\nseed: 5\nschedule: {epochs: 7}\n")
    (tmp_path / "second.yaml").write_text("base: first\nschedule: {final: 0.5}\n")
    recipe = load_recipe(tmp_path / "second.yaml", ["seed=6", "optimiser.groups.waves.rate=1e-6"])
    assert (recipe.seed, recipe.schedule.epochs, recipe.schedule.final) == (6, 7, 0.5)
    assert recipe.optimiser.groups["waves"].rate == 1e-6 and recipe.optimiser.groups["refinements"].rate == 0.02
    assert recipe.name == "second" and recipe.data.path == "smoke"


def test_bases_that_run_in_a_circle_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b\n")
    (tmp_path / "b.yaml").write_text("base: a\n")
    with pytest.raises(ValueError, match="based on it in turn"):
        load_recipe(tmp_path / "a.yaml")


def test_a_section_given_whole_replaces_what_a_file_said() -> None:
    assert load_recipe("smoke", ["optimiser.groups={}"]).optimiser.groups == {}


def test_the_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe("waves-tile64", ["trainer.max_time=1h30m", "data.size=128"])
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_every_setting_has_one_dotted_name() -> None:
    settings = settings_of(load_recipe("waves-tile64"))
    plain = {key for key in settings if ".groups." not in key}
    assert plain <= {*known_keys(), "optimiser.groups"}
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
        "optimiser: {groups: {'${oc.env:FINOLA_TOKEN}': {rate: 1}}}",
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
        "optimiser: {rate: .nan}",
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
def test_recipes_from_elsewhere_are_bounded_and_resolve_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINOLA_TOKEN", "hf-secret")
    base = "" if text.startswith(("base", "x", "-", "{", "?")) else "base: smoke\n"
    (tmp_path / "theirs.yaml").write_text(base + text)
    with pytest.raises(InputError) as raised:
        load_recipe(tmp_path / "theirs.yaml")
    sentence = str(raised.value)
    assert "\n" not in sentence and "hf-secret" not in sentence and len(sentence) < 1000


@pytest.mark.parametrize(
    "override",
    [
        "about=${oc.env:FINOLA_TOKEN}",
        "optimiser.groups.${oc.env:FINOLA_TOKEN}.rate=1",
        "seed=[[[",
        "seed=" + "[" * 100_000,
        "seed={",
        "seed=" + "9" * 5000,
        "seed=" + "9" * 40,
        "optimiser.rate=1" + "0" * 400,
        "optimiser.rate=1e999",
        "seed=-1",
        "classes=&a [*a]",
        "about=!!binary aGVsbG8=",
        "seed=\0",
        "about=" + "x" * 10_000,
        "x" * 5000 + "=1",
        "optimiser.groups.mine=3",
        "loss.steps=[[80, 168], 168]",
        "objects.short=[{}, 800]",
        "optimiser.groups.mine.match=[null]",
        "trainer.max_time=" + "9" * 400 + "d",
    ],
    ids=range(20),
)
def test_overrides_are_bounded_and_resolve_nothing(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINOLA_TOKEN", "hf-secret")
    with pytest.raises(InputError) as raised:
        load_recipe("smoke", [override])
    sentence = str(raised.value)
    assert "\n" not in sentence and "hf-secret" not in sentence and len(sentence) < 1000


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"about: \xff\xfe")
    with pytest.raises(InputError, match=r"binary\.yaml"):
        load_recipe(tmp_path / "binary.yaml")

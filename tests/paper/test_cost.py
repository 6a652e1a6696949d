"""Plans agree with the training times of the paper and with throughput measured here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from finola.cli import main
from finola.errors import InputError
from finola.model_counts import sizes
from finola.paper.cost import DEVICES, Device, forward_counts, images_seen, plan
from finola.training import load_recipe
from finola.training.tasks.nets import Nets

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "bench-train.json"
IMAGENET = 1_281_167


@pytest.mark.parametrize(("model", "days"), [("3072x1@16", 8), ("3072x1@64", 18)])
def test_hours_agree_with_the_paper(model: str, days: float) -> None:
    """The first is the calibration; the second is predicted from it."""
    found = plan(load_recipe(f"paper/resolution/{model}", ["trainer.precision=32-true"]), IMAGENET, "v100", 8)
    assert found.hours / 24 == pytest.approx(days, rel=0.1)


@pytest.mark.skipif(not MEASURED.exists(), reason="source distributions have no results/")
def test_throughput_on_the_cpu_agrees_with_the_measured_one() -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    found = plan(load_recipe("waves-tile64"), 4866, "cpu", measured["threads"])
    assert found.flops_per_image == pytest.approx(measured["flops_per_image"], rel=0.25)
    assert found.images / (3600 * found.hours) == pytest.approx(measured["images_per_second"], rel=0.5)


def test_cost_is_proportional_to_images_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe("paper/resolution/3072x1@16")
    one, more = plan(recipe, 10**6, "a100", 1), plan(recipe, 10**8, "a100", 50)
    assert more.flops == 100 * one.flops and more.hours == pytest.approx(2 * one.hours)
    assert main(["plan", "paper/resolution/3072x1@16", "--images", "1000000", "--device", "a100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"] == one.flops
    assert main(["plan", "paper/resolution/3072x1@16", "--images", "0"]) == 2


def test_nets_are_counted_as_they_are_trained() -> None:
    """On crops of 16 tiles, without the recurrence."""
    task = Nets(load_recipe("tile32"))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        task.losses(torch.rand(1, 3, 128, 128), None)  # type: ignore[arg-type]  # the batch has only labels
    assert plan(task.recipe, 1).flops_per_image == pytest.approx(3 * counter.get_total_flops(), rel=0.2)
    assert plan(load_recipe("photo256"), 1000).flops > 0


@pytest.mark.parametrize("name", ["masked/b-w720", "masked/e-w720"])
def test_masked_models_have_the_counts_of_the_model_table(name: str) -> None:
    found, stored = forward_counts(load_recipe(name)), sizes(name)
    assert sorted((c.parameters, c.multiply_adds) for c in found.values()) == sorted(
        (c.parameters, c.multiply_adds) for c in stored.values()
    )
    assert plan(load_recipe(f"{name}-128"), 1).flops < plan(load_recipe(name), 1).flops


def test_memory_is_compared_with_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("tile32")
    state = plan(recipe, 1).state_bytes
    assert plan(recipe, 1).fits and plan(recipe, 1, "cpu").fits is None
    for memory, fits, words in (
        (state, (True, True), "yes"),
        (state - 1, (False, True), "only with FSDP"),
        (1, (False, False), "no"),
    ):
        monkeypatch.setitem(DEVICES, "v100", Device(1e12, memory))
        found = plan(recipe, 1, count=8)
        assert (found.fits, found.sharded_fits) == fits
        assert main(["plan", "tile32", "--images", "1", "--count", "8"]) == 0
        assert words in next(line for line in capsys.readouterr().out.splitlines() if "fits" in line)


def test_other_tasks_and_devices_are_rejected() -> None:
    with pytest.raises(InputError, match="detect"):
        plan(load_recipe("detection/dec-211-w720"), 1)
    with pytest.raises(InputError, match="tpu"):
        plan(load_recipe("paper/resolution/3072x1@16"), 1, "tpu")


def test_a_run_of_no_step_is_rejected() -> None:
    recipe = load_recipe("cpu/channels/512")
    recipe.trainer.max_steps = 0
    with pytest.raises(InputError, match=r"trainer\.max_steps is 0"):
        plan(recipe, 100)
    with pytest.raises(InputError, match=r"trainer\.max_time is"):
        load_recipe("cpu/channels/512", ["trainer.max_time=0s"])


def test_images_seen() -> None:
    assert images_seen(load_recipe("paper/channels/256"), IMAGENET) == 100 * IMAGENET
    before = load_recipe("cpu/channels/256", ["trainer.max_steps=1"])
    assert images_seen(before, 4_866) == before.data.batch_size


def test_precision_is_that_of_the_recipe() -> None:
    exact, mixed = (load_recipe("paper/channels/512", [f"trainer.precision={p}"]) for p in ("32-true", "bf16-mixed"))
    assert plan(mixed, 100, "a100").hours < plan(exact, 100, "a100").hours
    for device in ("v100", "cpu"):  # which have no bfloat16
        assert plan(mixed, 100, device).hours == plan(exact, 100, device).hours
    a100 = DEVICES["a100"]
    assert a100.rate("auto") == a100.rate("bf16-mixed") == a100.rate("16-mixed") > a100.rate("32-true")


def test_a_frozen_encoder_has_no_backward_pass() -> None:
    recipes = [load_recipe(name, ["data.size=128"]) for name in ("probe/tran1-w720", "finetune/w720")]
    encoder = forward_counts(recipes[0])["encoder"].multiply_adds
    frozen, tuned = (plan(recipe, 1).flops_per_image for recipe in recipes)
    assert tuned - frozen == 2 * (3 - 1) * encoder


def test_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "scale.py"))["page"]()
    assert (ROOT / "docs" / "scale.md").read_text(encoding="utf-8") == page

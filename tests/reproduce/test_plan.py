"""Plans agree with the training times of the paper and with throughput measured here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from finola.cli import main
from finola.errors import InputError
from finola.reproduce.plan import plan
from finola.training import load_recipe

ROOT = Path(__file__).parents[2]
IMAGENET = 1_281_167


@pytest.mark.parametrize(("model", "days"), [("3072x1@16", 8), ("3072x1@64", 18)])
def test_hours_agree_with_the_paper(model: str, days: float) -> None:
    """The first is the calibration; the second is predicted from it."""
    found = plan(load_recipe(f"paper/resolution/{model}"), IMAGENET, "v100", 8)
    assert found.hours / 24 == pytest.approx(days, rel=0.1)


def test_throughput_on_the_cpu_agrees_with_the_measured_one() -> None:
    measured = json.loads((ROOT / "results" / "bench-train.json").read_text())
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


def test_other_tasks_and_devices_are_rejected() -> None:
    with pytest.raises(InputError, match="masked"):
        plan(load_recipe("masked/b-w720"), 1)
    with pytest.raises(InputError, match="tpu"):
        plan(load_recipe("paper/resolution/3072x1@16"), 1, "tpu")


def test_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "scale.py"))["page"]()
    assert (ROOT / "docs" / "scale.md").read_text(encoding="utf-8") == page

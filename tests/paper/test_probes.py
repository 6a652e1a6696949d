"""The encoder of a pre-training run is probed, fine-tuned and used for reconstruction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from finola.image_io import save_photo
from finola.paper import probes
from finola.paper.claims import CLAIMS
from finola.paper.definitions import CRITICAL, CURVATURE_METRICS, PROBE_METRICS, PROBES
from finola.paper.measure import MEASURED, measure
from finola.paper.recognition import EPOCH_IMAGES, STUDY, STUDY_EPOCHS
from finola.paper.run import SUMMARY, Job, plan, reproduce
from finola.training import load_recipe, train


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Sixteen training and four val photos of each of two colours."""
    for split, count in (("train", 16), ("val", 4)):
        for name, colour in (("blue", (0.1, 0.2, 0.9)), ("red", (0.9, 0.2, 0.1))):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for index in range(count):
                image = torch.tensor(colour)[:, None, None] * torch.rand(1, 40, 40)
                save_photo(image, tmp_path / "photos" / split / name / f"{index}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("method", ["finola", "masked-b", "supervised"])
def test_all_metrics_of_an_encoder_are_measured(
    method: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "LIN_EPOCHS", 2)
    monkeypatch.setattr(probes, "EPOCHS", 1)
    words = [f"data.path={photos}", "data.batch_size=8", "schedule.epochs=1", "schedule.warmup_epochs=0"]
    recipe = load_recipe(f"study/{method}", [*words, "trainer.accelerator=cpu", "data.num_workers=0"])
    train(recipe, tmp_path / "run", quiet=True)
    found = measure(tmp_path / "run", PROBE_METRICS)
    assert list(found) == list(PROBE_METRICS) and (tmp_path / "run" / MEASURED).is_file()
    missing = {name for name, value in found.items() if value is None}
    assert missing == {name for name in CURVATURE_METRICS if method == "supervised" and name.startswith("z-")}
    assert all(0 <= found[name] <= 100 for name in (*PROBES, "fine-tuned"))  # type: ignore[operator]
    for kind in ("encoder",) if method == "supervised" else ("z", "encoder"):  # fewer channels are curved more
        values = [found[f"{kind}-curvature-{percent}"] for percent in CRITICAL]
        assert values == sorted(values, reverse=True)
    assert measure(tmp_path / "run", ("lin",)) == {"lin": found["lin"]}


def test_methods_of_pre_training_have_one_encoder_one_optimiser_and_as_many_images() -> None:
    recipes = {name: plan(row, "cpu", 0).recipe for name, row in STUDY.items() if name != "random"}
    assert {recipe.model.name.partition("/")[0] for recipe in recipes.values()} == {"residual-map-w64"}
    for name, recipe in recipes.items():
        assert recipe.schedule.epochs == int(name.rpartition("-")[2] if name[-1].isdigit() else STUDY_EPOCHS[-1])
        assert recipe.image_size == (64, 64) and recipe.data.path == "imagenette128" and recipe.data.batch_size == 64
        assert recipe.optimiser.lr == recipes["finola"].optimiser.lr
        assert recipe.optimiser.groups["matrices"] == recipes["finola"].optimiser.groups["matrices"]


def test_the_study_takes_at_least_200_000_images_and_less_than_twice_the_longest_run_for_a_curve() -> None:
    assert STUDY_EPOCHS[-1] * EPOCH_IMAGES >= 200_000
    assert sum(STUDY_EPOCHS) < 1.9 * STUDY_EPOCHS[-1]


def test_a_run_that_claims_share_has_the_metrics_of_all_of_them(photos: Path, tmp_path: Path) -> None:
    claims = [CLAIMS[name] for name in ("masking", "masking-probes")]
    launched: dict[str, set[str]] = {}

    def launch(job: Job) -> None:
        launched[job.row] = {*job.metrics}
        (job.folder / SUMMARY).write_text(json.dumps({"status": "diverged", "step": 1, "metrics": {}}))

    reproduce(claims, "cpu", 1, str(photos), tmp_path / "runs", tmp_path / "results", launch=launch)
    assert launched[STUDY["finola"].about] == {*PROBES, "fine-tuned"}
    assert launched[STUDY["finola-5"].about] == {*PROBES}

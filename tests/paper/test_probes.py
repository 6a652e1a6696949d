"""The encoder of a pre-training run is probed, fine-tuned and used for reconstruction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finola.image_io import save_photo
from finola.paper import probes
from finola.paper.claims import CLAIMS, rows_of
from finola.paper.definitions import PROBE_METRICS
from finola.paper.measure import MEASURED, measure
from finola.paper.run import plan
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


def test_all_metrics_of_an_encoder_are_measured(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LIN_EPOCHS", 2)
    monkeypatch.setattr(probes, "EPOCHS", 1)
    monkeypatch.setattr(probes, "BATCH", 8)
    words = [f"data.path={photos}", "data.size=64", "data.batch_size=8", "schedule.epochs=1"]
    words += ["schedule.warmup_epochs=0", "trainer.accelerator=cpu", "data.num_workers=0"]
    recipe = load_recipe("supervised/w720-128", words)
    train(recipe, tmp_path / "run", quiet=True)
    found = measure(tmp_path / "run", PROBE_METRICS)
    assert list(found) == list(PROBE_METRICS) and (tmp_path / "run" / MEASURED).is_file()
    assert all(value is not None for value in found.values())
    assert all(0 <= found[name] <= 100 for name in ("lin", "knn", "tran-1", "fine-tuned"))  # type: ignore[operator]
    assert measure(tmp_path / "run", ("lin",)) == {"lin": found["lin"]}


def test_methods_of_pre_training_have_one_encoder_and_as_many_images() -> None:
    recipes = {name: plan(row, "cpu", 0).recipe for name, row in rows_of(CLAIMS["masking"]).items()}
    assert {recipe.model.name.partition("/")[0] for recipe in recipes.values()} == {"mf-w720"}
    trained = [recipe for name, recipe in recipes.items() if name != "random"]
    for recipe in trained:
        assert (recipe.schedule.epochs, recipe.data.batch_size) == (trained[0].schedule.epochs, 64)
        assert recipe.image_size == (96, 96) and recipe.data.path == "imagenette128"
    assert recipes["random"].optimiser.base_lr < 1e-20  # type: ignore[operator]

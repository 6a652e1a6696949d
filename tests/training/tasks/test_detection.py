"""Detectors and segmenters trained by recipes on a made COCO folder: classes from the file, AP, folders, resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cocos import rectangle, write_coco
from training.runs import COMMON

from finola.cli import main
from finola.data.detection import ObjectBatch
from finola.errors import InputError
from finola.evaluation.detection import detect
from finola.image_io import open_photo
from finola.model_zoo import load_detector, load_encoder
from finola.recipes.loading import list_recipes, settings_of
from finola.training import load_recipe, train
from finola.training.log import read_curve
from finola.training.optim import build_optimiser
from finola.training.tasks.base import build_task

OWN = (
    *COMMON,
    "model.name=test_resnet",
    "model.weights=null",
    "head.frozen=false",
    "objects.short_side=[48,64]",
    "objects.max_long_side=96",
    "objects.short_side_step=8",
    "objects.update_encoder_norms=true",
    "data.limit=null",
    "data.val_limit=null",
    "data.batch_size=4",
    "optimiser.lr=3e-4",
    "schedule.epochs=2",
    "schedule.warmup_epochs=0",
    "schedule.milestones=[]",
    "trainer.check_val_every_n_epoch=1",
    "logging.samples=2",
)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory) -> Path:
    """Eight photos to learn from, one without objects and one with a crowd, and three to validate."""
    crowd = rectangle(2, 2, 30, 40, iscrowd=1, segmentation={"size": [48, 64], "counts": [0, 48 * 20, 48 * 44]})
    train_photos = [[rectangle(4 + 4 * n, 6, 20, 24), rectangle(34, 8, 10, 30, category=7)] for n in range(6)]
    val = [[rectangle(8 * n, 10, 24, 20)] for n in range(3)]
    return write_coco(tmp_path_factory.mktemp("boxes"), {"train2017": [*train_photos, [], [crowd]], "val2017": val})


def own(data: Path, *overrides: str):
    return load_recipe("detection/dec-211-w720-192", [*OWN, f"data.path={data}", *overrides])


def segmenting(data: Path, *overrides: str):
    return load_recipe("detection/mask-rcnn-w720-192", [*OWN, f"data.path={data}", *overrides])


@pytest.fixture(scope="module")
def detector(boxes: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    outcome = train(own(boxes, "schedule.milestones=[1]"), folder, quiet=True)
    assert outcome.status == "finished" and {"val/ap", "val/ap50"} <= outcome.metrics.keys()
    assert any("train/giou" in row for row in read_curve(folder / "metrics.csv"))
    assert list((folder / "samples").glob("*.png"))
    return folder / "model"


def test_a_run_makes_a_detector_with_the_file_s_classes(detector: Path, boxes: Path):
    model = load_detector(detector)
    assert model.classes == ["box", "bar"] and model.size == (64, 96)
    detections = detect(model, open_photo(boxes / "val2017" / "1.png"))
    assert len(detections.labels) == 100 and (detections.boxes[:, 2] <= 64).all()
    assert "mf-dec-211" in (detector / "README.md").read_text()


def test_a_detector_s_encoder_starts_another_run(detector: Path, boxes: Path, tmp_path: Path):
    starts = own(boxes, f"model.weights={detector}", "head.frozen=true", "optimiser.lr=0.0")
    outcome = train(starts, tmp_path / "run", quiet=True)
    before, after = load_encoder(detector).state_dict(), load_encoder(outcome.model).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    head = [load_detector(folder).head.state_dict()["queries"] for folder in (detector, outcome.model)]
    assert torch.equal(*head)  # the same classes: fine-tuning goes on with the probe's head


def test_a_killed_run_goes_on_to_the_same_weights(detector: Path, boxes: Path, tmp_path: Path):
    first = own(boxes, "schedule.milestones=[1]", "trainer.max_steps=3", "data.num_workers=0")
    train(first, tmp_path / "run", quiet=True)
    outcome = train(own(boxes, "schedule.milestones=[1]"), tmp_path / "run", resume=True, quiet=True)
    assert outcome.step == 4
    again, before = load_detector(outcome.model).state_dict(), load_detector(detector).state_dict()
    assert all(torch.equal(again[key], before[key]) for key in before)


def test_evaluate_computes_the_twelve_metrics(detector: Path, boxes: Path, tmp_path: Path, capsys):
    assert main(["evaluate", str(detector), str(boxes), "--split", "val", "-o", str(tmp_path / "ap"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["images"] == 3 and len(summary["boxes"]) == 12 and 0 <= summary["boxes"]["AP50"] <= 1
    entries = json.loads((tmp_path / "ap" / "results.json").read_text())
    assert len(entries) == 300 and {entry["category_id"] for entry in entries} <= {3, 7}


def test_detect_draws_and_writes_coco(detector: Path, boxes: Path, tmp_path: Path, capsys):
    photos = [str(boxes / "val2017"), "skimage:coffee"]
    assert main(["detect", *photos, "-m", str(detector), "-o", str(tmp_path / "out"), "--score", "0"]) == 0
    assert "objects.json" in capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "objects.json").read_text())
    assert [image["height"] for image in content["images"]] == [48, 48, 48, 400]
    assert len(content["annotations"]) == 400
    assert content["categories"] == [{"id": 1, "name": "box"}, {"id": 2, "name": "bar"}]
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"1.png", "2.png", "3.png", "coffee.png"}
    assert main(["segment", *photos, "-m", str(detector)]) == 2
    assert "finola detect" in capsys.readouterr().err
    assert main(["detect", *photos, "-m", str(detector), "--score", "7"]) == 2
    (tmp_path / "broken.png").write_text("no photo")
    given = [str(tmp_path / "broken.png"), photos[0]]
    assert main(["detect", *given, "-m", str(detector), "-o", str(tmp_path / "rest"), "--json"]) == 2
    said = capsys.readouterr()
    assert len(json.loads(said.out)["images"]) == 3 and "broken.png cannot be read as a photo" in said.err


def test_a_segmenter_trains_finds_and_is_measured(boxes: Path, tmp_path: Path, capsys):
    recipe = segmenting(boxes, "schedule.epochs=1", "data.batch_size=2")
    recipe.data.limit, recipe.data.val_limit, recipe.logging.samples = 2, 1, 0
    outcome = train(recipe, tmp_path / "run", quiet=True)
    assert {"val/mask_ap", "val/ap"} <= outcome.metrics.keys() and "mask_ap" in outcome.best
    photo = str(boxes / "val2017" / "1.png")
    assert main(["segment", photo, "-m", outcome.model, "-o", str(tmp_path / "out"), "--score", "0", "--json"]) == 0
    for entry in json.loads(capsys.readouterr().out)["annotations"]:
        assert entry["segmentation"]["size"] == [48, 64]
    assert main(["evaluate", outcome.model, str(boxes), "--split", "val", "--limit", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["masks"]) == 12


def test_photos_without_masks_raise_for_a_segmenter(tmp_path: Path):
    bare = rectangle(4, 5, 20, 30)
    del bare["segmentation"]
    data = write_coco(tmp_path / "data", {"train2017": [[bare]], "val2017": [[bare]]})
    with pytest.raises(ValueError, match="masks"):
        train(segmenting(data), tmp_path / "run", quiet=True)


def test_photos_without_objects_raise(tmp_path: Path):
    with pytest.raises(ValueError, match="smoke"):
        train(own(Path("smoke"), "data.limit=8"), tmp_path / "run", quiet=True)


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("detection/") and "w720" in name])
def test_every_recipe_takes_a_step_that_teaches_all_it_trains(name: str):
    recipe = load_recipe(name)
    assert recipe.task == ("segment" if "mask-rcnn" in name else "detect")
    small = replace(recipe.objects, short_side=[32, 32], max_long_side=32)
    model = replace(recipe.model, name="test_resnet", weights=None)
    task = build_task(replace(recipe, model=model, objects=small, classes=["box", "bar"])).train()
    optimiser = build_optimiser(task.model, recipe)
    target = {"labels": torch.tensor([1]), "boxes": torch.tensor([[4.0, 4.0, 20.0, 28.0]])}
    target["masks"] = torch.ones(1, 32, 32, dtype=torch.bool)
    images, sizes = torch.rand(2, 3, 32, 32), torch.tensor([[32, 32]] * 2)
    batch = ObjectBatch(images, sizes, [target] * 2, torch.arange(2), torch.zeros(2, dtype=torch.bool))
    loss = torch.stack(list(task.losses(images, batch).values())).sum()
    loss.backward()
    optimiser.step()
    assert loss.isfinite()
    without = [key for key, p in task.model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without, f"these would stop several processes from training together: {without}"


@pytest.mark.parametrize("name", ["detection/dec-211-w720", "detection/mask-rcnn-w720-192"])
def test_a_frozen_encoder_needs_weights(name: str):
    with pytest.raises(InputError, match=r"model\.weights"):
        load_recipe(name, ["model.weights=null"])
    assert load_recipe(name, ["model.weights=null", "head.frozen=false"]).model.weights is None


@pytest.mark.parametrize("head", ["522", "211"])
@pytest.mark.parametrize("width", ["720", "1440", "2880"])
def test_recipes_have_the_paper_s_settings(head: str, width: str):
    probe, tuned = (settings_of(load_recipe(f"detection/{kind}-{head}-w{width}")) for kind in ("dec", "finetune"))
    shared = {
        "data.batch_size": 16,
        "optimiser.weight_decay": 1e-4,
        "head.dropout": 0.1,
        "objects.short_side": [480, 800],
    }
    shared |= {
        "head.kind": f"mf-dec-{head}",
        "model.name": f"mf-w{width}",
        "objects.max_long_side": 1333,
        "optimiser.kind": "adamw",
    }
    assert {key: probe[key] for key in shared} == {key: tuned[key] for key in shared} == shared
    own = ("head.frozen", "optimiser.lr", "schedule.epochs", "schedule.milestones")
    assert [probe[key] for key in own] == [True, 1e-4, 500, [400]]
    assert [tuned[key] for key in own] == [False, 1e-5, 200, [150]]

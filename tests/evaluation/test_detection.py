"""The twelve metrics equal those of pycocotools on an example with crowds, misses and false positives."""

from __future__ import annotations

import io
import json
import random
from contextlib import redirect_stdout

import pytest
import torch
from cocos import rectangle, write_coco
from PIL import Image

from finola.cli import main
from finola.data.coco import open_coco
from finola.data.detection import Fit, ObjectDataset
from finola.evaluation.detection import METRICS, average_precision, evaluate_detection, ground_truth
from finola.heads.detector import Detector
from finola.heads.mask_rcnn import Segmenter

# Printed by pycocotools 2.0.11 for this example.
STORED = {
    "bbox": [0.2431, 0.48, 0.1584, 0.2403, 0.2693, 0.2495, 0.2667, 0.3556, 0.3556, 0.2917, 0.3375, 0.3],
    "segm": [0.2478, 0.48, 0.2129, 0.2533, 0.2693, 0.2495, 0.2778, 0.3595, 0.3595, 0.3, 0.3375, 0.3],
}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A COCO folder, and results that are near the truth, beside it, or doubled."""
    chance = random.Random(5)
    crowd = {"size": [240, 320], "counts": [240 * 200, 240 * 100, 240 * 20]}
    photos, results = [], []
    for number in range(1, 13):
        objects = []
        for _ in range(chance.randrange(4)):
            most = chance.choice((20, 130))
            left, top, width, height = (chance.randrange(2, high) for high in (150, 100, most, most))
            objects.append(rectangle(left, top, width + 8, height + 8, category=chance.choice((3, 7))))
            for _ in range(chance.randrange(3)):
                box = [value + chance.uniform(-4, 4) for value in objects[-1]["bbox"]]
                box[2:] = [max(1.0, value) for value in box[2:]]
                category = objects[-1]["category_id"] if chance.random() < 0.9 else 10 - objects[-1]["category_id"]
                corners = rectangle(*box)["segmentation"]
                results.append({"image_id": number, "category_id": category, "bbox": box, "score": chance.random()})
                results[-1]["segmentation"] = _runs(corners)
        if number % 3 == 0:
            objects.append(rectangle(200, 0, 100, 240, iscrowd=1, segmentation=crowd))
            box = [210.0, 25.0, 50.0, 50.0]
            results.append({"image_id": number, "category_id": 3, "bbox": box, "score": chance.random()})
            results[-1]["segmentation"] = _runs(rectangle(*box)["segmentation"])
        photos.append(objects)
    return write_coco(tmp_path_factory.mktemp("coco"), {"val2017": photos}, size=(240, 320)), results


def _runs(corners):
    from pycocotools import mask as coco_mask

    [runs] = coco_mask.frPyObjects(corners, 240, 320)
    return {"size": runs["size"], "counts": runs["counts"].decode()}


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_metrics_equal_those_of_pycocotools(example, kind, tmp_path):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    root, results = example
    (tmp_path / "results.json").write_text(json.dumps(results))
    with redirect_stdout(io.StringIO()):
        coco = COCO(str(root / "annotations" / "instances_val2017.json"))
        reference = COCOeval(coco, coco.loadRes(str(tmp_path / "results.json")), kind)
        reference.evaluate()
        reference.accumulate()
        reference.summarize()
    source = open_coco(root, "val")
    metrics = average_precision(ground_truth(source, range(len(source))), results, kind)
    values = [metrics[name] for name in METRICS]
    assert values == pytest.approx(reference.stats.tolist(), abs=1e-12)
    assert values == pytest.approx(STORED[kind], abs=1e-4)


def test_no_detections_give_zero_and_no_objects_undefined_metrics(example):
    root, results = example
    truth = ground_truth(open_coco(root, "val"), range(12))
    assert set(average_precision(truth, []).values()) == {0.0}
    assert set(average_precision(truth | {"annotations": []}, results).values()) == {None}


def test_a_subset_of_photos_can_be_evaluated(example):
    root, _ = example
    source = open_coco(root, "val")
    few = ground_truth(source, [1, 2])
    ids = {image["id"] for image in few["images"]}
    assert ids == {2, 3} and {entry["image_id"] for entry in few["annotations"]} <= ids


@pytest.mark.parametrize(("kind", "verb"), [(Detector, "detect"), (Segmenter, "segment")])
def test_batches_give_the_same_detections_as_single_photos(kind, verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = kind("test_resnet", classes=["cat", "dog"], size=(64, 96))
    model.save_pretrained("model")
    for number, size in enumerate([(70, 50), (70, 50), (140, 100), (50, 70), (80, 80)]):  # three have one input size
        pixels = (255 * torch.rand(size[1], size[0], 3)).to(torch.uint8).numpy()
        Image.fromarray(pixels).save(f"{number}.png")
    written = {}
    for batch in ("1", "3"):
        words = [verb, *(f"{number}.png" for number in range(5)), "-m", "model", "--score", "0", "--device", "cpu"]
        assert main([*words, "--batch", batch, "-o", f"out{batch}"]) == 0
        written[batch] = json.loads((tmp_path / f"out{batch}" / "objects.json").read_text())
    single, batched = written["1"], written["3"]
    assert single["images"] == batched["images"] and len(single["annotations"]) == len(batched["annotations"]) > 0
    for number in range(1, 6):  # objects with nearly equal scores may change places
        one, other = (
            sorted(entry["bbox"] for entry in content["annotations"] if entry["image_id"] == number)
            for content in (single, batched)
        )
        assert torch.tensor(one).allclose(torch.tensor(other), atol=0.05)


def test_evaluation_in_batches_gives_the_same_results(example):
    root, _ = example
    model = Detector("test_resnet", classes=["cat", "dog"], size=(48, 64)).eval()
    dataset = ObjectDataset(open_coco(root, "val"), Fit(*model.size), classes=model.classes)
    single, batched = (evaluate_detection(model, dataset, range(6), batch) for batch in (1, 4))
    assert single["images"] == batched["images"] == 6
    scores = [torch.tensor([entry["score"] for entry in found["results"]]) for found in (single, batched)]
    assert scores[0].shape == scores[1].shape and scores[0].allclose(scores[1], atol=1e-4)

"""Detection data: boxes and masks match the transformed photo, and unusable objects are dropped and listed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from cocos import rectangle, write_coco
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from finola.data.coco import open_coco
from finola.data.detection import (
    Fit,
    MultiScale,
    ObjectDataset,
    collate_objects,
    fitted,
    letterbox,
    move_boxes,
    move_mask,
)
from finola.data.loader import make_loader
from finola.data.transforms import render_views
from finola.errors import CorruptFileError, InputError
from finola.evaluation.detection import ground_truth

SIZE = (90, 120)


@st.composite
def boxes(draw_, smallest: int = 12):
    left, top = draw_(st.integers(0, SIZE[1] - smallest)), draw_(st.integers(0, SIZE[0] - smallest))
    return left, top, draw_(st.integers(left + smallest, SIZE[1])), draw_(st.integers(top + smallest, SIZE[0]))


def bright(image: torch.Tensor) -> list[float]:
    """Left, top, right, bottom of the bright area: where brightness crosses one half between the centres of pixels."""
    edges = []
    for axis in (0, 1):
        profile = image.double().amax(axis)
        inside = (profile > 0.5).nonzero()[:, 0]
        first, last = int(inside.min()), int(inside.max())
        low, high = 0.0, float(len(profile))
        if first > 0:
            low = first + 0.5 - float((profile[first] - 0.5) / (profile[first] - profile[first - 1]))
        if last + 1 < len(profile):
            high = last + 0.5 + float((profile[last] - 0.5) / (profile[last] - profile[last + 1]))
        edges.append((low, high))
    (left, right), (top, bottom) = edges
    return [left, top, right, bottom]


@given(boxes(), st.integers(0, 10**6), st.sampled_from([MultiScale((120, 200), 333, 16), Fit(100, 150)]))
@settings(max_examples=60, deadline=None)
def test_boxes_and_masks_match_the_view_within_half_a_pixel(box, seed, transform):
    photo = np.zeros((*SIZE, 3), np.uint8)
    left, top, right, bottom = box
    photo[top:bottom, left:right] = 255
    view = transform.view(SIZE, np.random.default_rng(seed))
    height, width = view.size
    moved = move_boxes(torch.tensor([box]).float(), view)
    clipped = torch.minimum(moved.clamp(min=0), torch.tensor([width, height] * 2))[0]
    drawn = render_views(Image.fromarray(photo), [view])[0, 0].float() / 255
    if min(clipped[2:] - clipped[:2]) < 4:  # too little of it is left to be measured
        return
    assert bright(drawn) == pytest.approx(clipped.tolist(), abs=0.5)
    polygon = [[left, top, right, top, right, bottom, left, bottom]]
    whole = np.asfortranarray(photo[..., 0] // 255)
    from pycocotools import mask as coco_mask

    for segmentation in (polygon, coco_mask.encode(whole)):
        mask = move_mask(segmentation, SIZE, view)
        assert mask.shape == view.size
        assert bright(mask) == pytest.approx(clipped.tolist(), abs=1.0)


@given(st.integers(20, 4000), st.integers(20, 4000))
def test_short_side_is_reached_unless_the_long_side_exceeds_its_limit(height, width):
    tall, wide = fitted((height, width), 800, 1333)
    assert max(tall, wide) <= 1333 and min(tall, wide) <= 800
    assert min(tall, wide) == 800 or max(tall, wide) == 1333


@given(st.integers(0, 10**6))
def test_augmented_sizes_are_in_the_range_of_detr(seed):
    view = MultiScale().view((427, 640), np.random.default_rng(seed))
    assert max(view.size) <= 1333
    assert min(view.size) in range(480, 801, 32) or max(view.size) == 1333
    left, top, right, bottom = view.box
    assert left >= 0 and top >= 0 and right <= 640 + 1e-6 and bottom <= 427 + 1e-6


@given(st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=4))
def test_letterboxing_preserves_the_images(sizes):
    images = [torch.randint(1, 256, (3, height, width), dtype=torch.uint8) for height, width in sizes]
    padded, found = letterbox(images)
    assert all(side % 32 == 0 for side in padded.shape[-2:])
    for number, image in enumerate(images):
        height, width = found[number].tolist()
        assert torch.equal(padded[number, :, :height, :width], image)
        assert padded[number].count_nonzero() == image.numel()


def test_crowds_empty_boxes_and_unknown_classes_are_dropped_and_listed(tmp_path):
    crowd = {"size": [48, 64], "counts": [0, 48 * 20, 48 * 44]}
    objects = [
        rectangle(4, 5, 20, 30),
        rectangle(0, 0, 20, 48, iscrowd=1, segmentation=crowd),
        rectangle(9, 9, 0, 12),
        rectangle(30, 10, 20, 20, category=7),
    ]
    root = write_coco(tmp_path, {"train2017": [objects, []]})
    dataset = ObjectDataset(open_coco(root, "all"), Fit(48, 64), masks=True)
    image, target = dataset[0]
    assert torch.equal(image, dataset[0, 0].image / 255) and target.keys() == dataset[0, 0].target.keys()
    assert dataset.names == ["box", "bar"] and dataset.categories == [3, 7]
    target = dataset[0, 0].target
    assert target["labels"].tolist() == [0, 1]
    assert target["boxes"].tolist() == [[4, 5, 24, 35], [30, 10, 50, 30]]
    assert target["masks"].sum((1, 2)).tolist() == [600, 400]
    [message] = dataset.left_out()
    assert "train2017/1.png" in message and "1 without" in message
    fewer = ObjectDataset(open_coco(root, "all"), Fit(48, 64), classes=["bar", "moon"])
    assert fewer[0, 0].target["labels"].tolist() == [0] and fewer.categories == [7, -1]
    assert "3 of" in fewer.left_out()[0]
    truth = ground_truth(fewer.source, [0, 1], fewer.categories)
    assert [entry["bbox"] for entry in truth["annotations"]] == [[30, 10, 20, 20]]
    assert [entry["name"] for entry in truth["categories"]] == ["bar"]
    assert len(ground_truth(fewer.source, [0, 1])["annotations"]) == 3  # all but the flat one


def test_image_without_objects_has_an_empty_target(tmp_path):
    root = write_coco(tmp_path, {"train2017": [[rectangle(4, 5, 20, 30)], []]})
    dataset = ObjectDataset(open_coco(root, "all"), Fit(48, 64), masks=True)
    batch, _ = collate_objects([dataset[0, 0], dataset[0, 1]])
    assert batch.images.shape == (2, 3, 64, 64) and batch.sizes.tolist() == [[48, 64], [48, 64]]
    assert [len(target["labels"]) for target in batch.targets] == [1, 0]
    assert batch.targets[1]["boxes"].shape == (0, 4) and batch.targets[1]["masks"].shape == (0, 48, 64)


def test_missing_photos_and_wrong_sizes_are_replaced_and_listed(tmp_path):
    root = write_coco(tmp_path, {"train2017": [[rectangle(4, 5, 20, 30)], [], []]})
    (root / "train2017" / "1.png").unlink()
    Image.new("RGB", (10, 10)).save(root / "train2017" / "2.png")
    dataset = ObjectDataset(open_coco(root, "all"), Fit(48, 64))
    loader = make_loader(dataset, 3, shuffle=False, workers=0)
    loader.collate_fn = collate_objects
    [batch] = loader
    assert batch.indices.tolist() == [2, 2, 2] and batch.replaced.tolist() == [True, True, False]
    assert [name for name, _ in dataset.unreadable] == ["train2017/1.png", "train2017/2.png"]
    assert all(value in dataset.report() for value in ("1.png", "2.png", "10×10", "64×48"))


def test_annotations_without_masks_work_for_boxes_only(tmp_path):
    bare = rectangle(4, 5, 20, 30)
    del bare["segmentation"], bare["area"], bare["iscrowd"]
    root = write_coco(tmp_path, {"train2017": [[bare]]})
    source = open_coco(root, "all")
    assert ObjectDataset(source, Fit(48, 64))[0, 0].target["boxes"].tolist() == [[4, 5, 24, 35]]
    assert source.target(0)["area"].tolist() == [600]
    with pytest.raises(InputError, match="masks"):
        ObjectDataset(source, Fit(48, 64), masks=True)


def test_view_and_target_are_deterministic(tmp_path):
    root = write_coco(tmp_path, {"train2017": [[rectangle(4, 5, 20, 30), rectangle(30, 10, 20, 20)]]})
    first, second = (ObjectDataset(open_coco(root, "all"), MultiScale((48, 80), 133, 8), seed=1) for _ in range(2))
    assert torch.equal(first[3, 0].image, second[3, 0].image)
    assert torch.equal(first[3, 0].target["boxes"], second[3, 0].target["boxes"])


def test_photos_in_an_images_folder_are_found(tmp_path):
    root = write_coco(tmp_path, {"train2017": [[rectangle(4, 5, 20, 30)]]})
    (root / "images").mkdir()
    (root / "train2017").rename(root / "images" / "train2017")
    assert ObjectDataset(open_coco(root, "all"), Fit(48, 64))[0, 0].image.shape == (3, 48, 64)


def test_invalid_annotations_raise(tmp_path):
    root = write_coco(tmp_path, {"train2017": [[rectangle(4, 5, 20, 30, category=99)]]})
    with pytest.raises(CorruptFileError, match="99"):
        open_coco(root, "all")
    content = json.loads((root / "annotations" / "instances_train2017.json").read_text())
    content["annotations"][0] |= {"category_id": 3, "bbox": [1, 2, 3]}
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(content))
    with pytest.raises(CorruptFileError, match=r"instances_train2017\.json.*\[1, 2, 3\]"):
        open_coco(root, "all")

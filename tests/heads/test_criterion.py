"""Compare the set loss with a reference that enumerates all assignments."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finola.heads.criterion import CLASS, GIOU, L1, NO_OBJECT, costs, detection_losses, giou_losses, match
from finola.heads.detector import normalise_boxes, to_detections
from finola.heads.mf_decoder import Predictions

CLASSES = 3
share = st.floats(0.05, 0.95)
box = st.tuples(share, share, share, share)


def giou(first: list[float], second: list[float]) -> float:
    """Generalised IoU of two boxes given by centre and size, from the definition."""
    edges = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in (first, second)]
    (l1, t1, r1, b1), (l2, t2, r2, b2) = edges
    both = max(0.0, min(r1, r2) - max(l1, l2)) * max(0.0, min(b1, b2) - max(t1, t2))
    union = (r1 - l1) * (b1 - t1) + (r2 - l2) * (b2 - t2) - both
    hull = (max(r1, r2) - min(l1, l2)) * (max(b1, b2) - min(t1, t2))
    return both / union - (hull - union) / hull


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def cost(logits: list[float], predicted: list[float], label: int, true: list[float]) -> float:
    far = sum(abs(a - b) for a, b in zip(predicted, true, strict=True))
    return -CLASS * softmax(logits)[label] + L1 * far - GIOU * giou(predicted, true)


@st.composite
def scenes(draw, queries: int = 4):
    """Predictions of `queries` queries for one image and at most as many objects; all costs are distinct."""
    chance = random.Random(draw(st.integers(0, 10**6)))
    count = draw(st.integers(0, queries))
    logits = [[chance.gauss(0, 2) for _ in range(CLASSES + 1)] for _ in range(queries)]
    boxes, true = ([[chance.uniform(0.05, 0.95) for _ in range(4)] for _ in range(n)] for n in (queries, count))
    return logits, boxes, [chance.randrange(CLASSES) for _ in range(count)], true


def as_tensors(scene):
    logits, boxes, labels, true = scene
    target = {"labels": torch.tensor(labels, dtype=torch.int64), "boxes": torch.tensor(true).double().reshape(-1, 4)}
    return torch.tensor(logits).double(), torch.tensor(boxes).double(), target


def cheapest(scene) -> tuple[float, tuple[int, ...]]:
    """Minimum total cost over all assignments, and the query of each object."""
    logits, boxes, labels, true = scene
    ways = permutations(range(len(boxes)), len(true))
    total = {way: sum(cost(logits[q], boxes[q], labels[n], true[n]) for n, q in enumerate(way)) for way in ways}
    way = min(total, key=total.__getitem__)
    return total[way], way


@given(scenes())
@settings(max_examples=30, deadline=None)
def test_no_assignment_is_cheaper(scene):
    logits, boxes, target = as_tensors(scene)
    queries, objects = match(Predictions(logits[None, None], boxes[None, None]), [target])
    assert sorted(objects.tolist()) == list(range(len(target["labels"])))
    assert len(set(queries.tolist())) == len(queries)
    assert float(costs(logits, boxes, target)[queries, objects].sum()) == pytest.approx(cheapest(scene)[0], abs=1e-4)


@given(scenes(), scenes())
@settings(max_examples=30, deadline=None)
def test_the_loss_is_the_sum_of_its_terms(first, second):
    pair = [as_tensors(scene) for scene in (first, second)]
    predictions = Predictions(torch.stack([p[0] for p in pair])[None], torch.stack([p[1] for p in pair])[None])
    predicted = detection_losses(predictions, [p[2] for p in pair])
    objects = max(1, len(first[2]) + len(second[2]))
    entropy = weights = l1 = apart = 0.0
    for scene in (first, second):
        logits, boxes, labels, true = scene
        _, way = cheapest(scene)
        for query, values in enumerate(logits):
            number = way.index(query) if query in way else None
            wanted = CLASSES if number is None else labels[number]
            weight = NO_OBJECT if number is None else 1.0
            entropy -= weight * math.log(softmax(values)[wanted])
            weights += weight
            if number is not None:
                l1 += sum(abs(a - b) for a, b in zip(boxes[query], true[number], strict=True))
                apart += 1 - giou(boxes[query], true[number])
    expected = {"class": CLASS * entropy / weights, "l1": L1 * l1 / objects, "giou": GIOU * apart / objects}
    assert {name: float(value) for name, value in predicted.items()} == pytest.approx(expected, abs=1e-4)


@given(box, box)
def test_giou_is_torchvision_s(first, second):
    from torchvision.ops import box_convert, generalized_box_iou

    boxes = [torch.tensor([values], dtype=torch.float64) for values in (first, second)]
    corners = [box_convert(given, "cxcywh", "xyxy") for given in boxes]
    assert giou(list(first), list(second)) == pytest.approx(float(generalized_box_iou(*corners)), abs=1e-6)
    assert float(giou_losses(*corners)) == pytest.approx(1 - float(generalized_box_iou(*corners)), abs=2e-4)


@given(box)
def test_predicting_the_target_returns_its_box_in_pixels(values):
    left, top, width, height = values
    boxes = torch.tensor([[40 * left, 30 * top, 40 * (left + (1 - left) * width), 30 * (top + (1 - top) * height)]])
    [target] = normalise_boxes([{"labels": torch.tensor([0]), "boxes": boxes}], torch.tensor([[30, 40]]))
    [detections] = to_detections(Predictions(torch.zeros(1, 1, 1, 2), target["boxes"][None, None]), [(30, 40)])
    assert torch.allclose(detections.boxes, boxes, atol=1e-4)


def test_losses_are_summed_over_blocks():
    torch.manual_seed(0)
    logits, boxes = torch.randn(3, 2, 5, 4), torch.rand(3, 2, 5, 4)
    targets = [{"labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4)}] * 2
    whole = detection_losses(Predictions(logits, boxes), targets)
    parts = [detection_losses(Predictions(logits[n : n + 1], boxes[n : n + 1]), targets) for n in range(3)]
    for name, value in whole.items():
        assert torch.allclose(value, sum(part[name] for part in parts))


def test_images_without_objects_train_the_no_object_class():
    logits, boxes = torch.zeros(1, 2, 5, 4, requires_grad=True), torch.rand(1, 2, 5, 4, requires_grad=True)
    nothing = {"labels": torch.zeros(0, dtype=torch.int64), "boxes": torch.zeros(0, 4)}
    losses = detection_losses(Predictions(logits, boxes), [nothing, nothing])
    sum(losses.values()).backward()
    assert losses["l1"].item() == losses["giou"].item() == 0
    assert (logits.grad[..., -1] < 0).all() and (logits.grad[..., :-1] > 0).all()


def test_more_objects_than_queries_use_every_query():
    target = {"labels": torch.arange(3), "boxes": torch.rand(3, 4)}
    queries, objects = match(Predictions(torch.randn(1, 1, 2, 4), torch.rand(1, 1, 2, 4)), [target])
    assert len(queries) == len(set(objects.tolist())) == 2


def test_values_that_are_not_finite_reach_the_loss_but_not_the_solver():
    logits, boxes = torch.full((1, 1, 2, 4), float("nan")), torch.rand(1, 1, 2, 4)
    target = {"labels": torch.tensor([0]), "boxes": torch.rand(1, 4)}
    assert not torch.stack(list(detection_losses(Predictions(logits, boxes), [target]).values())).sum().isfinite()

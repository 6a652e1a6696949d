"""Drawn boxes and masks are at the positions of the detections."""

from __future__ import annotations

import torch

from finola.heads.detection_model import Detections
from finola.heads.visualisation import colour_of, draw_detections


def one_detection(**options) -> Detections:
    return Detections(torch.tensor([[20.0, 40.0, 60.0, 90.0]]), torch.tensor([0.8]), torch.tensor([1]), **options)


def test_a_box_changes_its_edges_and_its_caption_and_nothing_inside():
    image = torch.full((3, 128, 128), 0.5)
    drawn = draw_detections(image, one_detection(), ["cat", "dog"])
    changed = (drawn != 128).any(0)
    assert changed[90, 20:61].all() and changed[40:91, 60].all()
    assert not changed[45:85, 25:55].any() and not changed[92:].any() and not changed[:, 70:].any()
    assert drawn[:, 60, 20].tolist() == list(colour_of(1))


def test_a_mask_is_tinted_and_the_rest_is_not():
    mask = torch.zeros(1, 128, 128, dtype=torch.bool)
    mask[0, 50:80, 30:50] = True
    drawn = draw_detections(torch.full((3, 128, 128), 0.5), one_detection(masks=mask), ["cat", "dog"])
    changed = (drawn != 128).any(0)
    assert changed[50:80, 30:50].all() and not changed[50:80, 51:59].any()


def test_captions_stay_inside_the_picture():
    edges = Detections(
        torch.tensor([[0.0, 0.0, 30.0, 30.0], [100.0, 100.0, 128.0, 128.0]]), torch.ones(2), torch.arange(2)
    )
    drawn = draw_detections(torch.zeros(3, 128, 128), edges, ["a long name", "another long name"])
    assert drawn.shape == (3, 128, 128) and drawn[:, :16, :60].any() and drawn[:, 80:100, 40:].any()


def test_classes_next_to_each_other_have_colours_far_apart():
    colours = torch.tensor([colour_of(label) for label in range(80)]).float()
    assert (colours.diff(dim=0).abs().sum(1) > 100).all()

"""Mask R-CNN on the package's encoders."""

from __future__ import annotations

import pytest
import torch

from finola.heads.mask_rcnn import Segmenter


def small(**options) -> Segmenter:
    return Segmenter("test_resnet", classes=["cat", "dog"], size=(64, 96), **options)


def target(masks: bool = True) -> dict[str, torch.Tensor]:
    mask = torch.zeros(1, 64, 96, dtype=torch.bool)
    mask[:, 8:30, 8:40] = True
    return {"labels": torch.tensor([1]), "boxes": torch.tensor([[8.0, 8.0, 40.0, 30.0]])} | (
        {"masks": mask} if masks else {}
    )


def test_losses_train_every_part_and_images_may_have_no_objects():
    model = small(frozen=False).train()
    empty = {"labels": torch.zeros(0, dtype=torch.int64), "boxes": torch.zeros(0, 4)}
    empty["masks"] = torch.zeros(0, 64, 96, dtype=torch.bool)
    losses = model.losses(torch.rand(2, 3, 64, 96), None, [target(), empty])
    assert set(losses) == {"objectness", "rpn_box_reg", "classifier", "box_reg", "mask"}
    torch.stack(list(losses.values())).sum().backward()
    for part in (model.encoder, model.head.pyramid, model.head.proposals, model.head.regions):
        assert any(p.grad is not None and p.grad.any() for p in part.parameters())


def test_targets_without_masks_raise():
    with pytest.raises(ValueError, match="masks"):
        small().losses(torch.rand(1, 3, 64, 96), None, [target(masks=False)])


def test_masks_have_the_size_of_the_image_without_padding():
    model = small().eval()
    model.head.regions.score_thresh = 0.0
    sizes = torch.tensor([[50, 70]])
    [detections] = model.detect(torch.rand(1, 3, 64, 96), sizes)
    assert len(detections.labels) and detections.masks.shape == (len(detections.labels), 50, 70)
    assert set(detections.labels.tolist()) <= {0, 1}
    assert (detections.boxes[:, 2] <= 70).all() and (detections.boxes[:, 3] <= 50).all()


def test_a_segmenter_is_saved_and_loaded(tmp_path):
    model = small().eval()
    model.save_pretrained(tmp_path / "segmenter")
    again = Segmenter.from_pretrained(str(tmp_path / "segmenter")).eval()
    assert again.classes == ["cat", "dog"] and again.size == (64, 96)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_a_vit_without_a_pyramid_raises():
    with pytest.raises(ValueError, match=r"test_vit .*1/4, 1/8 and 1/16"):
        Segmenter("test_vit", classes=["cat"])

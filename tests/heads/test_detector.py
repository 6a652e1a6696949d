"""Detectors have the sizes of the paper, ignore padding and can freeze their encoder."""

from __future__ import annotations

import pytest
import torch
from speed.machine import flops

from finola.data.detection import letterbox
from finola.encoders import build_encoder
from finola.heads.detector import Detector, decoder_channels
from finola.heads.mf_decoder import MobileFormerDecoder, sine_positions

PAPER = {  # millions of parameters, and G multiply–adds at 800×1333, of the heads alone
    ("mf-dec-522", "mf-w2880"): (19.4, 34.6),
    ("mf-dec-522", "mf-w1440"): (18.6, 32.3),
    ("mf-dec-522", "mf-w720"): (18.2, 31.1),
    ("mf-dec-211", "mf-w2880"): (9.2, 15.7),
    ("mf-dec-211", "mf-w1440"): (8.4, 13.4),
    ("mf-dec-211", "mf-w720"): (8.0, 12.2),
}


@pytest.mark.parametrize(("head", "encoder"), PAPER)
def test_heads_have_the_paper_s_sizes(head, encoder):
    with torch.device("meta"):
        channels = decoder_channels(build_encoder(encoder, (256, 256)), encoder)
        decoder = MobileFormerDecoder(head, channels, classes=80).eval().requires_grad_(False)
        # 800×1333 is padded to multiples of 32.
        maps = [torch.empty(1, c, 800 // cell, 1344 // cell) for c, cell in zip(channels, (8, 16), strict=True)]
        work = flops(lambda: decoder(*maps)) / 2
    parameters, multiply_adds = PAPER[head, encoder]
    assert sum(p.numel() for p in decoder.parameters()) / 1e6 == pytest.approx(parameters, rel=5e-3)
    assert work / 1e9 == pytest.approx(multiply_adds, rel=2e-2)


def small(**options) -> Detector:
    return Detector("test_resnet", "mf-dec-211", ["cat", "dog"], size=(64, 96), **options)


def test_every_block_predicts_in_training_and_only_the_last_in_evaluation():
    model = small(dropout=0.0)
    images = torch.rand(2, 3, 64, 96)
    assert model.train()(images).logits.shape == (4, 2, 100, 3)
    assert model.eval()(images).boxes.shape == (1, 2, 100, 4)


def test_positions_of_a_padded_map_are_those_of_the_map_alone():
    alone, _ = sine_positions(torch.zeros(1, 256, 4, 6))
    padded, inside = sine_positions(torch.zeros(1, 256, 8, 8), torch.tensor([[4 / 8, 6 / 8]]))
    assert torch.allclose(padded[inside], alone[0], atol=1e-5)
    assert torch.equal(inside.reshape(8, 8).nonzero().amax(0), torch.tensor([3, 5]))


def test_padding_is_not_attended_to():
    attention = small().head.blocks[0][0].mobile_to_former.eval()
    tokens, queries, pixels = torch.rand(1, 5, 256), torch.rand(1, 5, 256), torch.rand(1, 8, 256)
    inside = torch.arange(8)[None] < 6
    changed = pixels.clone()
    changed[:, 6:] = 100
    first, second = (attention(tokens, queries, p, torch.zeros_like(p), inside) for p in (pixels, changed))
    assert torch.allclose(first, second, atol=1e-6)


def test_boxes_are_relative_to_the_image_without_padding():
    model = small().eval()
    images, sizes = letterbox([torch.rand(3, 40, 96), torch.rand(3, 64, 50)])
    for detections, (height, width) in zip(model.detect(images, sizes), sizes.tolist(), strict=True):
        assert (
            (detections.boxes[:, 2] <= width).all()
            and (detections.boxes[:, 3] <= height).all()
            and (detections.boxes >= 0).all()
        )
        assert (detections.scores.diff() <= 0).all() and set(detections.labels.tolist()) <= {0, 1}


def test_a_frozen_encoder_is_fixed_and_batch_norm_statistics_are_never_updated():
    targets = [{"labels": torch.tensor([1]), "boxes": torch.tensor([[8.0, 8.0, 40.0, 30.0]])}]
    for frozen in (True, False):
        model = small(frozen=frozen).train()
        before = {key: value.clone() for key, value in model.encoder.state_dict().items()}
        torch.stack(list(model.losses(torch.rand(1, 3, 64, 96), None, targets).values())).sum().backward()
        torch.optim.SGD([p for p in model.parameters() if p.grad is not None], lr=0.1).step()
        changed = {key for key, value in model.encoder.state_dict().items() if not torch.equal(value, before[key])}
        assert bool(changed) != frozen
        assert not any("running" in key for key in changed)


def test_every_parameter_of_the_head_gets_a_gradient():
    model = small(dropout=0.0).train()
    targets = [{"labels": torch.tensor([1]), "boxes": torch.tensor([[8.0, 8.0, 40.0, 30.0]])}] * 2
    torch.stack(list(model.losses(torch.rand(2, 3, 64, 96), None, targets).values())).sum().backward()
    assert [name for name, p in model.head.named_parameters() if p.grad is None] == []


def test_a_detector_is_saved_and_loaded(tmp_path):
    model = small().eval()
    model.save_pretrained(tmp_path / "detector")
    again = Detector.from_pretrained(str(tmp_path / "detector")).eval()
    images = torch.rand(1, 3, 64, 96)
    assert again.classes == ["cat", "dog"] and again.size == (64, 96)
    assert torch.equal(again(images).logits, model(images).logits)


def test_invalid_detectors_raise_with_their_values():
    with pytest.raises(ValueError, match="Detector"):
        Detector("test_resnet", "mf-dec-211", [])
    with pytest.raises(ValueError, match=r"'mf-dec-999'.*mf-dec-522 or mf-dec-211"):
        Detector("test_resnet", "mf-dec-999", ["cat"])
    with pytest.raises(ValueError, match=r"test_vit .*1/8 and 1/16"):
        Detector("test_vit", "mf-dec-211", ["cat"])

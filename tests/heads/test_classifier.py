"""Classification heads have the sizes of the paper and can freeze their encoder."""

from __future__ import annotations

import pytest
import torch
from speed.machine import flops

from finola.errors import InputError
from finola.heads import Classifier, build_head
from finola.heads.detector import Detector
from finola.heads.mask_rcnn import Segmenter


def count(encoder: str, head: str) -> tuple[float, float]:
    """Millions of parameters, and G multiply–adds of one 224×224 image, of encoder and head with 1000 classes."""
    with torch.device("meta"):
        model = Classifier(encoder, head, classes=1000).eval()
        images = torch.empty(1, 3, 224, 224)
        work = flops(lambda: model(images)) / 2
    return sum(p.numel() for p in model.parameters()) / 1e6, work / 1e9


@pytest.mark.parametrize(
    ("encoder", "parameters", "multiply_adds"),
    [("mf-w720", 7.14, 0.710), ("mf-w1440", 20.02, 2.600), ("mf-w2880", 56.81, 9.894)],
)
def test_tran_4_has_the_paper_s_size(encoder, parameters, multiply_adds):
    found = count(encoder, "tran-4")
    assert found[0] == pytest.approx(parameters, rel=2e-3)
    assert found[1] == pytest.approx(multiply_adds, rel=1e-2)


@pytest.mark.parametrize(("encoder", "parameters"), [("mf-w720", 5.75), ("mf-w1440", 13.43), ("mf-w2880", 28.36)])
def test_the_linear_probe_has_the_paper_s_size(encoder, parameters):
    assert count(encoder, "lin")[0] == pytest.approx(parameters, rel=2e-3)


@pytest.mark.parametrize("head", ["lin", "tran-1"])
def test_a_frozen_encoder_does_not_change(head):
    torch.manual_seed(0)
    model = Classifier("test_resnet", head, 3, 64).train()
    before = {key: value.clone() for key, value in model.encoder.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    torch.nn.functional.cross_entropy(model(torch.rand(4, 3, 64, 64)), torch.tensor([0, 1, 2, 0])).backward()
    optimiser.step()
    assert not model.encoder.training and model.head.training
    assert all(torch.equal(value, before[key]) for key, value in model.encoder.state_dict().items())


def test_a_fine_tuned_encoder_gets_gradients():
    model = Classifier("test_resnet", "tran-1", 3, 64, frozen=False).train()
    model(torch.rand(2, 3, 64, 64)).sum().backward()
    assert model.encoder.training
    assert any(p.grad is not None and p.grad.any() for p in model.encoder.parameters())


def test_the_batch_norm_of_the_linear_probe_has_no_affine_part():
    head = build_head("lin", 8, 3)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]


def test_an_unknown_head_raises():
    with pytest.raises(ValueError, match="'tran-2'"):
        build_head("tran-2", 8, 3)


@pytest.mark.parametrize(
    "run",
    [
        Classifier("test_resnet", "lin", 2, 64),
        Classifier("test_resnet", "lin", 2, 64).eval().rank,
        Detector("test_resnet", classes=["a"], size=(64, 64)),
        Detector("test_resnet", classes=["a"], size=(64, 64)).detect,
        Segmenter("test_resnet", classes=["a"], size=(64, 64)).eval().detect,
        lambda images: Segmenter("test_resnet", classes=["a"]).losses(images, None, []),
    ],
)
def test_images_in_0_255_raise_for_every_head(run):
    for wrong in (torch.full((1, 3, 64, 64), 200.0), torch.full((1, 3, 64, 64), 200, dtype=torch.uint8)):
        with pytest.raises(InputError, match="255"):
            run(wrong[0] if getattr(run, "__name__", "") == "rank" else wrong)

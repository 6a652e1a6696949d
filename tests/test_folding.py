"""Folding batch norms and compiling do not change the output of a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import finola
from finola.autoencoder import Autoencoder


def trained_looking(name: str) -> Autoencoder:
    """Model whose batch norms have random statistics and weights."""
    torch.manual_seed(0)
    model = finola.create(name)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.2, 0.2)
    return model.eval()


@pytest.mark.parametrize("name", ["mf-w720/32x2@8:64", "mf-w720/32x1@16:32", "waves+conv/32x1@8:32"])
def test_folding_does_not_change_the_reconstruction(name: str) -> None:
    model = trained_looking(name)
    images = torch.rand(2, 3, *model.config.image_size)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    folded = model.for_inference()
    with torch.inference_mode():
        expected, got = model(images), folded(images)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_compiled_model_uses_the_fast_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    import finola.propagation

    walked = []
    grow = finola.propagation.grow_without_gradients
    monkeypatch.setattr(finola.propagation, "grow_without_gradients", lambda *args: walked.append(args) or grow(*args))
    model = trained_looking("test_resnet/16x1@4:32")
    images = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        expected = model(images)
        model.compile(backend="eager")
        torch.testing.assert_close(model(images), expected)
    assert len(walked) == 2

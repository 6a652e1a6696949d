from __future__ import annotations

import pytest
import torch
from torch import nn

import finola
from finola.autoencoder import Autoencoder
from finola.layers import AttentionPool


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


def test_pooling_is_permutation_invariant():
    """Attention pooling has no position embedding."""
    pool = AttentionPool(12, 8, paths=3)
    feature_map = torch.randn(2, 12, 4, 5)
    shuffled = feature_map.flatten(2)[:, :, torch.randperm(20)].reshape(2, 12, 4, 5)
    assert torch.allclose(pool(feature_map), pool(shuffled), atol=1e-6)


def test_the_result_for_a_constant_map_does_not_depend_on_its_size():
    pool = AttentionPool(12, 8)
    column = torch.randn(1, 12, 1, 1)
    assert torch.allclose(pool(column.expand(1, 12, 3, 7)), pool(column), atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 6, 64, 100])
def test_any_channel_count(channels):
    assert AttentionPool(12, channels, paths=2)(torch.randn(3, 12, 2, 2)).shape == (3, 2, channels)

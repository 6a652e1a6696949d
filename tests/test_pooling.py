from __future__ import annotations

import pytest
import torch

from finola.pooling import AttentionPool


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

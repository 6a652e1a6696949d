"""Network on pixels: identity before training, and its receptive field."""

from __future__ import annotations

import torch

from finola.pixel_net import PixelNet


def test_images_are_unchanged_before_training() -> None:
    images = torch.rand(2, 3, 32, 48)
    assert torch.equal(PixelNet(8, 2, (16, 16))(images), images)


def test_a_pixel_affects_only_its_reach() -> None:
    net = PixelNet(8, 1)
    torch.nn.init.normal_(net.last.weight)
    images = torch.rand(1, 3, 8, 96, requires_grad=True)
    net(images)[0, :, :, 48].sum().backward()
    assert images.grad is not None
    touched = images.grad[0].abs().sum((0, 1)).nonzero()[:, 0]
    assert 48 - net.reach <= int(touched.min()) < 48 < int(touched.max()) <= 51 + net.reach


def test_the_position_within_a_tile_is_embedded() -> None:
    net = PixelNet(8, 1, (8, 8))
    torch.nn.init.normal_(net.last.weight)
    torch.nn.init.normal_(net.position)
    out = net(torch.full((1, 3, 48, 48), 0.5))
    inner = out[..., 16:32, 16:32]
    assert torch.allclose(inner[..., :8, :8], inner[..., 8:, 8:], atol=1e-5)  # the same in every tile
    assert not torch.allclose(inner[..., :4, :4], inner[..., 4:8, 4:8], atol=1e-3)  # but not within one

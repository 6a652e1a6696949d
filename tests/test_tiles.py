from __future__ import annotations

import torch

from finola.tiles import cut, join, pad_to_multiple


def test_join_undoes_cut():
    images = torch.rand(2, 3, 12, 20)
    tiles, grid = cut(images, (4, 10))
    assert tiles.shape == (2 * 3 * 2, 3, 4, 10) and grid == (3, 2)
    assert torch.equal(join(tiles, grid), images)
    assert torch.equal(tiles[1], images[0, :, :4, 10:])


def test_padding_replicates_the_edge_and_keeps_the_photo():
    images = torch.rand(1, 3, 5, 7)
    padded = pad_to_multiple(images, (4, 4))
    assert padded.shape == (1, 3, 8, 8)
    assert torch.equal(padded[..., :5, :7], images)
    assert torch.equal(padded[..., 5:, :7], images[..., 4:, :].expand(1, 3, 3, 7))
    assert torch.equal(pad_to_multiple(images, (5, 7)), images)

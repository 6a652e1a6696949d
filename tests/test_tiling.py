from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from finola.tiling import blocks, cut, join, pad_to_multiple


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


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_blocks_cover_every_tile_once_and_are_bounded(rows: int, columns: int, most: int) -> None:
    seen = torch.zeros(rows, columns)
    for block in blocks((rows, columns), most):
        assert len(block.rows) * len(block.columns) <= most
        seen[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] += 1
        assert block.near_rows == range(max(0, block.rows.start - 1), min(rows, block.rows.stop + 1))
    assert bool((seen == 1).all())

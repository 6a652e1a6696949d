from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from finola.tiling import blocks, cut, decode_blocks, grid_of, join, pad_to_multiple, tile_batches


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


@pytest.mark.parametrize("size", [(30, 500), (500, 30), (130, 900), (64, 64), (1, 1), (70, 2100)])
def test_decoding_in_blocks_equals_decoding_the_joined_map(size: tuple[int, int]) -> None:
    """Blocks in both directions, against the whole map decoded at once by the same convolutions."""
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Conv2d(5, 4, 3, padding=1), nn.Conv2d(4, 3 * 16, 3, padding=1), nn.PixelShuffle(4))
    rows, columns = grid = grid_of(size, (32, 32))
    maps = torch.randn(rows * columns, 5, 8, 8)

    def grow(wanted_rows: range, wanted_columns: range) -> Tensor:
        return maps.unflatten(0, grid)[wanted_rows.start : wanted_rows.stop][
            :, wanted_columns.start : wanted_columns.stop
        ].flatten(0, 1)

    whole = decoder(join(maps, grid))[0]
    covered = torch.zeros(whole.shape[1:])
    for y, x, pixels in decode_blocks(grow, decoder, grid, (32, 32), (8, 8), most=6):
        part = slice(y, y + pixels.shape[1]), slice(x, x + pixels.shape[2])
        covered[part] += 1
        torch.testing.assert_close(pixels, whole[:, *part], rtol=1e-4, atol=1e-5)
    assert bool((covered == 1).all())


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_blocks_cover_every_tile_once_and_are_bounded(rows: int, columns: int, most: int) -> None:
    seen = torch.zeros(rows, columns)
    for block in blocks((rows, columns), most):
        assert len(block.rows) * len(block.columns) <= most
        seen[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] += 1
        assert block.near_rows == range(max(0, block.rows.start - 1), min(rows, block.rows.stop + 1))
    assert bool((seen == 1).all())


def test_tile_batches_are_the_tiles_of_the_padded_image() -> None:
    image = torch.rand(3, 70, 300)

    def read(top: int, bottom: int, left: int, right: int) -> Tensor:
        return image[:, top:bottom, left:right]

    batches = list(tile_batches(read, (70, 300), (32, 32), most=3))
    assert max(map(len, batches)) <= 3
    assert torch.equal(torch.cat(batches), cut(pad_to_multiple(image[None], (32, 32)), (32, 32))[0])

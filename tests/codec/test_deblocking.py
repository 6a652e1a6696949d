"""Deblocking: small steps at tile borders are smoothed, edges of the photo and all other pixels are unchanged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finola.codec.codec import compress, decode, find_codec
from finola.codec.container import read_container
from finola.codec.deblocking import REACH, smooth_borders
from finola.image_io import read_photo

TILE = (32, 32)


def halves(left: int, right: int) -> torch.Tensor:
    image = torch.full((3, 40, 64), left, dtype=torch.uint8)
    image[:, :, 32:] = right
    return image


def largest_step(image: torch.Tensor) -> int:
    return int(image.int().diff(dim=2).abs().max())


def test_small_steps_are_smoothed_and_edges_are_unchanged() -> None:
    assert largest_step(smooth_borders(halves(100, 106), TILE)) <= 1
    assert torch.equal(smooth_borders(halves(20, 240), TILE), halves(20, 240))
    both = halves(100, 106)
    both[:, :10, 32:] = 240  # an edge along a quarter of the border, and small steps along the rest
    smoothed = smooth_borders(both.clone(), TILE)
    assert torch.equal(smoothed[:, :10], both[:, :10]) and largest_step(smoothed[:, 10:]) <= 2


def test_texture_is_not_smoothed() -> None:
    noise = torch.randint(90, 110, (3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert (smooth_borders(noise.clone(), TILE).int() - noise.int()).abs().float().mean() < 0.3


@pytest.mark.parametrize("slope", [-1, 0, 1, 2])
def test_ramps_are_unchanged(slope: int) -> None:
    ramp = (110 + slope * torch.arange(64)).to(torch.uint8).expand(3, 64, 64).clone()
    assert torch.equal(smooth_borders(ramp.clone(), TILE), ramp)


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_only_pixels_near_a_border_change_for_any_size(height: int, width: int, seed: int) -> None:
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    smoothed = smooth_borders(image.clone(), TILE)
    y, x = torch.arange(height) % 32, torch.arange(width) % 32
    far = ((y >= REACH) & (y < 32 - REACH))[:, None] & ((x >= REACH) & (x < 32 - REACH))
    assert torch.equal(smoothed[:, far], image[:, far])
    if height <= 32 and width <= 32:
        assert torch.equal(smoothed, image)


def test_border_of_a_narrow_last_tile_is_smoothed() -> None:
    narrow = halves(100, 104)[:, :, :35]
    assert largest_step(smooth_borders(narrow.clone(), TILE)) <= 2
    assert torch.equal(smooth_borders(narrow[:, :, :33].clone(), TILE), narrow[:, :, :33])


def test_steps_at_borders_of_a_decoded_photo_decrease() -> None:
    photo = read_photo("skimage:astronaut")
    container = read_container(compress(photo, bpp=0.12, model="waves512").data)
    side = find_codec(container, None).model.config.image_size[0]
    plain, smoothed = decode(container, deblock=False), decode(container)

    def step(image: torch.Tensor) -> float:
        steps = image.float().diff(dim=2).abs().mean((0, 1))
        return float(steps[side - 1 :: side].mean() / steps.mean())

    assert step(plain) > 1.4
    assert step(smoothed) < 1 + 0.6 * (step(plain) - 1)

"""Masked FINOLA: each masked position is predicted once, and masked pixels are never encoded."""

from __future__ import annotations

import itertools

import pytest
import torch
from dispatch import Dispatched

from finola.errors import InputError
from finola.masked import (
    MaskedFinola,
    Prediction,
    grow_from_block,
    grow_from_centres,
    half,
    masked_loss,
    positions,
    random_places,
    visible,
)
from finola.propagation import Coefficients, propagate

SIZES = [(4, 4), (8, 8), (16, 16), (4, 8), (12, 6)]


def every_place(size: tuple[int, int]) -> list[tuple[int, int]]:
    return list(itertools.product(range(size[0] // 2 + 1), range(size[1] // 2 + 1)))


class Trace:
    """Transition that counts steps: channel 0 is x, channel 1 is y of the position."""

    def __call__(self, z: torch.Tensor, direction: str) -> torch.Tensor:
        dx, dy = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}[direction]
        return z + torch.tensor([dx, dy], dtype=z.dtype)


@pytest.mark.parametrize("size", SIZES)
def test_predictions_tile_the_masked_area_exactly_once(size):
    """Tokens that contain their coordinates are propagated to exactly the positions where they are stored."""
    places = torch.tensor(every_place(size))
    y, x = positions(places, size)
    tokens = torch.stack([x, y], -1).float()
    z = grow_from_block(tokens, Trace(), size, places, half(size))
    rows, columns = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    assert torch.equal(z, torch.stack([columns, rows]).float().expand_as(z))
    count = torch.zeros(len(places), *size)
    tall, wide = half(size)
    for dy, dx in ((0, 0), (0, wide), (tall, 0), (tall, wide)):
        for number in range(len(places)):
            count[number, (y[number] + dy) % size[0], (x[number] + dx) % size[1]] += 1
    assert (count == 1).all()


def test_visible_is_a_quadrant_for_every_place():
    for size in SIZES:
        places = torch.tensor(every_place(size))
        seen = visible(places, size)
        assert (seen.flatten(1).sum(1) == size[0] * size[1] // 4).all()
        y, x = positions(places, size)
        assert all(bool(seen[n, y[n], x[n]].all()) for n in range(len(places)))


def test_block_wise_steps_are_the_recurrence():
    """From the top-left corner, half a map to the right, down, and both, as in step-by-step propagation."""
    torch.manual_seed(0)
    coefficients = Coefficients(*(0.3 * torch.randn(4, 6, 6, dtype=torch.float64)))
    tokens = torch.randn(1, 4, 6, dtype=torch.float64)
    z = grow_from_block(tokens, coefficients, (4, 4), torch.tensor([[0, 0]]), (2, 2))
    for number, (y, x) in enumerate(itertools.product(range(2), range(2))):
        own = propagate(tokens[:, number : number + 1], coefficients, (3, 3), start=(0, 0))
        for dy, dx in ((0, 0), (0, 2), (2, 0), (2, 2)):
            assert torch.allclose(z[0, :, y + dy, x + dx], own[0, :, dy, dx], atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_element_wise_maps_are_propagated_from_the_block_centres(size):
    torch.manual_seed(0)
    matrices = (0.3 * torch.randn(4, 6, 6, dtype=torch.float64)).requires_grad_()
    places = torch.tensor(every_place(size))
    q = torch.randn(len(places), 1, 6, dtype=torch.float64, requires_grad=True)
    z = grow_from_centres(q, Coefficients(*matrices), size, places)
    tall, wide = half(size)
    alone = [
        propagate(q[number : number + 1], Coefficients(*matrices), size, start=(y + tall // 2, x + wide // 2))
        for number, (y, x) in enumerate(places.tolist())
    ]
    torch.testing.assert_close(z, torch.cat(alone))
    weights = torch.randn_like(z)
    ours, expected = (torch.autograd.grad((map * weights).sum(), (q, matrices)) for map in (z, torch.cat(alone)))
    torch.testing.assert_close(ours, expected)


def steps_of(variant: str, places: torch.Tensor) -> int:
    """Operations of one training step, none of which waits for the device."""
    torch.manual_seed(0)
    model = MaskedFinola("test_resnet/16x1@8:128+patch", variant)
    images = torch.rand(len(places), 3, 128, 128)
    with Dispatched() as dispatched:
        masked_loss(model(images, places), images).backward()
    assert not dispatched.waits
    return len(dispatched.names)


def test_all_images_are_propagated_together_wherever_their_blocks_are():
    middle = torch.full((25, 2), 2)
    assert steps_of("e", torch.tensor(every_place((8, 8)))) == steps_of("e", middle)
    assert steps_of("b", torch.tensor(every_place((8, 8)))) == steps_of("b", middle)


@pytest.mark.parametrize("variant", ["e", "b"])
def test_nothing_depends_on_values_of_the_device(variant):
    """Values on the meta device cannot be read; the places are on the CPU."""
    model = MaskedFinola("test_resnet/16x1@8:128+patch", variant).to("meta")
    images = torch.rand(3, 3, 128, 128, device="meta")
    loss = masked_loss(model(images, torch.tensor([[1, 2], [3, 0], [2, 4]])), images)
    loss.backward()
    assert loss.is_meta and all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(("name", "variant"), [("mf-w720/32x1@4:64+patch", "e"), ("mf-w720/32x1@4:64+tran1", "b")])
def test_no_masked_pixel_reaches_the_encoder(name, variant):
    torch.manual_seed(0)
    model = MaskedFinola(name, variant).eval()
    images = torch.rand(3, 3, 64, 64, requires_grad=True)
    places = torch.tensor([[0, 0], [1, 2], [2, 1]])
    drawn, masked = model(images, places)
    other = torch.where(masked, torch.rand_like(images), images)
    assert torch.equal(model(other, places).images, drawn)
    drawn.square().sum().backward()
    assert images.grad is not None
    assert not images.grad[masked.expand_as(images)].any()
    assert images.grad[~masked.expand_as(images)].any()


def test_the_loss_covers_only_masked_pixels():
    images = torch.rand(2, 3, 8, 8)
    masked = torch.rand(2, 1, 8, 8) > 0.5
    drawn = images + masked * 0.5 + ~masked * 7
    assert masked_loss(Prediction(drawn, masked), images).item() == pytest.approx(0.25, rel=1e-5)


def test_one_jump_takes_one_step():
    torch.manual_seed(0)
    model = MaskedFinola("mf-w720/32x1@4:64+patch", "b", one_jump=True).eval()
    coefficients = model.transition.coefficients()
    tokens = torch.randn(1, 4, 32)
    z = grow_from_block(tokens, coefficients, (4, 4), torch.tensor([[0, 0]]), (1, 1))
    assert torch.allclose(z[0, :, 0, 2], coefficients(tokens[0, 0], "right"), atol=1e-6)


def test_places_cover_the_map_and_are_reproducible():
    one, other = (random_places(4000, (16, 16), torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(one, other)
    assert len(one.unique(dim=0)) == 81


def test_unsupported_configurations_raise_with_their_values():
    with pytest.raises(ValueError, match="'c'"):
        MaskedFinola("mf-w720/32x1@4:64+patch", "c")
    with pytest.raises(ValueError, match=r"1/16.*32"):
        MaskedFinola("mf-w720/32x1@3:48+patch", "b")
    with pytest.raises(ValueError, match="waves/64x1@8:64"):
        MaskedFinola("waves/64x1@8:64", "e")
    with pytest.raises(ValueError, match="batchnorm"):
        MaskedFinola("mf-w720/32x1@4:64+batchnorm+patch", "e")
    with pytest.raises(ValueError, match="64×64"):
        MaskedFinola("mf-w720/32x1@4:64+patch")(torch.rand(1, 3, 96, 96), torch.tensor([[0, 0]]))


def test_a_custom_transition_is_used_and_cannot_be_saved(tmp_path):
    class Turned(torch.nn.Module):
        def forward(self, z, direction):
            return z.roll(1, -1)

    model = MaskedFinola("test_resnet/16x1@4:64+patch", "b").eval()
    model.transition = Turned()
    z = model.grow(model.see(torch.rand(1, 3, 64, 64), torch.tensor([[0, 0]])), torch.tensor([[0, 0]]))
    assert torch.equal(z[:, :, 0, 2], z[:, :, 0, 0].roll(2, -1))
    with pytest.raises(InputError, match="Turned"):
        model.save_pretrained(tmp_path / "model")


def test_images_in_0_255_raise_even_if_the_block_is_dark():
    model = MaskedFinola("test_resnet/16x1@4:64+patch", "e").eval()
    images = torch.full((1, 3, 64, 64), 255.0)
    images[..., :32, :32] = 0
    for wrong in (images, images.byte()):
        with pytest.raises(InputError, match="255"):
            model(wrong, torch.tensor([[0, 0]]))

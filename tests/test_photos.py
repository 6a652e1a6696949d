"""Elastic models: orthonormal coordinates, lengths by need, blocks, refinement, saving."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import finola
from finola import elastic
from finola.autoencoder import Autoencoder
from finola.errors import InputError
from finola.metrics import psnr

NAME = "waves+nets/64x1@4:16+elastic2"


@pytest.fixture(scope="module")
def model() -> Autoencoder:
    torch.manual_seed(0)
    model = finola.create(NAME).eval()
    rotation = torch.linalg.qr(torch.randn(model.encoder.codebook.bases.shape[1:]))[0]
    model.encoder.codebook.bases[1] = rotation  # the second basis is an arbitrary one
    with torch.no_grad():  # networks that change something
        for net in (model.encoder.prefilter, model.decoder.refinement):
            net.last.weight.normal_(std=0.01)
    return model


def photo(height: int, width: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    waves = torch.stack([torch.sin(x / 5), torch.cos((x + 2 * y) / 9), torch.sin(y / 3) * (x > width / 2)])
    return (0.5 + 0.3 * waves).float()


def test_the_recurrence_computes_what_the_matrix_product_does(model: Autoencoder) -> None:
    tiles = torch.rand(3, 3, 16, 16)
    codebook = model.encoder.codebook
    z = model.propagate(model.encode(tiles))
    p = codebook.coordinates(model.encoder.prefilter(tiles))
    expected = model.decoder.refinement(codebook.tiles(p, (16, 16)))
    torch.testing.assert_close(model.decode(z), expected, atol=1e-4, rtol=0)


def test_coordinates_are_orthonormal_and_tiles_invert_them(model: Autoencoder) -> None:
    codebook = model.encoder.codebook
    identity = torch.eye(codebook.images.shape[1])
    torch.testing.assert_close(codebook.images.T @ codebook.images, identity, atol=1e-4, rtol=0)
    p = torch.randn(4, len(identity))
    torch.testing.assert_close(codebook.coordinates(codebook.tiles(p, (16, 16))), p, atol=1e-4, rtol=0)


def test_longer_latents_contain_the_shorter_ones_and_reduce_the_error(model: Autoencoder) -> None:
    codebook = model.encoder.codebook
    p = codebook.coordinates(torch.rand(5, 3, 16, 16))
    index = torch.tensor([0, 1, 0, 1, 0])
    before, error = torch.zeros_like(p), torch.full((5,), torch.inf)
    for length in codebook.lengths.tolist():
        latents = codebook.encode(p, index, torch.full((5,), length))
        kept = before != 0
        torch.testing.assert_close(latents.values[kept], before[kept])
        assert bool((latents.values[:, length:] == 0).all())
        now = (codebook.decode(latents.values, index) - p).square().sum(1)
        assert bool((now <= error + 1e-5).all())
        before, error = latents.values, now
    torch.testing.assert_close(error, torch.zeros(5), atol=1e-6, rtol=0)


def test_errors_are_those_of_the_decoded_coordinates(model: Autoencoder) -> None:
    codebook = model.encoder.codebook
    p = codebook.coordinates(torch.rand(2, 3, 16, 16))
    errors = codebook.errors(codebook.rotated(p))
    for g in range(2):
        for number, length in enumerate(codebook.lengths.tolist()):
            index = torch.full((2,), g)
            latents = codebook.encode(p, index, torch.full((2,), length))
            actual = (codebook.decode(latents.values, index) - p).square().sum(1)
            torch.testing.assert_close(errors[:, g, number], actual, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("latents", [4096, 8192])
def test_the_budget_covers_values_and_side_information(model: Autoencoder, latents: int) -> None:
    found = elastic.encode(model, photo(96, 128), latents=latents)
    side = len(found.bases) * model.encoder.codebook.side_bits / 32
    assert float(found.length.sum()) + side <= latents * 96 * 128 / 256**2
    assert len(found.length.unique()) > 1  # shared out by need


def test_lengths_by_need_are_better_than_the_same_length_everywhere(model: Autoencoder) -> None:
    image = photo(64, 128)
    image[:, :, :64] = 0.5  # flat: needs almost nothing
    with torch.no_grad():
        fixed = model(image[None], per_tile=8)
        tiles = 4 * 8
        side = tiles * model.encoder.codebook.side_bits / 32
        shared = model(image[None], latents=int((8 * tiles + side + 1) * 256**2 / (64 * 128)))
    assert float(psnr(shared, image[None])) > float(psnr(fixed, image[None]))


def test_a_photo_of_any_size_keeps_it_and_blocks_change_nothing(
    model: Autoencoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = photo(131, 150)
    with torch.no_grad():
        whole = model(image[None])
        monkeypatch.setattr(elastic, "BLOCK", 16)
        in_blocks = model(image[None])
    assert whole.shape == (1, 3, 131, 150)
    torch.testing.assert_close(in_blocks, whole, atol=1e-5, rtol=0)


@torch.no_grad()
def test_effort_reduces_the_error_and_keeps_the_lengths(model: Autoencoder) -> None:
    image = photo(64, 64)
    amortised = elastic.encode(model, image)
    refined = elastic.encode(model, image, effort=3)
    assert torch.equal(amortised.length, refined.length) and torch.equal(amortised.bases, refined.bases)
    errors = [
        float((elastic.decode(model, found, (64, 64)).clamp(0, 1) - image).square().sum())
        for found in (amortised, refined)
    ]
    assert errors[1] < errors[0]


def test_saved_models_hold_no_matrices_and_load_to_the_same_output(model: Autoencoder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    loaded = finola.load(tmp_path / "model")
    assert not any(key.startswith(("transition.", "decoder.read_out.")) for key in model.state_dict())
    image = photo(40, 50)[None]
    with torch.no_grad():
        assert torch.equal(loaded(image), model(image))
    assert torch.equal(loaded.transition.A, model.transition.A)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"latents": 4096, "per_tile": 8}, "4096"),
        ({"per_tile": 7}, "7"),
        ({"latents": 1}, "at least 293"),
        ({"effort": 10}, "10"),
    ],
)
def test_invalid_options_raise(model: Autoencoder, options: dict[str, int], value: str) -> None:
    with pytest.raises(InputError, match=value):
        model(photo(64, 64)[None], **options)


def test_models_of_fixed_length_reject_elastic_options() -> None:
    fixed = finola.create("waves/64x1@4:16").eval()
    with pytest.raises(InputError, match="elastic"):
        fixed(torch.rand(1, 3, 16, 16), latents=4096)


@pytest.mark.parametrize(
    "name", ["waves/64x1@4:16+elastic2", "waves+nets/64x4@4:16+elastic2", "mf-w720/64x1@4+elastic2"]
)
def test_elastic_needs_exact_waves_and_one_path(name: str) -> None:
    with pytest.raises(InputError, match="elastic2"):
        finola.create(name)

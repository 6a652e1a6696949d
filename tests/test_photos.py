"""Photos of any size as latents: lengths by need, blocks, refinement, gradients, codebooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import finola
from finola.autoencoder import Autoencoder
from finola.errors import InputError
from finola.latents import CodebookSpace, Space
from finola.metrics import psnr
from finola.photos import Pixels, analyse, decode, encode, error_and_gradient, refine

NAME = "waves+nets/64x1@4:16+elastic2"
FIXED = ("waves+conv/32x1@4:16", "residual-w8/16x2@4:16+scatter+patch", "waves+nets/64x1@4:16")


def with_effect(model: Autoencoder) -> Autoencoder:
    """Give the zero-initialised last layers an effect."""
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.01)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> Autoencoder:
    torch.manual_seed(0)
    model = with_effect(finola.create(NAME))
    rotation = torch.linalg.qr(torch.randn(model.encoder.codebook.bases.shape[1:]))[0]
    model.encoder.codebook.bases[1] = rotation  # the second basis is an arbitrary one
    return model


@pytest.fixture(scope="module", params=[NAME, *FIXED])
def any_model(request: pytest.FixtureRequest, model: Autoencoder) -> Autoencoder:
    torch.manual_seed(0)
    return model if request.param == NAME else with_effect(finola.create(request.param))


def photo(height: int, width: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    waves = torch.stack([torch.sin(x / 5), torch.cos((x + 2 * y) / 9), torch.sin(y / 3) * (x > width / 2)])
    return (0.5 + 0.3 * waves).float()


def test_the_model_is_the_composition_of_its_parts(any_model: Autoencoder) -> None:
    images = torch.rand(2, 3, *any_model.config.image_size)
    expected = any_model.decode(any_model.propagate(any_model.encode(images)))
    assert torch.equal(any_model(images), expected)
    assert not torch.equal(any_model(images + 0.1 * torch.rand_like(images)), expected)


def test_the_model_passes_the_gradient_check() -> None:
    torch.manual_seed(0)
    for name in ("waves+nets/8x1@2:4+elastic2", "waves/8x1@2:4"):
        small = with_effect(finola.create(name)).double()
        images = torch.rand(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
        torch.autograd.gradcheck(small, images, fast_mode=True, nondet_tol=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (4, 4), (5, 6), (16, 16), (33, 50)])
def test_photos_keep_any_size(any_model: Autoencoder, size: tuple[int, int]) -> None:
    image = torch.rand(3, *size)
    latents = encode(any_model, image)
    assert decode(any_model, latents).shape == image.shape and latents.size == size
    assert any_model(image[None]).shape == (1, *image.shape)
    assert bool((latents.length >= 1).all()) and not latents.values[~latents.used].any()


def test_fixed_latents_are_q_and_decode_to_the_output_of_the_model() -> None:
    for name in FIXED:
        torch.manual_seed(0)
        fixed = with_effect(finola.create(name))
        images = torch.rand(2, 3, *fixed.config.image_size)
        latents = encode(fixed, images)
        with torch.no_grad():
            torch.testing.assert_close(latents.values.flatten(1), fixed.encode(images).flatten(1))
            torch.testing.assert_close(decode(fixed, latents), fixed(images), atol=1e-5, rtol=0)


def test_full_length_latents_of_one_tile_decode_to_the_output_of_the_model(model: Autoencoder) -> None:
    """The matrix product of photos and the recurrence of the model give the same pixels."""
    images = torch.rand(3, 3, 16, 16)
    latents = encode(model, images, per_tile=int(model.encoder.codebook.lengths[-1]))
    with torch.no_grad():
        torch.testing.assert_close(decode(model, latents), model(images), atol=1e-4, rtol=0)


def test_photos_of_equal_size_together_equal_each_alone(any_model: Autoencoder) -> None:
    images = torch.stack([photo(40, 70), torch.rand(3, 40, 70)])
    together = encode(any_model, images)
    for index, image in enumerate(images):
        alone = encode(any_model, image)
        assert torch.equal(together[index].length, alone.length) and torch.equal(together[index].basis, alone.basis)
        torch.testing.assert_close(together[index].values, alone.values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(decode(any_model, together)[index], decode(any_model, alone), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [(16, 16 * 60), (16 * 11, 16 * 13 - 5)])
def test_blocks_change_nothing(any_model: Autoencoder, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    image = photo(*size)
    latents = encode(any_model, image)
    whole = decode(any_model, latents)
    for kind in (Space, CodebookSpace):
        monkeypatch.setattr(kind, "most", 12)
    in_blocks = encode(any_model, image)
    assert torch.equal(in_blocks.length, latents.length)
    torch.testing.assert_close(in_blocks.values, latents.values, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(decode(any_model, latents), whole, atol=1e-4, rtol=1e-4)


def test_the_gradient_of_the_error_is_that_of_autograd(any_model: Autoencoder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    space, image = any_model.space, photo(70, 80)
    latents = encode(any_model, image)
    p = (space.to_p(latents.values, latents.basis)).requires_grad_()
    drawn = space.render(p, (-(-70 // space.tile[0]), -(-80 // space.tile[1])))[0, :, :70, :80]
    expected = (drawn.clamp(0, 1) - image).square().sum() / 2
    (gradient,) = torch.autograd.grad(expected, p)
    for kind in (Space, CodebookSpace):
        monkeypatch.setattr(kind, "most", 6)  # blocks with context
    error, found = error_and_gradient(space, Pixels(image), space.render, p.detach())
    assert error == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(found, gradient, atol=1e-3, rtol=1e-3)


def test_refined_latents_are_at_least_as_good_with_the_same_lengths(any_model: Autoencoder) -> None:
    image = photo(40, 64)
    latents = encode(any_model, image)
    refined = refine(any_model, image, latents, effort=2)
    assert torch.equal(latents.length, refined.length) and torch.equal(latents.basis, refined.basis)
    assert not refined.values[~refined.used].any()
    before, after = (float(psnr(decode(any_model, one)[None], image[None])) for one in (latents, refined))
    assert after >= before
    assert torch.equal(encode(any_model, image, effort=2).values, refined.values)


def test_more_effort_is_not_worse(model: Autoencoder) -> None:
    image = photo(64, 64)
    found = [float(psnr(decode(model, encode(model, image, effort=effort))[None], image[None])) for effort in (0, 2, 5)]
    assert found[0] < found[1] <= found[2]


def test_the_filter_changes_the_values_but_not_the_lengths(model: Autoencoder) -> None:
    image = photo(48, 64)
    own, filtered = analyse(model.space, Pixels(image[None]))
    assert not torch.equal(own, filtered)
    (alone,) = analyse(CodebookSpace(model, filtered=False), Pixels(image[None]))
    torch.testing.assert_close(alone, own)
    basis, length = model.encoder.codebook.choose(own[0], budget=4096 * 48 * 64 / 256**2)
    latents = encode(model, image)
    assert torch.equal(latents.length, length) and torch.equal(latents.basis, basis)


def test_8_bit_sources_equal_floats(model: Autoencoder) -> None:
    image = (255 * photo(40, 50)).round().to(torch.uint8)
    for one, other in zip(
        analyse(model.space, Pixels(image)), analyse(model.space, Pixels(image.float() / 255)), strict=True
    ):
        assert torch.equal(one, other)


def test_the_recurrence_computes_what_the_matrix_product_does(model: Autoencoder) -> None:
    tiles = torch.rand(3, 3, 16, 16)
    codebook = model.encoder.codebook
    z = model.propagate(model.encode(tiles))
    p = codebook.coordinates(model.encoder.prefilter(tiles))
    expected = model.decoder.refinement(codebook.superpose(p, (16, 16)))
    torch.testing.assert_close(model.decode(z), expected, atol=1e-4, rtol=0)


def test_coordinates_are_orthonormal_and_tiles_invert_them(model: Autoencoder) -> None:
    codebook = model.encoder.codebook
    identity = torch.eye(codebook.images.shape[1])
    torch.testing.assert_close(codebook.images.T @ codebook.images, identity, atol=1e-4, rtol=0)
    p = torch.randn(4, len(identity))
    torch.testing.assert_close(codebook.coordinates(codebook.superpose(p, (16, 16))), p, atol=1e-4, rtol=0)


def test_longer_latents_contain_the_shorter_ones_and_reduce_the_error(model: Autoencoder) -> None:
    codebook = model.encoder.codebook
    p = codebook.coordinates(torch.rand(5, 3, 16, 16))
    index = torch.tensor([0, 1, 0, 1, 0])
    before, error = torch.zeros_like(p), torch.full((5,), torch.inf)
    for length in codebook.lengths.tolist():
        values = codebook.encode(p, index, torch.full((5,), length))
        kept = before != 0
        torch.testing.assert_close(values[kept], before[kept])
        assert bool((values[:, length:] == 0).all())
        now = (codebook.decode(values, index) - p).square().sum(1)
        assert bool((now <= error + 1e-5).all())
        before, error = values, now
    torch.testing.assert_close(error, torch.zeros(5), atol=1e-6, rtol=0)


def test_errors_are_those_of_the_decoded_coordinates(model: Autoencoder) -> None:
    codebook = model.encoder.codebook
    p = codebook.coordinates(torch.rand(2, 3, 16, 16))
    errors = codebook.errors(codebook.rotated(p))
    for g in range(2):
        for number, length in enumerate(codebook.lengths.tolist()):
            index = torch.full((2,), g)
            values = codebook.encode(p, index, torch.full((2,), length))
            actual = (codebook.decode(values, index) - p).square().sum(1)
            torch.testing.assert_close(errors[:, g, number], actual, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("budget", [800, 2048, 8192])
def test_the_budget_covers_values_and_side_information(model: Autoencoder, budget: int) -> None:
    latents = encode(model, photo(96, 128), budget=budget)
    used = latents.count(model.space.side_bits)
    assert 0.9 * budget < used.total * 256**2 / (96 * 128) <= budget and used.side > 0
    assert len(latents.length.unique()) > 1  # shared out by need


def test_every_tile_has_the_number_per_tile(model: Autoencoder) -> None:
    latents = encode(model, photo(70, 100), per_tile=8)
    assert set(latents.length.tolist()) == {8} and latents.count().values == 5 * 7 * 8


def test_lengths_by_need_are_better_than_the_same_length_everywhere(model: Autoencoder) -> None:
    image = photo(64, 128)
    image[:, :, :64] = 0.5  # flat: needs almost nothing
    fixed = encode(model, image, per_tile=8)
    used = fixed.count(model.space.side_bits).total
    shared = encode(model, image, budget=(used + 1) * 256**2 // (64 * 128))
    better, worse = (float(psnr(decode(model, one)[None], image[None])) for one in (shared, fixed))
    assert better > worse


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
        ({"budget": 4096, "per_tile": 8}, "4096"),
        ({"per_tile": 7}, "7"),
        ({"per_tile": 0}, "possible are"),
        ({"budget": 1}, "at least 293"),
        ({"effort": -1}, "0 to 9"),
        ({"effort": 10}, "10"),
    ],
)
def test_invalid_options_raise(model: Autoencoder, options: dict[str, int], value: str) -> None:
    with pytest.raises(InputError, match=value):
        encode(model, photo(64, 64), **options)


def test_models_of_fixed_length_reject_elastic_options() -> None:
    fixed = finola.create("waves/64x1@4:16").eval()
    with pytest.raises(InputError, match="elastic"):
        encode(fixed, torch.rand(3, 16, 16), budget=4096)


@pytest.mark.parametrize(
    "name", ["waves/64x1@4:16+elastic2", "waves+nets/64x4@4:16+elastic2", "mf-w720/64x1@4+elastic2"]
)
def test_elastic_needs_exact_waves_and_one_path(name: str) -> None:
    with pytest.raises(InputError, match="elastic2"):
        finola.create(name)

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import finola
from finola.evaluation.latent import (
    coordinates,
    decode,
    encode,
    fade,
    fit,
    interpolate,
    mirror,
    neighbours,
    on_sphere,
    project,
    sample,
)


@pytest.fixture(scope="module")
def images():
    """Smooth and mid-grey, so that every mean, mix and mirror of their pixels stays inside [0, 1]."""
    noise = torch.rand(50, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    return 0.3 + 0.4 * torch.nn.functional.interpolate(noise, size=32, mode="bicubic").clamp(0, 1)


@pytest.fixture(scope="module")
def statistics(model, images):
    return fit(model, images)


def test_decoding_an_encoded_image_reconstructs_it(model):
    for size in ((32, 32), (40, 70), (33, 16)):
        photo = torch.rand(2, 3, *size)
        assert torch.allclose(decode(model, *encode(model, photo)), model(photo).clamp(0, 1), atol=1e-5)


def test_a_fade_goes_from_q_through_the_mean_to_the_mirror(model, images, statistics):
    q = model.encode(images[:3])
    assert torch.equal(fade(q, statistics, 0.0), q)
    assert torch.allclose(fade(q, statistics, 1.0), statistics.mean.expand_as(q), atol=1e-5)
    assert torch.allclose(fade(q, statistics, 2.0), 2 * statistics.mean - q, atol=1e-5)
    assert torch.equal(mirror(q, statistics), fade(q, statistics, 2.0))
    assert torch.allclose(mirror(mirror(q, statistics), statistics), q, atol=1e-5)


def test_on_the_sphere_operations_on_q_equal_those_on_pixels(model, images, statistics):
    """A wave start draws linearly in the picture's coordinates: mirror and mix in q do the same to its pixels."""
    q = model.encode(images[:2])
    drawn, mean = decode(model, q), decode(model, statistics.mean[None])
    assert torch.allclose(decode(model, mirror(q, statistics)), 2 * mean - drawn, atol=1e-3)
    assert torch.allclose(
        decode(model, interpolate(q[:1], q[1:], 0.3)), interpolate(drawn[:1], drawn[1:], 0.3), atol=1e-3
    )
    assert torch.allclose(mean, decode(model, model.encode(images)).mean(0, keepdim=True), atol=1e-3)


def test_every_decoded_q_lies_on_the_sphere(model, images, statistics):
    """Means and interpolations lie inside it, extreme samples outside."""
    for q in (statistics.mean[None], sample(statistics, 4), 30 * sample(statistics, 4), torch.zeros(1, 1, 64)):
        assert torch.allclose(on_sphere(model, q).square().sum(-1), torch.tensor(64.0), rtol=1e-3)
    q = model.encode(images)
    assert torch.allclose(on_sphere(model, q), q, atol=1e-4)
    assert torch.allclose(on_sphere(model, on_sphere(model, 30 * q)), on_sphere(model, 30 * q), atol=1e-3)


def test_q_of_other_models_is_unchanged():
    model = finola.create("mf-w720/16x2@4:64").eval()
    q = 5 * torch.randn(3, 2, 16)
    assert on_sphere(model, q) is q


def test_each_path_is_mapped_to_the_sphere():
    model = finola.load("waves/64x2@8:32")
    q = model.encode(torch.rand(2, 3, 32, 32))
    assert torch.allclose(on_sphere(model, q), q, atol=1e-4)
    assert torch.allclose(on_sphere(model, 0.5 * q).square().sum(-1), torch.tensor(64.0), rtol=1e-3)


def test_projections_are_nested_and_end_at_q(model, images, statistics):
    q = model.encode(images[:4])
    assert torch.allclose(project(q, statistics, 0), statistics.mean.expand_as(q))
    few, many = project(q, statistics, 5), project(q, statistics, 20)
    assert torch.allclose(project(many, statistics, 5), few, atol=1e-4)
    assert torch.allclose(project(few, statistics, 20), few, atol=1e-4)
    everything = project(q, statistics, len(statistics.components))
    assert torch.allclose(decode(model, everything), decode(model, q), atol=1e-3)
    with pytest.raises(ValueError, match=r"k is \d+"):
        project(q, statistics, len(statistics.components) + 1)


def test_error_in_q_decreases_with_every_component(model, images, statistics):
    whole = project(encode(model, images).q, statistics, len(statistics.components))
    errors = [float((project(whole, statistics, k) - whole).norm()) for k in range(len(statistics.components) + 1)]
    assert all(after <= before + 1e-3 for before, after in pairwise(errors)) and errors[-1] < 1e-2


def test_samples_have_the_given_statistics(statistics):
    drawn = sample(statistics, 20_000, torch.Generator().manual_seed(0))
    found = coordinates(drawn, statistics)
    assert torch.allclose(found.var(0), statistics.variances, rtol=0.06)
    assert float(found.mean(0).abs().max()) < 0.05 * float(statistics.variances[0].sqrt())
    again = sample(statistics, 20_000, torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)


def test_an_image_is_its_own_nearest_neighbour_and_its_mirror_the_farthest(model, images, statistics):
    q = model.encode(images)
    others = [one[None] for one in torch.cat([q, mirror(q[7:8], statistics)])]
    found = neighbours(q[7:8], iter(others), statistics, count=51)
    assert found[0][0] == 7 and found[0][1] == pytest.approx(1, abs=1e-5)
    assert found[-1][0] == 50 and found[-1][1] == pytest.approx(-1, abs=1e-4)
    assert len(neighbours(q[7:8], iter(others), statistics, count=3, k=4)) == 3
    with pytest.raises(ValueError, match=r"1 tiles.* 2"):
        neighbours(q[:2], iter(others), statistics)

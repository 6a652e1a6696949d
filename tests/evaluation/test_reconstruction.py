"""Reconstruction with a number of latents and an effort: counts, options, and metrics of amortised and refined q."""

from __future__ import annotations

import pytest
import torch

import finola
from finola import elastic
from finola.data import CentreCrop, open_data
from finola.errors import InputError
from finola.evaluation.reconstruction import allocation, evaluate, reconstruct, summarise
from finola.image_io import read_photo
from finola.metrics import psnr

ELASTIC, FIXED = "waves+nets/64x1@4:16+elastic2", "waves/64x1@8:32"


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    return read_photo("skimage:astronaut")[:, 60:130, 150:250]  # not a multiple of the tiles


@pytest.fixture(scope="module")
def model() -> finola.Autoencoder:
    return finola.create(ELASTIC).eval()


@pytest.mark.parametrize("latents", [800, 2048, 4096])
def test_elastic_latents_are_within_the_number_given(model, photo, latents):
    (found,) = reconstruct(model, photo[None], latents=latents)
    assert 0.9 * latents < found.per_256()["latents_per_256"] <= latents
    assert found.used.side > 0 and found.refined is None


def test_every_tile_has_the_number_per_tile(model, photo):
    (found,) = reconstruct(model, photo[None], per_tile=8)
    assert found.used.values == 5 * 7 * 8
    latents = elastic.encode(model, photo, per_tile=8)
    assert set(latents.length.tolist()) == {8} and elastic.count(model, latents) == found.used


def test_elastic_latents_draw_better_than_the_same_number_per_tile(model, photo):
    (fixed,) = reconstruct(model, photo[None], per_tile=8)
    (shared,) = reconstruct(model, photo[None], latents=int(fixed.per_256()["latents_per_256"]))
    assert psnr(shared.best[None], photo[None]) > psnr(fixed.best[None], photo[None])


@pytest.mark.parametrize("name", [ELASTIC, FIXED, "test_resnet/16x1@8:32"])
def test_refined_q_is_at_least_as_good_and_reported_apart(name, photo):
    model = finola.create(name).eval()
    with torch.no_grad():
        expected = model(photo[None])[0]
    (found,) = reconstruct(model, photo[None], effort=2)
    assert torch.allclose(found.amortised, expected, atol=1e-5)
    errors = [psnr(image[None], photo[None]).item() for image in (found.amortised, found.refined)]
    assert errors[1] > errors[0] if name.startswith("test") else errors[1] >= errors[0]  # least squares is optimal
    assert torch.allclose(model(photo[None], effort=2)[0], found.refined, atol=1e-5)


def test_a_model_of_fixed_length_counts_all_channels(photo):
    (found,) = reconstruct(finola.load(FIXED), photo[None])
    assert found.used == (3 * 4 * 64, 0)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        (FIXED, {"latents": 4096}, "elastic model"),
        (FIXED, {"per_tile": 8}, "elastic model"),
        (FIXED, {"effort": 10}, "0 to 9"),
        (ELASTIC, {"effort": -1}, "0 to 9"),
        (ELASTIC, {"latents": 4096, "per_tile": 8}, "exclude"),
        (ELASTIC, {"latents": 20}, "at least"),
        (ELASTIC, {"per_tile": 7}, "possible are"),
        (ELASTIC, {"per_tile": 0}, "possible are"),
    ],
)
def test_invalid_options_raise(name, options, word, photo):
    with pytest.raises(InputError, match=word):
        reconstruct(finola.create(name), photo[None], **options)


def test_rows_have_metrics_of_both_and_the_numbers_used(model):
    data = open_data("smoke", "val", transform=CentreCrop(32))
    plain = evaluate(model, data, per_tile=8)
    rows = evaluate(model, data, per_tile=8, effort=1)
    assert [row["psnr"] for row in rows] == pytest.approx([row["psnr"] for row in plain], abs=1e-3)
    assert all(row["refined_psnr"] >= row["psnr"] for row in rows)
    means = summarise(rows)
    assert means["refined_psnr"] >= means["psnr"] and means["latents_per_256"] == 64 * (4 * 8 + 1)
    assert "refined_psnr" not in summarise(plain)


def test_allocation_names_what_is_meant(model):
    assert allocation(model)[0] == "elastic" and "4,096" in allocation(model)[1]
    assert allocation(model, 512)[0] == "elastic" and "512" in allocation(model, 512)[1]
    assert allocation(model, per_tile=8) == ("fixed", "fixed, 8 latents per tile of 16×16 pixels")

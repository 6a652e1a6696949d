"""Reconstruction with a number of latents and an effort: counts, options, and metrics of amortised and refined q."""

from __future__ import annotations

import pytest
import torch

import finola
from finola.data import CentreCrop, open_data
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


@pytest.mark.parametrize("name", [ELASTIC, FIXED, "test_resnet/16x1@8:32"])
def test_refined_q_is_at_least_as_good_and_reported_apart(name, photo):
    model = finola.create(name).eval()
    (found,) = reconstruct(model, photo[None], effort=2)
    latents = finola.encode(model, photo)
    assert torch.allclose(found.amortised, finola.decode(model, latents), atol=1e-5)
    assert found.used == latents.count(model.space.side_bits) and found.lengths.sum() == found.used.values
    errors = [psnr(image[None], photo[None]).item() for image in (found.amortised, found.refined)]
    assert errors[1] > errors[0] if name.startswith("test") else errors[1] >= errors[0]  # least squares is optimal
    assert found.best is found.refined and reconstruct(model, photo[None])[0].refined is None


def test_a_model_of_fixed_length_counts_all_channels(photo):
    (found,) = reconstruct(finola.load(FIXED), photo[None])
    assert found.used == (3 * 4 * 64, 0)


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

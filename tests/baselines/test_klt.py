from __future__ import annotations

import pytest
import torch

from finola.baselines import klt as klt_module
from finola.baselines.klt import fit_klt
from finola.errors import InputError


def low_rank_images(count: int) -> torch.Tensor:
    """Images with five dominant directions, a clear spectral gap and little variance in all others."""
    directions = torch.linalg.qr(torch.randn(48, 48))[0]
    strength = torch.cat([torch.tensor([9.0, 7, 5, 4, 3]), torch.full((43,), 0.05)])
    return ((torch.randn(count, 48) * strength) @ directions.T + 0.5).reshape(count, 3, 4, 4)


@pytest.mark.parametrize("count", [30, 400])  # fewer images than values per image, and more
def test_components_are_the_leading_singular_vectors(count, monkeypatch):
    monkeypatch.setattr(klt_module, "CHUNK", 64)
    images = low_rank_images(count)
    klt = fit_klt(images, components=5)
    centred = images.flatten(1) - images.flatten(1).mean(0)
    expected = torch.linalg.svd(centred.double(), full_matrices=False)[2][:5].float()
    assert torch.allclose((klt.components @ expected.T).abs(), torch.eye(5), atol=2e-3)
    assert torch.allclose(klt.components @ klt.components.T, torch.eye(5), atol=1e-4)


def test_all_components_reconstruct_the_image():
    images = torch.rand(100, 3, 4, 4)
    klt = fit_klt(images, components=48)
    assert torch.allclose(klt.decode(klt.encode(images)), images, atol=1e-4)


def test_uint8_images_are_scaled_to_0_1():
    images = torch.randint(0, 256, (60, 3, 4, 4), dtype=torch.uint8)
    from_bytes, from_floats = fit_klt(images, 48), fit_klt(images.float() / 255, 48)
    assert torch.allclose(from_bytes.mean, from_floats.mean, atol=1e-6)
    assert torch.allclose(from_bytes.decode(from_bytes.encode(images / 255)), images / 255, atol=1e-4)


def test_too_many_components_raise():
    with pytest.raises(InputError, match=r"9 .* 8 "):
        fit_klt(torch.rand(8, 3, 4, 4), components=9)

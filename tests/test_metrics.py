from __future__ import annotations

import pytest
import torch

from finola.metrics import ms_ssim, psnr, quality_metrics, ssim


def test_psnr_is_the_definition_per_image():
    original, image = torch.rand(3, 3, 16, 16), torch.rand(3, 3, 16, 16)
    expected = torch.stack([-10 * torch.log10(((a - b) ** 2).mean()) for a, b in zip(image, original, strict=True)])
    assert torch.allclose(psnr(image, original), expected, atol=1e-4)
    assert psnr(original, original).isinf().all()


def test_values_outside_0_1_are_clamped():
    original = torch.ones(1, 3, 4, 4)
    assert psnr(original + 0.5, original).isinf().all()


def test_a_batch_equals_its_images_one_by_one():
    original, image = torch.rand(2, 3, 176, 176), torch.rand(2, 3, 176, 176)
    for metric in (ssim, ms_ssim):
        alone = torch.cat([metric(image[[n]], original[[n]]) for n in range(2)])
        assert torch.allclose(metric(image, original), alone, atol=1e-5)
        assert torch.allclose(metric(original, original), torch.ones(2), atol=1e-5)


@pytest.mark.parametrize("size", [(176, 176), (256, 256), (177, 391)])
def test_ssim_and_ms_ssim_equal_torchmetrics(size):
    from torchmetrics.functional.image import (
        multiscale_structural_similarity_index_measure as reference_ms_ssim,
    )
    from torchmetrics.functional.image import structural_similarity_index_measure as reference_ssim

    torch.manual_seed(0)
    original = torch.nn.functional.avg_pool2d(torch.rand(2, 3, size[0] + 4, size[1] + 4), 5, stride=1)
    image = (original + 0.1 * torch.randn_like(original)).clamp(0, 1)
    expected = reference_ssim(image, original, data_range=1.0, reduction="none")
    assert torch.allclose(ssim(image, original), expected, atol=2e-5)
    expected = reference_ms_ssim(image, original, data_range=1.0, reduction="none", normalize="relu")
    assert torch.allclose(ms_ssim(image, original), expected, atol=2e-5)


def test_an_expanded_original_equals_repeated_originals():
    original, images = torch.rand(1, 3, 180, 180), torch.rand(3, 3, 180, 180)
    shared, each = (
        quality_metrics(images, original.expand_as(images)),
        quality_metrics(images, original.repeat(3, 1, 1, 1)),
    )
    for one, other in zip(shared, each, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_autocast_does_not_change_ssim():
    originals = torch.rand(2, 3, 192, 192)
    images = (originals + 0.05 * torch.randn_like(originals)).clamp(0, 1).bfloat16()
    expected = ssim(images.float(), originals), ms_ssim(images.float(), originals)
    with torch.autocast("cpu", torch.bfloat16):
        found = ssim(images, originals), ms_ssim(images, originals)
    torch.testing.assert_close(found, expected)


def test_a_constant_image_has_similarity_one():
    flat = torch.full((1, 3, 200, 200), 0.5)
    assert ssim(flat, flat).item() == pytest.approx(1, abs=1e-4)
    assert ms_ssim(flat, flat).item() == pytest.approx(1, abs=1e-4)


def test_invalid_sizes_raise_with_their_values():
    with pytest.raises(ValueError, match=r"176.*64×64"):
        ms_ssim(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"\(1, 3, 8, 8\).*\(1, 3, 8, 9\)"):
        psnr(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 9))

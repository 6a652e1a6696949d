from __future__ import annotations

import pytest
import torch

from finola.metrics import ms_ssim, psnr, ssim


def test_psnr_is_the_definition_per_image():
    original, image = torch.rand(3, 3, 16, 16), torch.rand(3, 3, 16, 16)
    expected = torch.stack([-10 * torch.log10(((a - b) ** 2).mean()) for a, b in zip(image, original, strict=True)])
    assert torch.allclose(psnr(image, original), expected, atol=1e-4)
    assert psnr(original, original).isinf().all()


def test_what_lies_outside_0_1_is_what_a_viewer_shows():
    original = torch.ones(1, 3, 4, 4)
    assert psnr(original + 0.5, original).isinf().all()


def test_a_batch_is_its_images_one_by_one():
    original, image = torch.rand(2, 3, 176, 176), torch.rand(2, 3, 176, 176)
    for metric in (ssim, ms_ssim):
        alone = torch.cat([metric(image[[n]], original[[n]]) for n in range(2)])
        assert torch.allclose(metric(image, original), alone, atol=1e-5)
        assert torch.allclose(metric(original, original), torch.ones(2), atol=1e-5)


def test_bad_input_gets_one_sentence():
    with pytest.raises(ValueError, match="at least 176"):
        ms_ssim(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match="cannot be compared"):
        psnr(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 9))

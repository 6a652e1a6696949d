from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from finola.baselines.dtcwt import DTCWT, count, forward, inverse
from finola.errors import InputError

REFERENCE = json.loads((Path(__file__).parent / "dtcwt.json").read_text())
SIZES = [(1, 1), (2, 3), (5, 7), (6, 10), (16, 16), (33, 50), (64, 37)]


def synthetic_image(height: int, width: int) -> torch.Tensor:
    """Deterministic image with multiples of 1/16 in [0, 1] and energy at every frequency."""
    i, j = torch.arange(height)[:, None], torch.arange(width)
    return ((7 * i * i + 13 * i * j + 5 * j * j + 3 * i) % 17).double() / 16


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_inverse_reconstructs_the_image(size, dtype, error):
    images = torch.rand(2, 3, *size, dtype=dtype)
    back = inverse(forward(images), size)
    assert back.dtype == dtype
    torch.testing.assert_close(back, images, rtol=0, atol=error)


def test_inverse_without_size_includes_the_padding_of_an_odd_side():
    image = torch.rand(1, 5, 8)
    back = inverse(forward(image))
    assert torch.allclose(back, torch.cat([image, image[:, -1:]], dim=1), atol=1e-5)


@pytest.mark.parametrize("size", REFERENCE["sizes"])
def test_coefficients_match_the_reference_package(size):
    height, width = map(int, size.split("x"))
    lowpass, highpasses = forward(synthetic_image(height, width))
    expected = REFERENCE["sizes"][size]
    parts = [lowpass, *map(torch.view_as_real, highpasses)]
    for part, integers in zip(parts, [expected["lowpass"], *expected["highpasses"]], strict=True):
        values = torch.tensor(integers, dtype=torch.float64) * REFERENCE["unit"]
        torch.testing.assert_close(part.flatten(), values, rtol=0, atol=1e-9)


def test_coefficient_counts_of_a_256_image():
    lowpass, highpasses = forward(torch.rand(3, 256, 256))
    counts = [count(DTCWT(lowpass, highpasses[finest:])) for finest in (3, 2, 1)]
    assert counts == [12288, 49152, 196608]


def test_transform_is_linear_and_independent_across_the_batch():
    x, y = torch.rand(2, 4, 3, 18, 21).double()
    of_x, of_y, of_both = forward(x), forward(y), forward(2 * x - 3 * y)
    assert torch.allclose(2 * of_x.lowpass - 3 * of_y.lowpass, of_both.lowpass)
    for a, b, both in zip(of_x.highpasses, of_y.highpasses, of_both.highpasses, strict=True):
        assert torch.allclose(2 * a - 3 * b, both)
    for one, all_of_them in zip(forward(x[1, 2]).highpasses, of_x.highpasses, strict=True):
        assert torch.allclose(one, all_of_them[1, 2])


def test_constant_image_has_no_highpass_energy():
    lowpass, highpasses = forward(torch.full((1, 32, 40), 0.5).double())
    # The published filters have a limited number of digits: the sum of a high-pass filter is about 1e-7, not 0.
    assert all(level.abs().max() < 1e-6 for level in highpasses)
    dropped = DTCWT(lowpass, tuple(torch.zeros_like(level) for level in highpasses))
    assert torch.allclose(inverse(dropped), torch.full((1, 32, 40), 0.5).double())


def test_operators_cached_in_inference_mode_support_autograd_later():
    with torch.inference_mode():
        forward(torch.rand(1, 22, 26).double())
    image = torch.rand(1, 22, 26, dtype=torch.float64, requires_grad=True)
    inverse(forward(image)).sum().backward()
    assert torch.allclose(image.grad, torch.ones_like(image))


def test_invalid_arguments_raise():
    with pytest.raises(InputError, match=r"torch\.uint8"):
        forward(torch.zeros(3, 8, 8, dtype=torch.uint8))
    with pytest.raises(InputError, match="0"):
        forward(torch.rand(3, 8, 8), levels=0)
    with pytest.raises(InputError, match=r"\(8, 8\).*\(9, 8\)"):
        inverse(forward(torch.rand(3, 8, 8)), size=(9, 8))

"""Block DCT, DWT and DTCWT: the paper's latent counts, exact inverses, any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from finola.baselines import Method
from finola.baselines.dct import dct, zigzag
from finola.baselines.dwt import dtcwt_method, dwt_method
from finola.errors import InputError
from finola.image_io import read_photo

COUNTS = [(dct(kept), 3072 * kept) for kept in (1, 3, 6, 10)]
COUNTS += [(dwt_method("ll"), 3888), (dwt_method("scale3"), 15552), (dwt_method("scale2"), 55953)]
COUNTS += [(dtcwt_method("ll"), 12288), (dtcwt_method("scale3"), 49152), (dtcwt_method("scale2"), 196608)]


@pytest.mark.parametrize(("method", "count"), COUNTS, ids=lambda value: getattr(value, "name", None))
def test_latent_counts_match_the_paper(method: Method, count: int) -> None:
    assert method.encode(torch.rand(3, 256, 256)).latents == count


@pytest.mark.parametrize("method", [dct(64), dwt_method("all"), dtcwt_method("all")], ids=lambda method: method.name)
@pytest.mark.parametrize("size", [(256, 256), (50, 37), (1, 1), (9, 300)])
def test_all_coefficients_reconstruct_the_image(method: Method, size: tuple[int, int]) -> None:
    image = torch.rand(3, *size)
    assert (method.decode(method.encode(image)) - image).abs().max() < 1e-4


def test_error_decreases_with_the_number_of_coefficients() -> None:
    image = read_photo("skimage:astronaut")[:, 100:356, 100:356]
    for family in ([dct(1), dct(3), dct(10)], [dwt_method(k) for k in ("ll", "scale3", "scale2")]):
        errors = [float((method.decode(method.encode(image)) - image).square().mean()) for method in family]
        assert errors == sorted(errors, reverse=True)


def test_first_dct_coefficient_is_the_block_mean() -> None:
    image = torch.rand(3, 16, 24)
    expected = torch.nn.functional.avg_pool2d(image, 8).repeat_interleave(8, -1).repeat_interleave(8, -2)
    torch.testing.assert_close(dct(1).decode(dct(1).encode(image)), expected, atol=1e-6, rtol=0)


def test_zigzag_visits_every_cell_once_in_steps_of_one() -> None:
    path = zigzag()
    assert len(set(path)) == 64
    assert all(max(abs(a - c), abs(b - d)) == 1 for (a, b), (c, d) in pairwise(path))


@pytest.mark.parametrize(("make", "word"), [(dct, 0), (dct, 65), (dwt_method, "scale9"), (dtcwt_method, "")])
def test_invalid_subsets_raise(make, word) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=f":{word}"):
        make(word)

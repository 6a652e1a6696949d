"""Block DCT, DWT and DTCWT: the paper's latent counts, exact inverses, any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from finola.baselines import Peer
from finola.baselines.dct import dct, zigzag
from finola.baselines.dwt import dtcwt_peer, dwt_peer
from finola.image_io import read_photo

COUNTS = [(dct(kept), 3072 * kept) for kept in (1, 3, 6, 10)]
COUNTS += [(dwt_peer("ll"), 3888), (dwt_peer("scale3"), 15552), (dwt_peer("scale2"), 55953)]
COUNTS += [(dtcwt_peer("ll"), 12288), (dtcwt_peer("scale3"), 49152), (dtcwt_peer("scale2"), 196608)]


@pytest.mark.parametrize(("peer", "count"), COUNTS, ids=lambda value: getattr(value, "name", None))
def test_the_latent_counts_are_the_paper_s(peer: Peer, count: int) -> None:
    assert peer.encode(torch.rand(3, 256, 256)).latents == count


@pytest.mark.parametrize("peer", [dct(64), dwt_peer("all"), dtcwt_peer("all")], ids=lambda peer: peer.name)
@pytest.mark.parametrize("size", [(256, 256), (50, 37), (1, 1), (9, 300)])
def test_all_coefficients_give_the_image_back(peer: Peer, size: tuple[int, int]) -> None:
    image = torch.rand(3, *size)
    assert (peer.decode(peer.encode(image)) - image).abs().max() < 1e-4


def test_keeping_more_draws_better() -> None:
    image = read_photo("skimage:astronaut")[:, 100:356, 100:356]
    for family in ([dct(1), dct(3), dct(10)], [dwt_peer(k) for k in ("ll", "scale3", "scale2")]):
        errors = [float((peer.decode(peer.encode(image)) - image).square().mean()) for peer in family]
        assert errors == sorted(errors, reverse=True)


def test_one_dct_coefficient_is_the_block_s_mean() -> None:
    image = torch.rand(3, 16, 24)
    expected = torch.nn.functional.avg_pool2d(image, 8).repeat_interleave(8, -1).repeat_interleave(8, -2)
    torch.testing.assert_close(dct(1).decode(dct(1).encode(image)), expected, atol=1e-6, rtol=0)


def test_zigzag_walks_every_cell_once_and_never_far() -> None:
    path = zigzag()
    assert len(set(path)) == 64
    assert all(max(abs(a - c), abs(b - d)) == 1 for (a, b), (c, d) in pairwise(path))


@pytest.mark.parametrize(("make", "word"), [(dct, 0), (dct, 65), (dwt_peer, "scale9"), (dtcwt_peer, "")])
def test_what_cannot_be_kept_is_said(make, word) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"is not known|no such number"):
        make(word)

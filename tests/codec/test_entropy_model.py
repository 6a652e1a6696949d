"""Entropy model: lossless round trip of the integers, at the estimated cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finola.codec.calibration import count_tables, laplacian_coder
from finola.codec.entropy_model import step_size
from finola.codec.rans import Decoder, Encoder
from finola.errors import CorruptFileError


@settings(deadline=None, max_examples=30)
@given(
    channels=st.integers(1, 70),
    tiles=st.integers(0, 9),
    step=st.integers(0, 255),
    seed=st.integers(0, 10**6),
    size=st.sampled_from([0.01, 1.0, 40.0, 3000.0]),
)
def test_round_trip_is_lossless_at_the_estimated_cost(
    channels: int, tiles: int, step: int, seed: int, size: float
) -> None:
    random = np.random.default_rng(seed)
    coder = laplacian_coder(random.integers(-80, 80, channels).tolist())
    latents = (size * random.standard_normal((tiles, channels))).astype(np.float32)
    latents = np.clip(latents, -(2**20) * step_size(step), 2**20 * step_size(step))
    found = coder.quantise(latents, step)
    encoder = Encoder()
    coder.put(encoder, found, step)
    data = encoder.finish()
    decoder = Decoder(data)
    chunks = list(coder.get(decoder, tiles, step, chunk=3))
    assert np.array_equal(np.concatenate([np.zeros((0, channels), np.int32), *chunks]), found.values)
    decoder.finish()
    assert abs(8 * len(data) - coder.cost(found, step)) < 64 + 0.02 * coder.cost(found, step)


def test_quantisation_is_rate_distortion_optimised() -> None:
    random = np.random.default_rng(0)
    scales = [64 - channel for channel in range(60)]
    latents = (2.0 ** (np.array(scales) / 16) * random.laplace(size=(400, 60))).astype(np.float32)
    coder = laplacian_coder(scales)
    step = 128
    found = coder.quantise(latents, step)
    assert np.abs(found.values - latents).max() <= 2  # towards zero by one at most, or to zero
    assert np.abs(found.values).sum() < np.abs(np.rint(latents)).sum()
    counted = count_tables(coder, latents)
    assert counted.cost(counted.quantise(latents, step), step) < coder.cost(found, step)


def test_channels_beyond_keep_are_zero() -> None:
    coder = laplacian_coder([50] * 30)
    latents = 10 * np.random.default_rng(1).standard_normal((5, 30)).astype(np.float32)
    assert not coder.quantise(latents, 128, keep=7).values[:, 7:].any()


def test_invalid_class_raises() -> None:
    coder = laplacian_coder([0] * 4)
    encoder = Encoder()
    encoder.put(coder.classes[0][16], 100)
    with pytest.raises(CorruptFileError, match="200"):
        list(coder.get(Decoder(encoder.finish()), 1, 128, chunk=1))

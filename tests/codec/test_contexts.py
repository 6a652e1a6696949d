"""Entropy model of elastic codecs: integers survive, costs are sizes, damaged data is reported."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import finola
from finola.codec.contexts import ContextModel, Tiles, mean_errors
from finola.codec.elastic_calibration import _Counts, _initial_contexts
from finola.codec.rans import Decoder, Encoder
from finola.errors import CorruptFileError

SHAPE = "waves+nets/32x1@4:16+elastic2"


def random_tiles(model: ContextModel, rows: int, columns: int, seed: int, scale: float) -> Tiles:
    generator = np.random.default_rng(seed)
    count, depth = rows * columns, model.expected.shape[1]
    lengths = generator.integers(0, len(model.sizes), count)
    inside = np.arange(depth) < np.array(model.sizes)[lengths][:, None]
    values = np.where(inside, np.rint(generator.laplace(0, scale, (count, depth))), 0).astype(np.int16)
    means = np.rint(generator.normal(0, 20 * scale, (count, 3))).astype(np.int64)
    index = np.where(lengths > 0, generator.integers(0, model.bases, count), 0)
    return Tiles(lengths, means, index, values)


@pytest.fixture(scope="module")
def model() -> ContextModel:
    """Tables counted on some tiles, so that no two are equal."""
    counts = _Counts(_initial_contexts(finola.create(SHAPE)))
    for seed in range(4):
        counts.add(random_tiles(counts.model, 4, 5, seed, 1.5), 5, renew=False)
    return counts.contexts(renew=False)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 40.0, 2000.0]))
def test_decoded_integers_equal_the_encoded_ones(
    model: ContextModel, rows: int, columns: int, seed: int, scale: float
) -> None:
    tiles = random_tiles(model, rows, columns, seed, scale)
    encoder = Encoder()
    model.put(encoder, tiles, columns)
    decoder = Decoder(encoder.finish())
    found = model.get(decoder, rows * columns, columns)
    decoder.finish()
    for field in fields(Tiles):
        assert np.array_equal(getattr(found, field.name), getattr(tiles, field.name)), field.name


def test_the_cost_is_the_size_of_the_coded_data(model: ContextModel) -> None:
    tiles = random_tiles(model, 8, 8, seed=1, scale=1.0)
    encoder = Encoder()
    model.put(encoder, tiles, 8)
    assert 8 * len(encoder.finish()) == pytest.approx(model.cost(tiles, 8), rel=0.01, abs=64)


def test_means_are_predicted_from_their_neighbours() -> None:
    y, x = np.mgrid[:6, :7]
    plane = np.repeat((3 * x - 2 * y)[..., None], 3, 2).reshape(-1, 3)  # a linear ramp needs no corrections inside
    errors = mean_errors(plane, 7).reshape(6, 7, 3)
    assert not errors[1:, 1:].any() and (errors[0, 1:] == 3).all() and (errors[1:, 0] == -2).all()


@pytest.mark.parametrize("seed", range(20))
def test_damaged_data_raises_or_gives_other_integers(model: ContextModel, seed: int) -> None:
    tiles = random_tiles(model, 4, 4, seed, 1.0)
    encoder = Encoder()
    model.put(encoder, tiles, 4)
    data = bytearray(encoder.finish())
    generator = np.random.default_rng(seed)
    data[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
    try:
        found = model.get(Decoder(bytes(data)), 16, 4)
    except CorruptFileError:
        return
    assert any(not np.array_equal(getattr(found, field.name), getattr(tiles, field.name)) for field in fields(Tiles))


def test_data_that_ends_early_raises(model: ContextModel) -> None:
    tiles = random_tiles(model, 4, 4, 0, 1.0)
    encoder = Encoder()
    model.put(encoder, tiles, 4)
    with pytest.raises(CorruptFileError):
        model.get(Decoder(encoder.finish()[: 40 // 2 * 2]), 16, 4)

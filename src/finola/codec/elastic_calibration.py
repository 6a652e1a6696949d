"""Calibration of elastic models as codecs: contexts and tables of frequencies, counted on photos."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.codec.contexts import (
    EXPECTED,
    MEAN_CONTEXTS,
    REACH,
    RECENT,
    ContextModel,
    Integers,
    Tiles,
    index_contexts,
    length_contexts,
    mean_contexts,
    mean_errors,
    value_contexts,
)
from finola.codec.elastic_coder import MEAN_SYMBOLS, VALUE_SYMBOLS, ElasticCoder, length_sizes
from finola.codec.rans import Table, frequencies
from finola.encoders.elastic import elastic_encoder

STEPS = (72, 84, 96, 108, 120)  # quantiser steps at which symbols are counted
ITERATIONS = 3  # contexts of positions change in all but the last
PRIOR = 20.0  # weight of the coarser statistics in each table, in symbols


def calibrate_elastic(
    model: Autoencoder, photos: Iterable[tuple[Tensor, int]], report: Callable[[int, int], None] = lambda *_: None
) -> ElasticCoder:
    """Count tables on photos, given as coordinates p (T, D) of their tiles and the number of tiles per row.

    `report` is called after each photo with the number of steps done and their total.
    """
    every = list(photos)
    coder = ElasticCoder(model, _initial_contexts(model))
    for iteration in range(ITERATIONS):
        renew = iteration < ITERATIONS - 1
        counts = _Counts(coder.contexts)
        for number, (p, columns) in enumerate(every):
            step = STEPS[number % len(STEPS)]
            counts.add(coder.quantise(coder.prepare(p, step), step), columns, renew=renew)
            report(iteration * len(every) + number + 1, ITERATIONS * len(every))
        coder = ElasticCoder(model, counts.contexts(renew=renew))
    return coder


def _initial_contexts(model: Autoencoder) -> ContextModel:
    """Context model before symbols are counted: magnitudes that fall with the position within the length."""
    bases, depth = elastic_encoder(model).codebook.bases.shape[:2]
    sizes = length_sizes(depth)
    position = np.arange(depth)
    expected = np.zeros((len(sizes), depth), np.int64)
    for kind, size in enumerate(sizes):
        expected[kind] = np.clip(EXPECTED - 8 - np.floor(12 * position / max(size, 1)), 0, EXPECTED - 1)
    values = [_laplace(_mean_of(context // RECENT)) for context in range(EXPECTED * RECENT)]
    uniform = {n: Table(frequencies([1 / n] * n + [0.0])) for n in (len(sizes), bases)}
    mean = Table(frequencies(_geometric(MEAN_SYMBOLS, 0.95)))
    return ContextModel(
        sizes,
        expected,
        (uniform[len(sizes)],) * len(sizes),
        ((mean,) * MEAN_CONTEXTS,) * 3,
        (uniform[bases],) * (bases + 1),
        tuple(Table(frequencies(row)) for row in values),
    )


def _laplace(mean: float) -> list[float]:
    """Probabilities of 0, −1, 1, … and the escape for a two-sided geometric distribution of this mean magnitude."""
    decay = mean / (1 + mean)
    weights = [decay**magnitude for magnitude in range(REACH + 1)]
    return [weights[0], *(w / 2 for w in weights[1:] for _ in range(2)), decay ** (REACH + 1)]


def _geometric(symbols: int, decay: float) -> list[float]:
    return [decay**symbol for symbol in range(symbols)]


class _Counts:
    """Counts of symbols by context, and of magnitudes by length class and position."""

    def __init__(self, model: ContextModel) -> None:
        self.model = model
        depth = model.expected.shape[1]
        self.length = np.full((len(model.sizes), len(model.sizes)), 0.5)
        self.index = np.full((model.bases + 1, model.bases), 0.5)
        self.mean = np.zeros((3, MEAN_CONTEXTS, MEAN_SYMBOLS)) + _geometric(MEAN_SYMBOLS, 0.8)
        self.value = np.zeros((EXPECTED, RECENT, VALUE_SYMBOLS))
        self.magnitude = np.zeros((2, len(model.sizes), depth))  # sum and number

    def add(self, tiles: Tiles, columns: int, *, renew: bool) -> None:
        model = self.model
        np.add.at(self.length, (length_contexts(tiles.lengths, columns), tiles.lengths), 1)
        coded = tiles.lengths > 0
        np.add.at(self.index, (index_contexts(tiles, columns, model.bases)[coded], tiles.index[coded]), 1)
        errors = mean_errors(tiles.means, columns)
        contexts = mean_contexts(errors, columns)
        symbols = np.minimum(np.where(errors >= 0, 2 * errors, -2 * errors - 1), MEAN_SYMBOLS - 1)
        for colour in range(3):
            np.add.at(self.mean[colour], (contexts[:, colour], symbols[:, colour]), 1)
        sizes = np.array(model.sizes)[tiles.lengths]
        inside = np.arange(tiles.values.shape[1]) < sizes[:, None]
        if renew:
            for kind in np.unique(tiles.lengths).tolist():
                own = tiles.lengths == kind
                self.magnitude[0, kind] += np.abs(tiles.values[own]).sum(0)
                self.magnitude[1, kind] += own.sum()
        values = tiles.values[inside].astype(np.int64)
        symbols = np.minimum(np.where(values >= 0, 2 * values, -2 * values - 1), VALUE_SYMBOLS - 1)
        flat = self.value.reshape(-1, VALUE_SYMBOLS)
        np.add.at(flat, (value_contexts(model, tiles)[inside], symbols), 1)

    def contexts(self, *, renew: bool) -> ContextModel:
        model = self.model
        if renew:  # the meaning of the value contexts changes, so their tables start from Laplacians again
            initial = tuple(
                Table(frequencies(_laplace(_mean_of(context // RECENT)))) for context in range(EXPECTED * RECENT)
            )
            return ContextModel(model.sizes, self._expected(), *self._others(), initial)
        coarse = self.value.sum(1, keepdims=True)
        prior = np.array([_laplace(_mean_of(context)) for context in range(EXPECTED)])[:, None]
        coarse = (coarse + PRIOR * prior) / (coarse.sum(-1, keepdims=True) + PRIOR)
        table = (self.value + PRIOR * coarse) / (self.value.sum(-1, keepdims=True) + PRIOR)
        tables = tuple(Table(frequencies(row.tolist())) for row in table.reshape(-1, VALUE_SYMBOLS))
        return ContextModel(model.sizes, model.expected, *self._others(), tables)

    def _expected(self) -> Integers:
        """Contexts of positions: quarter octaves of the mean magnitude, smoothed over neighbouring positions."""
        contexts = np.zeros(self.magnitude.shape[1:], np.int64)
        for kind, size in enumerate(self.model.sizes):
            if not size:
                continue
            reach = min(5, size | 1)  # an odd number of positions
            padded = np.pad(self.magnitude[:, kind, :size], ((0, 0), (reach // 2, reach // 2)), "edge")
            total, number = (np.convolve(row, np.ones(reach), "valid") for row in padded)
            mean = (total + 0.05) / (number + 0.5)
            contexts[kind, :size] = np.clip(np.rint(4 * np.log2(mean[:size]) + 18), 0, EXPECTED - 1)
        return contexts

    def _others(self) -> tuple[tuple[Table, ...], tuple[tuple[Table, ...], ...], tuple[Table, ...]]:
        length, index = (
            tuple(Table(frequencies([*(row / row.sum()).tolist(), 0.0])) for row in counts)
            for counts in (self.length, self.index)
        )
        means = tuple(
            tuple(Table(frequencies((row / row.sum()).tolist())) for row in contexts) for contexts in self.mean
        )
        return length, means, index


def _mean_of(context: int) -> float:
    """Mean magnitude of an expected-magnitude context."""
    return float(2.0 ** ((context - 18) / 4))

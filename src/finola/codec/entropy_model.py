"""Entropy model of the coefficients of tiles: bands of channels, each with a class for the level of its energy.

Encoder and decoder share integers only: the index of a table follows from integer scales, classes and steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from finola.codec.rans import Decoder, Encoder, Table, unzigzag, zigzag
from finola.errors import CorruptFileError

EDGES = (0, 8, 24, 56, 120, 248, 504, 1016)  # first channels of the bands
CLASSES = 16  # 0: the whole band is zero; 8: average standard deviation; each further class is half an octave more
CONTEXTS = CLASSES + 1  # the class of the previous band, or none
TABLES = 32  # one per half octave of the ratio of standard deviation to step
REACH = 127  # largest absolute value with a tabulated cost
LAMBDA = 0.12  # rate–distortion trade-off: squared error, in units of the squared step, per bit
CHUNK = 4096  # tiles that are quantised together, which bounds the memory of temporaries


def step_size(step: int) -> float:
    """Quantiser step of an index: 16 indices per octave, and index 128 is a step of 1."""
    return math.pow(2.0, (step - 128) / 16)


def band_ranges(count: int) -> list[tuple[int, int]]:
    """Split `count` channels into bands; returns (first, last + 1) of each.

    >>> band_ranges(30)
    [(0, 8), (8, 24), (24, 30)]
    """
    return list(pairwise([*(edge for edge in EDGES if edge < count), count]))


@dataclass(frozen=True)
class Coder:
    """Quantiser and entropy coder of one model, with integer tables.

    `scales` are 16·log₂ of the standard deviation of every channel, rounded.
    """

    scales: tuple[int, ...]
    values: tuple[Table, ...]
    classes: tuple[tuple[Table, ...], ...]  # by band, then by context

    @cached_property
    def bands(self) -> list[tuple[int, int]]:
        """(first, last + 1) channel of every band."""
        return band_ranges(len(self.scales))

    def table_number(self, channel: int, kind: int, step: int) -> int:
        """Index of the table that codes a channel whose band has class `kind`."""
        ratio = self.scales[channel] - (step - 128) + 8 * (kind - 8)
        return min(max((ratio + 96) >> 3, 0), TABLES - 1)

    def tables(self, band: int, kind: int, step: int) -> list[Table]:
        """Tables of the channels of a band."""
        first, last = self.bands[band]
        return [self.values[self.table_number(channel, kind, step)] for channel in range(first, last)]

    @cached_property
    def _costs(self) -> NDArray[np.float32]:
        """Bits of the values −REACH … REACH in every table: (TABLES, 2·REACH + 1)."""
        return np.array([[table.cost(v) for v in range(-REACH, REACH + 1)] for table in self.values], np.float32)

    @cached_property
    def _context_costs(self) -> NDArray[np.float32]:
        """Bits of a class by band and context: (bands, CONTEXTS, CLASSES)."""
        costs = [[[table.costs[kind] for kind in range(CLASSES)] for table in tables] for tables in self.classes]
        return np.array(costs, np.float32)

    @cached_property
    def _class_costs(self) -> NDArray[np.float32]:
        """Bits of a class by band, averaged over contexts: (bands, CLASSES)."""
        costs: NDArray[np.float32] = self._context_costs.mean(1)
        return costs

    def quantise(self, latents: NDArray[np.float32], step: int, keep: int | None = None) -> Quantised:
        """Quantise coefficients (T, K) to the integers and classes that minimise error + λ·bits in each band.

        `keep` is the number of leading channels that are coded; the others are zero.
        """
        values = np.zeros(latents.shape, np.int32)
        classes = np.zeros((len(latents), len(self.bands)), np.int64)
        for first in range(0, len(latents), CHUNK):
            part = slice(first, first + CHUNK)
            self._quantise(latents[part], step, keep, values[part], classes[part])
        return Quantised(values, classes)

    def _quantise(
        self,
        latents: NDArray[np.float32],
        step: int,
        keep: int | None,
        values: NDArray[np.int32],
        classes: NDArray[np.int64],
    ) -> None:
        """Quantise into `values` and `classes`, which must be zero-initialised."""
        scaled = latents / np.float32(step_size(step))  # a copy: `keep` zeroes in place
        if keep is not None:
            scaled[:, keep:] = 0
        for band, (first, last) in enumerate(self.bands):
            x = scaled[:, first:last]
            nearest = np.rint(x)
            lower = nearest - np.sign(nearest)
            best = np.square(x).sum(1) + LAMBDA * self._class_costs[band, 0]
            alive = np.abs(x).max(1) > 0.5
            for kind in range(1, CLASSES):
                numbers = np.array([self.table_number(channel, kind, step) for channel in range(first, last)])
                chosen, cost = self._choose(x[alive], nearest[alive], lower[alive], numbers)
                own = self._class_costs[band, kind]
                total = np.square(x[alive] - chosen).sum(1) + LAMBDA * (cost + own)
                better = total < best[alive]
                where = np.flatnonzero(alive)[better]
                best[where] = total[better]
                values[where, first:last] = chosen[better]
                classes[where, band] = kind

    def _choose(
        self,
        x: NDArray[np.float32],
        nearest: NDArray[np.float32],
        lower: NDArray[np.float32],
        numbers: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Quantise each value to the nearest integer, the next one towards zero, or zero, whichever costs least.

        Returns the integers and the bits per tile.
        """
        chosen = np.zeros_like(x)
        bits = np.broadcast_to(self._costs[numbers, REACH], x.shape).copy()
        best = np.square(x) + LAMBDA * bits
        for candidate in (lower, nearest):
            index = np.clip(candidate, -REACH, REACH).astype(np.int64) + REACH
            cost = self._costs[numbers, index]
            total = np.square(x - candidate) + LAMBDA * cost
            better = total < best
            chosen, bits = np.where(better, candidate, chosen), np.where(better, cost, bits)
            best = np.minimum(best, total)
        return chosen, bits.sum(1, dtype=np.float64)

    def _symbols(self, quantised: Quantised, step: int) -> Iterator[tuple[list[Table], list[int]]]:
        """Tables and values in file order: for every tile and band its class, then its channels."""
        tables = {
            (band, kind): self.tables(band, kind, step) for band in range(len(self.bands)) for kind in range(1, CLASSES)
        }
        left = CLASSES
        for row, kinds in zip(quantised.values, quantised.classes.tolist(), strict=True):
            before, values = left, row.tolist()
            for band, (first, last) in enumerate(self.bands):
                kind = kinds[band]
                yield [self.classes[band][before]], [unzigzag(kind)]
                if kind:
                    yield tables[band, kind], values[first:last]
                before = kind
            left = kinds[0]

    def put(self, encoder: Encoder, quantised: Quantised, step: int) -> None:
        """Encode all tiles."""
        for tables, values in self._symbols(quantised, step):
            encoder.put_many(tables, values)

    def cost(self, quantised: Quantised, step: int) -> float:
        """Estimated bits of `put`, computed from the frequencies of the tables."""
        left = np.concatenate([np.full(1, CLASSES), quantised.classes[:-1, 0]])  # first class of the previous tile
        parts = [slice(first, first + CHUNK) for first in range(0, len(left), CHUNK)]
        return sum(self._cost(quantised.values[part], quantised.classes[part], left[part], step) for part in parts)

    def _cost(self, values: NDArray[np.int32], kinds: NDArray[np.int64], before: NDArray[np.int64], step: int) -> float:
        bits = 0.0
        for band, (first, last) in enumerate(self.bands):
            own = kinds[:, band]
            bits += float(self._context_costs[band, before, own].sum(dtype=np.float64))
            before = own
            for kind in np.unique(own[own > 0]).tolist():
                numbers = np.array([self.table_number(channel, kind, step) for channel in range(first, last)])
                selected = values[own == kind, first:last]
                clipped = np.clip(selected, -REACH, REACH)
                bits += float(self._costs[numbers, clipped + REACH].sum(dtype=np.float64))
                for row, column in np.argwhere(clipped != selected):
                    value, table = int(selected[row, column]), self.values[numbers[column]]
                    bits += table.cost(value) - table.cost(int(clipped[row, column]))
        return bits

    def get(self, decoder: Decoder, count: int, step: int, chunk: int) -> Iterator[NDArray[np.int32]]:
        """Decode the integers of `count` tiles; yields (n, K) with at most n = `chunk` tiles at a time."""
        tables: dict[tuple[int, int], list[Table]] = {}
        left = CLASSES
        for start in range(0, count, chunk):
            result = np.zeros((min(chunk, count - start), len(self.scales)), np.int32)
            for row in result:
                before = left
                for band, (first, last) in enumerate(self.bands):
                    kind = _class_of(decoder.get(self.classes[band][before]))
                    if kind:
                        if (band, kind) not in tables:
                            tables[band, kind] = self.tables(band, kind, step)
                        row[first:last] = decoder.get_many(tables[band, kind])
                    before = kind
                    if band == 0:
                        left = kind
            yield result


def _class_of(value: int) -> int:
    """Class of a decoded value."""
    kind = zigzag(value)
    if kind >= CLASSES:
        raise CorruptFileError(f"a band has class {kind}; classes are 0 to {CLASSES - 1}.")
    return kind


@dataclass(frozen=True)
class Quantised:
    """Quantised tiles: integers (T, K) and classes (T, bands)."""

    values: NDArray[np.int32]
    classes: NDArray[np.int64]


def laplace(number: int) -> list[float]:
    """Probabilities of 0, −1, 1, −2, … and of the escape, for a Laplacian with the standard deviation of a table."""
    ratio = 2.0 ** ((8 * number - 96 + 4) / 16)
    reach = min(max(math.ceil(6 * ratio), 1), 110)
    decay = math.exp(-math.sqrt(2) / ratio)
    inside = decay**0.55  # rate–distortion optimised quantisation rounds towards zero more often than away from it
    one_side = [inside * decay ** (k - 1) * (1 - decay) / 2 for k in range(1, reach + 1)]
    return [1 - inside, *(p for value in one_side for p in (value, value)), inside * decay**reach]

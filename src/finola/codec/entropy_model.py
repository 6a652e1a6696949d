"""The latents of tiles as integers and as symbols: bands of channels, each with a class that says how lively it is.

Nothing here that both sides must agree on is a float: table numbers come from integer scales, classes and steps.
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

EDGES = (0, 8, 24, 56, 120, 248, 504, 1016)  # of the bands, in channels
CLASSES = 16  # 0: the whole band is zero; 8: as lively as on average; one more is half an octave
CONTEXTS = CLASSES + 1  # the class before it, or none
TABLES = 32  # one per half octave of standard deviation over step
REACH = 127  # values whose cost is looked up
LAMBDA = 0.12  # squared error, in steps, that one bit is worth
AT_ONCE = 4096  # tiles that are quantised together, which bounds the memory of temporaries


def step_size(step: int) -> float:
    """Sixteenths of an octave: 128 is a step of 1."""
    return math.pow(2.0, (step - 128) / 16)


def band_ranges(count: int) -> list[tuple[int, int]]:
    """(first, last + 1) of the bands that `count` channels are split into.

    >>> band_ranges(30)
    [(0, 8), (8, 24), (24, 30)]
    """
    return list(pairwise([*(edge for edge in EDGES if edge < count), count]))


@dataclass(frozen=True)
class Coder:
    """Integer tables of one model: `scales` are 16·log₂ of every channel's standard deviation."""

    scales: tuple[int, ...]
    values: tuple[Table, ...]
    classes: tuple[tuple[Table, ...], ...]  # by band, then by context

    @cached_property
    def bands(self) -> list[tuple[int, int]]:
        """(first, last + 1) channel of every band."""
        return band_ranges(len(self.scales))

    def table_number(self, channel: int, kind: int, step: int) -> int:
        """Which table codes a channel whose band has class `kind`."""
        ratio = self.scales[channel] - (step - 128) + 8 * (kind - 8)
        return min(max((ratio + 96) >> 3, 0), TABLES - 1)

    def tables(self, band: int, kind: int, step: int) -> list[Table]:
        """The tables of a band's channels."""
        first, last = self.bands[band]
        return [self.values[self.table_number(channel, kind, step)] for channel in range(first, last)]

    @cached_property
    def _costs(self) -> NDArray[np.float32]:
        """Bits of the values −REACH … REACH by every table."""
        return np.array([[table.cost(v) for v in range(-REACH, REACH + 1)] for table in self.values], np.float32)

    @cached_property
    def _context_costs(self) -> NDArray[np.float32]:
        """Bits of a class by band and context."""
        costs = [[[table.costs[kind] for kind in range(CLASSES)] for table in tables] for tables in self.classes]
        return np.array(costs, np.float32)

    @cached_property
    def _class_costs(self) -> NDArray[np.float32]:
        """The same averaged over contexts."""
        costs: NDArray[np.float32] = self._context_costs.mean(1)
        return costs

    def quantise(self, latents: NDArray[np.float32], step: int, keep: int | None = None) -> Quantised:
        """Latents (T, K) → the integers and classes with the least error + λ·bits, band by band."""
        values = np.zeros(latents.shape, np.int32)
        classes = np.zeros((len(latents), len(self.bands)), np.int64)
        for first in range(0, len(latents), AT_ONCE):
            part = slice(first, first + AT_ONCE)
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
        """Fill `values` and `classes`, which are zero."""
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
        """Each number rounded to the nearest integer, the one below it, or zero, whichever pays; bits per tile."""
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
        """Tables and values in the order of the file: of every tile and band its class, then its channels."""
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
        """All tiles, one after the other."""
        for tables, values in self._symbols(quantised, step):
            encoder.put_many(tables, values)

    def cost(self, quantised: Quantised, step: int) -> float:
        """Bits that `put` takes, by the tables' own frequencies."""
        left = np.concatenate([np.full(1, CLASSES), quantised.classes[:-1, 0]])  # class of the tile before, first band
        parts = [slice(first, first + AT_ONCE) for first in range(0, len(left), AT_ONCE)]
        return sum(self._cost(quantised.values[part], quantised.classes[part], left[part], step) for part in parts)

    def _cost(self, values: NDArray[np.int32], kinds: NDArray[np.int64], before: NDArray[np.int64], step: int) -> float:
        bits = 0.0
        for band, (first, last) in enumerate(self.bands):
            own = kinds[:, band]
            bits += float(self._context_costs[band, before, own].sum(dtype=np.float64))
            before = own
            for kind in np.unique(own[own > 0]).tolist():
                numbers = np.array([self.table_number(channel, kind, step) for channel in range(first, last)])
                numbers_of = values[own == kind, first:last]
                within = np.clip(numbers_of, -REACH, REACH)
                bits += float(self._costs[numbers, within + REACH].sum(dtype=np.float64))
                for row, column in np.argwhere(within != numbers_of):
                    value, table = int(numbers_of[row, column]), self.values[numbers[column]]
                    bits += table.cost(value) - table.cost(int(within[row, column]))
        return bits

    def get(self, decoder: Decoder, count: int, step: int, chunk: int) -> Iterator[NDArray[np.int32]]:
        """The integers of `count` tiles, (n, K) for the next n = `chunk` of them at a time."""
        tables: dict[tuple[int, int], list[Table]] = {}
        left = CLASSES
        for start in range(0, count, chunk):
            result = np.zeros((min(chunk, count - start), len(self.scales)), np.int32)
            for row in result:
                before = left
                for band, (first, last) in enumerate(self.bands):
                    kind = zigzag_class(decoder.get(self.classes[band][before]))
                    if kind:
                        if (band, kind) not in tables:
                            tables[band, kind] = self.tables(band, kind, step)
                        row[first:last] = decoder.get_many(tables[band, kind])
                    before = kind
                    if band == 0:
                        left = kind
            yield result


def zigzag_class(value: int) -> int:
    """The class that a decoded symbol stands for."""
    kind = zigzag(value)
    if kind >= CLASSES:
        raise ValueError(f"a band has class {kind}: the data is damaged.")
    return kind


@dataclass(frozen=True)
class Quantised:
    """Integers (T, K) and classes (T, bands)."""

    values: NDArray[np.int32]
    classes: NDArray[np.int64]


def laplace(number: int) -> list[float]:
    """Probabilities of 0, −1, 1, −2, … and the rest where the standard deviation is that of table `number`."""
    ratio = 2.0 ** ((8 * number - 96 + 4) / 16)
    reach = min(max(math.ceil(6 * ratio), 1), 110)
    decay = math.exp(-math.sqrt(2) / ratio)
    inside = decay**0.55  # numbers are rounded towards zero more often than not
    one_side = [inside * decay ** (k - 1) * (1 - decay) / 2 for k in range(1, reach + 1)]
    return [1 - inside, *(p for value in one_side for p in (value, value)), inside * decay**reach]

"""Entropy model of elastic models: every integer of a tile is coded with a table chosen by integers decoded before it.

A tile has a length class, the integers of its three mean colours, and, if its length is not zero, the index of its
basis and as many integers as its length says. All contexts are integers, so the tables are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from finola.codec.rans import Decoder, Encoder, Table, unzigzag, zigzag
from finola.errors import CorruptFileError

MEAN_CONTEXTS = 8  # magnitude of the prediction errors of the left and the upper tile, as its number of bits
EXPECTED, RECENT = 27, 8
"""Contexts of a value: expected magnitude by length and position, running mean of the magnitudes before it."""
START = 256  # initial running mean of a tile: one, in units of 1/256
REACH = 24  # largest absolute value with a tabulated cost

_THRESHOLDS = 1 << np.arange(4, 4 + RECENT - 1)  # running means at which the context changes

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Tiles:
    """Quantised tiles of a photo, in row-major order."""

    lengths: Integers  # (T,): length class, 0 for no values
    means: Integers  # (T, 3)
    index: Integers  # (T,): basis, 0 where the length is zero
    values: NDArray[np.int16]  # (T, D), zero from the length on


@dataclass(frozen=True)
class ContextModel:
    """Integer tables of one elastic codec."""

    sizes: tuple[int, ...]  # number of values of each length class, starting with 0
    expected: Integers  # (classes, D): expected-magnitude context of a position
    length_tables: tuple[Table, ...]  # by context, see `length_context`
    mean_tables: tuple[tuple[Table, ...], ...]  # by colour, then by context
    index_tables: tuple[Table, ...]  # by the index of the left tile, or none
    value_tables: tuple[Table, ...]  # by the context of `value_contexts`

    @property
    def bases(self) -> int:
        """Number of bases of the codebook."""
        return len(self.index_tables) - 1

    @cached_property
    def value_costs(self) -> Floats:
        """Bits of the values −REACH … REACH in every value table."""
        return np.array([[table.cost(v) for v in range(-REACH, REACH + 1)] for table in self.value_tables], np.float32)

    def symbols(self, tiles: Tiles, columns: int) -> Iterator[tuple[list[Table], list[int]]]:
        """Tables and values in file order, tile by tile."""
        contexts = value_contexts(self, tiles)
        lengths, errors = length_contexts(tiles.lengths, columns).tolist(), mean_errors(tiles.means, columns)
        mean_context = mean_contexts(errors, columns).tolist()
        left = index_contexts(tiles, columns, self.bases).tolist()
        rows = zip(tiles.lengths.tolist(), tiles.index.tolist(), errors.tolist(), strict=True)
        for number, (kind, index, error) in enumerate(rows):
            size = self.sizes[kind]
            tables = [self.length_tables[lengths[number]]]
            tables += [self.mean_tables[c][mean_context[number][c]] for c in range(3)]
            values = [unzigzag(kind), *error]
            if size:
                tables.append(self.index_tables[left[number]])
                values.append(unzigzag(index))
                tables += [self.value_tables[context] for context in contexts[number, :size].tolist()]
                values += tiles.values[number, :size].tolist()
            yield tables, values

    def put(self, encoder: Encoder, tiles: Tiles, columns: int) -> None:
        """Encode all tiles of a photo with `columns` tiles per row."""
        for tables, values in self.symbols(tiles, columns):
            encoder.put_many(tables, values)

    def cost(self, tiles: Tiles, columns: int) -> float:
        """Bits of `put`, computed from the frequencies of the tables."""
        contexts = value_contexts(self, tiles)
        inside = np.arange(contexts.shape[1]) < np.array(self.sizes)[tiles.lengths][:, None]
        clipped = np.clip(tiles.values[inside], -REACH, REACH).astype(np.int64)
        bits = float(self.value_costs[contexts[inside], clipped + REACH].sum(dtype=np.float64))
        errors = mean_errors(tiles.means, columns)
        mean_context, lengths = mean_contexts(errors, columns), length_contexts(tiles.lengths, columns)
        left = index_contexts(tiles, columns, self.bases)
        for number, kind in enumerate(tiles.lengths.tolist()):
            bits += self.length_tables[lengths[number]].cost(unzigzag(kind))
            bits += sum(self.mean_tables[c][mean_context[number, c]].cost(int(errors[number, c])) for c in range(3))
            if kind:
                bits += self.index_tables[left[number]].cost(unzigzag(int(tiles.index[number])))
        return bits

    def get(self, decoder: Decoder, count: int, columns: int) -> Tiles:
        """Decode `count` tiles of a photo with `columns` tiles per row."""
        depth = self.expected.shape[1]
        tiles = Tiles(
            np.zeros(count, np.int64),
            np.zeros((count, 3), np.int64),
            np.zeros(count, np.int64),
            np.zeros((count, depth), np.int16),
        )
        read = _TileDecoder(self, decoder, tiles, columns)
        for number in range(count):
            read.tile(number)
        return tiles


class _TileDecoder:
    """State of `ContextModel.get`: contexts from the tiles decoded so far."""

    def __init__(self, model: ContextModel, decoder: Decoder, tiles: Tiles, columns: int) -> None:
        self.model, self.decoder, self.tiles, self.columns = model, decoder, tiles, columns
        self.offsets = (model.expected * RECENT).tolist()
        self.errors: list[list[int]] = []  # prediction errors of the means, of all tiles so far

    def tile(self, number: int) -> None:
        model, tiles, columns, get = self.model, self.tiles, self.columns, self.decoder.get
        left = number - 1 if number % columns else None
        up = number - columns if number >= columns else None
        kinds = [int(tiles.lengths[other]) if other is not None else 0 for other in (left, up)]
        kind = zigzag(get(model.length_tables[_length_context(*kinds)]))
        if kind >= len(model.sizes):
            raise CorruptFileError(f"a tile has length class {kind}; classes are 0 to {len(model.sizes) - 1}.")
        tiles.lengths[number] = kind
        self._means(number, left, up)
        size = model.sizes[kind]
        if not size:
            return
        before = int(tiles.index[left]) if left is not None and tiles.lengths[left] else model.bases
        index = zigzag(get(model.index_tables[before]))
        if index >= model.bases:
            raise CorruptFileError(f"a tile has basis {index}; bases are 0 to {model.bases - 1}.")
        tiles.index[number] = index
        values = self.decoder.get_adaptive(model.value_tables, self.offsets[kind][:size], START, RECENT)
        if max(values, default=0) > 32767 or min(values, default=0) < -32767:
            raise CorruptFileError("a coefficient exceeds 32767.")
        tiles.values[number, :size] = values

    def _means(self, number: int, left: int | None, up: int | None) -> None:
        model, means = self.model, self.tiles.means
        error = []
        for colour in range(3):
            sides = [abs(self.errors[other][colour]) if other is not None else 0 for other in (left, up)]
            context = min((sides[0] + sides[1]).bit_length(), MEAN_CONTEXTS - 1)
            error.append(self.decoder.get(model.mean_tables[colour][context]))
            around = [
                int(means[other, colour]) if other is not None else None
                for other in (left, up, number - self.columns - 1 if left is not None and up is not None else None)
            ]
            means[number, colour] = _predict(*around) + error[-1]
        self.errors.append(error)


def _predict(left: int | None, up: int | None, corner: int | None) -> int:
    """Median edge detector, as in JPEG-LS; the only neighbour at an edge; 0 for the first tile."""
    if left is None or up is None:
        return left if left is not None else up if up is not None else 0
    assert corner is not None
    low, high = min(left, up), max(left, up)
    return high if corner <= low else low if corner >= high else left + up - corner


def mean_errors(means: Integers, columns: int) -> Integers:
    """Prediction errors (T, 3) of the means of all tiles."""
    grid = means.reshape(-1, columns, 3)
    left, up, corner = (np.zeros_like(grid) for _ in range(3))
    left[:, 1:], up[1:], corner[1:, 1:] = grid[:, :-1], grid[:-1], grid[:-1, :-1]
    low, high = np.minimum(left, up), np.maximum(left, up)
    predicted = np.where(corner <= low, high, np.where(corner >= high, low, left + up - corner))
    predicted[0], predicted[:, 0] = left[0], up[:, 0]
    errors: Integers = (grid - predicted).reshape(-1, 3)
    return errors


def mean_contexts(errors: Integers, columns: int) -> Integers:
    """Contexts (T, 3) of the prediction errors: bits of the sum of those of the left and the upper tile."""
    grid = np.abs(errors).reshape(-1, columns, 3)
    total = np.zeros_like(grid)
    total[:, 1:] += grid[:, :-1]
    total[1:] += grid[:-1]
    bits = np.zeros_like(total)
    for power in range(MEAN_CONTEXTS - 1):
        bits += total >= 1 << power
    contexts: Integers = bits.reshape(-1, 3)
    return contexts


def _length_context(left: int, up: int) -> int:
    return (left + up + 1) // 2


def length_contexts(lengths: Integers, columns: int) -> Integers:
    """Contexts (T,) of the length classes: the mean of those of the left and the upper tile, 0 where there is none."""
    grid = lengths.reshape(-1, columns)
    total = np.ones_like(grid)
    total[:, 1:] += grid[:, :-1]
    total[1:] += grid[:-1]
    contexts: Integers = total.reshape(-1) // 2
    return contexts


def index_contexts(tiles: Tiles, columns: int, bases: int) -> Integers:
    """Contexts (T,) of the bases: the basis of the left tile, or `bases` if it has none."""
    own = np.where(tiles.lengths > 0, tiles.index, bases).reshape(-1, columns)
    left = np.full_like(own, bases)
    left[:, 1:] = own[:, :-1]
    contexts: Integers = left.reshape(-1)
    return contexts


def value_contexts(model: ContextModel, tiles: Tiles) -> Integers:
    """Table number (T, D) of every value; numbers beyond the length of a tile are not used."""
    magnitudes = np.abs(tiles.values).astype(np.int64)
    contexts = model.expected[tiles.lengths] * RECENT
    running = np.full(len(magnitudes), START)
    for position in range(max(np.array(model.sizes)[tiles.lengths], default=0)):
        contexts[:, position] += np.searchsorted(_THRESHOLDS, running, "right")
        running += ((magnitudes[:, position] << 8) - running) >> 4
    return contexts

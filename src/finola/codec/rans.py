"""rANS entropy coder in integer arithmetic with 16-bit words: the bytes are identical on every machine."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

import numpy as np

from finola.errors import CorruptFileError, InputError

PRECISION = 15
TOTAL = 1 << PRECISION
"""Sum of the frequencies of a table."""

LOWEST = 1 << 16
"""The state stays in [LOWEST, 2**32); its initial and final value is LOWEST."""

EXPONENTS = 24
"""Maximum run of zeros in an escape: values are within ±(2**24 - 1), and decoding of corrupt data terminates."""

Span = tuple[int, int, int, int]
"""Encoder entry of a symbol: the state at which it overflows, its frequency, TOTAL − frequency, and its start."""

_LIMIT = 1 << EXPONENTS
_MASK = TOTAL - 1
_ENDS_EARLY = "the coded data ends before the last value; the data is damaged or truncated."


class Table:
    """Frequencies of the values 0, -1, 1, -2, 2, …; the last is the escape, after which any other value follows.

    >>> table = Table(frequencies([0.6, 0.2, 0.15, 0.05]))
    >>> encoder = Encoder()
    >>> encoder.put_many([table] * 4, [0, -1, 1, 1000])
    >>> decoder = Decoder(encoder.finish())
    >>> decoder.get_many([table] * 4)
    [0, -1, 1, 1000]
    >>> decoder.finish()
    """

    def __init__(self, frequencies: Sequence[int]) -> None:
        self.frequencies = tuple(int(frequency) for frequency in frequencies)
        if min(self.frequencies, default=0) < 1 or sum(self.frequencies) != TOTAL:
            raise InputError(
                f"invalid table of {len(self.frequencies)} frequencies with sum {sum(self.frequencies)} and minimum "
                f"{min(self.frequencies, default=0)}: each must be at least 1, and the sum must be {TOTAL}."
            )
        starts = list(accumulate(self.frequencies[:-1], initial=0))
        spans = list(map(_span, starts, self.frequencies))
        self.direct = len(spans) - 1
        self.escape = spans[-1]
        self.spans = {unzigzag(symbol): span for symbol, span in enumerate(spans[:-1])}
        values: list[int | None] = [*self.spans, None]
        self.rows = list(zip(values, self.frequencies, starts, strict=True))  # None is the escape

    @cached_property
    def symbols(self) -> bytes | array[int]:
        """Symbol of each of the 2**15 slots."""
        symbols = np.repeat(np.arange(len(self.frequencies)), self.frequencies)
        if self.direct < 256:
            return symbols.astype(np.uint8).tobytes()
        return array("H", symbols.astype(np.uint16).tobytes())

    @cached_property
    def costs(self) -> list[float]:
        """Bits of the values that are coded without escape: 0, -1, 1, -2, …"""
        return [PRECISION - math.log2(frequency) for frequency in self.frequencies[:-1]]

    def cost(self, value: int) -> float:
        """Number of bits of `value`.

        >>> Table([2**14, 2**13, 2**13]).cost(0), Table([2**14, 2**13, 2**13]).cost(1)
        (1.0, 3.0)
        """
        symbol = zigzag(value)
        if symbol < self.direct:
            return self.costs[symbol]
        exponent = (symbol - self.direct + 1).bit_length() - 1
        return PRECISION - math.log2(self.frequencies[-1]) + 2 * exponent + 1


class Encoder:
    """Buffers symbols; `finish` encodes them in reverse order, as rANS requires."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def put(self, table: Table, value: int) -> None:
        span = table.spans.get(value)
        if span is None:
            self._put_escaped(table, value)
        else:
            self._spans.append(span)

    def put_many(self, tables: Iterable[Table], values: Iterable[int]) -> None:
        """Call `put` for each pair of table and value."""
        append = self._spans.append
        for table, value in zip(tables, values, strict=True):
            span = table.spans.get(value)
            if span is None:
                self._put_escaped(table, value)
            else:
                append(span)

    def put_bits(self, value: int, count: int) -> None:
        """Encode `count` uniformly distributed bits, highest first, in groups of at most 15."""
        if not 0 <= value < 1 << count:
            raise InputError(f"{value} is out of range for {count} bits; it must be 0 to {(1 << count) - 1}.")
        while count > 0:
            group = min(count, PRECISION)
            count -= group
            frequency = TOTAL >> group
            self._spans.append(_span((value >> count & (1 << group) - 1) * frequency, frequency))

    def finish(self) -> bytes:
        """Encode the buffered symbols to bytes: the initial state of the decoder, then its words."""
        words: array[int] = array("H")
        append = words.append
        state = LOWEST
        for limit, frequency, rest, start in reversed(self._spans):
            if state >= limit:
                append(state & 0xFFFF)
                state >>= 16
            state += state // frequency * rest + start
        words.reverse()
        if sys.byteorder == "big":
            words.byteswap()
        return state.to_bytes(4, "little") + words.tobytes()

    def _put_escaped(self, table: Table, value: int) -> None:
        if abs(value) >= _LIMIT:
            raise InputError(f"{value} cannot be encoded; values must be {1 - _LIMIT} to {_LIMIT - 1}.")
        excess = zigzag(int(value)) - table.direct + 1
        exponent = excess.bit_length() - 1
        self._spans.append(table.escape)
        for _ in range(exponent):
            self.put_bits(0, 1)
        self.put_bits(1, 1)
        self.put_bits(excess - (1 << exponent), exponent)


class Decoder:
    """Decodes the output of an `Encoder`, given the same tables in the same order.

    Corrupt data raises `CorruptFileError` or gives wrong values. Time and memory are bounded as for valid data of the
    same length.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < 4 or len(data) % 2:
            raise CorruptFileError(f"the coded data has {len(data)} bytes; the length must be even and at least 4.")
        self._state = int.from_bytes(data[:4], "little")
        if self._state < LOWEST:
            raise CorruptFileError(f"the coded data has initial state {self._state}; it must be at least {LOWEST}.")
        self._words: array[int] = array("H", data[4:])
        if sys.byteorder == "big":
            self._words.byteswap()
        self._words.reverse()

    def get(self, table: Table) -> int:
        state = self._state
        slot = state & _MASK
        value, frequency, start = table.rows[table.symbols[slot]]
        self._state = state = frequency * (state >> PRECISION) + slot - start
        if state < LOWEST:
            self._refill()
        return self._get_escaped(table) if value is None else value

    def get_many(self, tables: Iterable[Table]) -> list[int]:
        """Call `get` for each table."""
        state, next_word = self._state, self._words.pop
        values: list[int] = []
        append = values.append
        try:
            for table in tables:
                slot = state & _MASK
                value, frequency, start = table.rows[table.symbols[slot]]
                state = frequency * (state >> PRECISION) + slot - start
                if state < LOWEST:
                    state = state << 16 | next_word()
                if value is None:
                    self._state = state
                    value = self._get_escaped(table)
                    state = self._state
                append(value)
        except IndexError:
            raise CorruptFileError(_ENDS_EARLY) from None
        self._state = state
        return values

    def get_adaptive(self, tables: Sequence[Table], offsets: Iterable[int], mean: int, contexts: int) -> list[int]:
        """Decode one value per offset, from the table `offset` + context of the running mean of the magnitudes.

        `mean` is the running mean before the first value, in units of 1/256; each value moves it by a sixteenth of the
        difference. The context is its number of bits minus 4, limited to 0 … `contexts` − 1.
        """
        state, next_word, last = self._state, self._words.pop, contexts - 1
        values: list[int] = []
        append = values.append
        try:
            for offset in offsets:
                context = mean.bit_length() - 4
                table = tables[offset + (0 if context < 0 else last if context > last else context)]
                slot = state & _MASK
                value, frequency, start = table.rows[table.symbols[slot]]
                state = frequency * (state >> PRECISION) + slot - start
                if state < LOWEST:
                    state = state << 16 | next_word()
                if value is None:
                    self._state = state
                    value = self._get_escaped(table)
                    state = self._state
                mean += ((abs(value) << 8) - mean) >> 4
                append(value)
        except IndexError:
            raise CorruptFileError(_ENDS_EARLY) from None
        self._state = state
        return values

    def get_bits(self, count: int) -> int:
        """Decode `count` bits written by `Encoder.put_bits`."""
        value = 0
        while count > 0:
            group = min(count, PRECISION)
            count -= group
            shift = PRECISION - group
            slot = self._state & _MASK
            value = value << group | slot >> shift
            self._state = (self._state >> PRECISION << shift) + (slot & (1 << shift) - 1)
            if self._state < LOWEST:
                self._refill()
        return value

    def finish(self) -> None:
        """Check that all data has been consumed; raises `CorruptFileError` otherwise."""
        if self._state != LOWEST or self._words:
            raise CorruptFileError(
                f"{len(self._words)} words and state {self._state} remain after the last value, "
                f"instead of 0 words and state {LOWEST}."
            )

    def _refill(self) -> None:
        if not self._words:
            raise CorruptFileError(_ENDS_EARLY)
        self._state = self._state << 16 | self._words.pop()

    def _get_escaped(self, table: Table) -> int:
        exponent = 0
        while not self.get_bits(1):
            exponent += 1
            if exponent > EXPONENTS:
                raise CorruptFileError(f"an escaped value has more than {EXPONENTS} bits.")
        return unzigzag((1 << exponent) + self.get_bits(exponent) - 1 + table.direct)


def zigzag(value: int) -> int:
    """0, -1, 1, -2, 2, … → 0, 1, 2, 3, 4, …"""
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(symbol: int) -> int:
    """The inverse of `zigzag`."""
    return -(symbol + 1 >> 1) if symbol & 1 else symbol >> 1


def frequencies(probabilities: Sequence[float]) -> list[int]:
    """Round probabilities to integer frequencies of at least 1 with sum 2**15, by the largest remainder method.

    The arithmetic is exact, so the result is the same on every machine.

    >>> frequencies([0.75, 0.25, 0.0])
    [24575, 8192, 1]
    """
    if not 1 <= len(probabilities) <= TOTAL:
        raise InputError(f"a table must have 1 to {TOTAL} probabilities, not {len(probabilities)}.")
    if not all(math.isfinite(p) and p >= 0 for p in probabilities) or not any(probabilities):
        raise InputError("probabilities must be finite and non-negative, and at least one must be positive.")
    shares = {symbol: Fraction(float(p)) for symbol, p in enumerate(probabilities)}
    result = [1] * len(shares)
    while True:  # symbols below 1 are fixed at 1, which may move others below 1
        scale = (TOTAL - len(result) + len(shares)) / sum(shares.values())
        above = {symbol: share for symbol, share in shares.items() if share * scale >= 1}
        if len(above) == len(shares):
            break
        shares = above
    for symbol, share in shares.items():
        result[symbol] = int(share * scale)
    by_remainder = sorted(shares, key=lambda symbol: (result[symbol] - shares[symbol] * scale, symbol))
    for symbol in by_remainder[: TOTAL - sum(result)]:
        result[symbol] += 1
    return result


def _span(start: int, frequency: int) -> Span:
    return frequency << 32 - PRECISION, frequency, TOTAL - frequency, start

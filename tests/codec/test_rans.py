from __future__ import annotations

import math
import random
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finola.codec.rans import LOWEST, TOTAL, Decoder, Encoder, Table, frequencies, unzigzag, zigzag
from finola.errors import CorruptFileError, InputError

weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(any)
tables = st.one_of(weights, st.integers(250, 300).map(lambda count: [1.0] * count)).map(frequencies).map(Table)
values = st.one_of(st.integers(-4, 4), st.integers(-200, 200), st.integers(-(2**23), 2**23))
relaxed = settings(max_examples=60)


def encoded(tables: list[Table], values: list[int]) -> bytes:
    encoder = Encoder()
    encoder.put_many(tables, values)
    return encoder.finish()


def textbook(data: bytes, frequencies: list[int], count: int) -> list[int]:
    """Straightforward decoder that follows docs/format.md."""
    state = int.from_bytes(data[:4], "little")
    words = [int.from_bytes(data[i : i + 2], "little") for i in range(4, len(data), 2)]

    def symbol(frequencies: list[int]) -> int:
        nonlocal state
        slot = state % 2**15
        starts = [0, *accumulate(frequencies)]
        s = next(s for s, following in enumerate(starts[1:]) if slot < following)
        state = frequencies[s] * (state // 2**15) + slot - starts[s]
        if state < 2**16:
            state = state * 2**16 + words.pop(0)
        return s

    def bits(count: int) -> int:
        value = 0
        while count > 0:
            group = min(count, 15)
            value = value * 2**group + symbol([2 ** (15 - group)] * 2**group)
            count -= group
        return value

    result = []
    for _ in range(count):
        s = symbol(frequencies)
        if s == len(frequencies) - 1:
            zeros = 0
            while bits(1) == 0:
                zeros += 1
            s += 2**zeros + bits(zeros) - 1
        result.append(s // 2 if s % 2 == 0 else -(s + 1) // 2)
    assert state == 2**16 and not words
    return result


@relaxed
@given(st.lists(st.tuples(tables, values), max_size=60))
def test_decoding_inverts_encoding(pairs):
    chosen, numbers = [table for table, _ in pairs], [value for _, value in pairs]
    decoder = Decoder(encoded(chosen, numbers))
    assert decoder.get_many(chosen) == numbers
    decoder.finish()


@relaxed
@given(tables, st.lists(st.tuples(values, st.integers(0, 40), st.integers(0, 2**40 - 1))))
def test_single_values_mixed_with_uniform_bits(table, rows):
    encoder = Encoder()
    for value, count, bits in rows:
        encoder.put(table, value)
        encoder.put_bits(bits % 2**count, count)
    decoder = Decoder(encoder.finish())
    for value, count, bits in rows:
        assert decoder.get(table) == value
        assert decoder.get_bits(count) == bits % 2**count
    decoder.finish()


@relaxed
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12).map(frequencies), st.lists(values, max_size=20))
def test_documented_decoder_gives_the_same_values(table, numbers):
    assert textbook(encoded([Table(table)] * len(numbers), numbers), table, len(numbers)) == numbers


def test_bytes_of_the_format_are_stable():
    table = Table([16384, 6554, 4915, 3277, 1638])
    numbers = [0, -1, 1, 0, -2, 2, -300, 0]
    encoder = Encoder()
    encoder.put_many([table] * 8, numbers)
    encoder.put_bits(0xBEEF, 16)
    assert encoder.finish().hex() == "9b98f80016fe37150040"
    decoder = Decoder(bytes.fromhex("9b98f80016fe37150040"))
    assert decoder.get_many([table] * 8) == numbers and decoder.get_bits(16) == 0xBEEF
    decoder.finish()


def test_empty_stream_has_four_bytes():
    data = Encoder().finish()
    assert data == LOWEST.to_bytes(4, "little")
    Decoder(data).finish()


@pytest.mark.parametrize("decay", [0.15, 0.3, 1, 6, 40])
def test_size_is_close_to_the_entropy(decay):
    table = Table(frequencies([math.exp(-symbol / decay) for symbol in range(60)]))
    symbols = random.Random(0).choices(range(60), weights=table.frequencies, k=50_000)
    numbers = [unzigzag(symbol) for symbol in symbols]
    bits = sum(table.cost(number) for number in numbers)
    assert bits / 8 - 1 <= len(encoded([table] * len(numbers), numbers)) <= 1.001 * bits / 8 + 4


@relaxed
@given(tables, values)
def test_cost_follows_from_the_frequencies(table, value):
    if zigzag(value) < len(table.costs):
        assert table.cost(value) == table.costs[zigzag(value)]
    else:
        bits = 2 * int(math.log2(zigzag(value) - len(table.costs) + 1)) + 1
        assert table.cost(value) == pytest.approx(bits - math.log2(table.frequencies[-1] / TOTAL))


def test_zigzag():
    assert [zigzag(value) for value in (0, -1, 1, -2, 2)] == [0, 1, 2, 3, 4]
    assert all(unzigzag(zigzag(value)) == value for value in range(-300, 300))


@relaxed
@given(weights)
def test_frequencies_approximate_the_probabilities(weights):
    result = frequencies(weights)
    assert sum(result) == TOTAL and min(result) >= 1
    total = math.fsum(weights)
    for weight, frequency in zip(weights, result, strict=True):
        assert abs(frequency - TOTAL * weight / total) <= 1 + len(weights)
    by_weight = sorted(zip(weights, result, strict=True))
    assert all(a == b or low <= high for (a, low), (b, high) in pairwise(by_weight))


def test_frequencies_are_exact_where_possible():
    assert frequencies([0.5, 0.25, 0.25]) == [2**14, 2**13, 2**13]
    assert frequencies([1, 0, 0]) == [TOTAL - 2, 1, 1]
    assert frequencies([7.0]) == [TOTAL]
    assert frequencies([1.0] * TOTAL) == [1] * TOTAL
    assert frequencies([1.0, 1.0, 1.0]) == [10923, 10923, 10922]


@pytest.mark.parametrize(
    "wrong", [[], [0.0, 0.0], [1.0, -0.1], [float("nan")], [float("inf"), 1.0], [1.0] * (TOTAL + 1)]
)
def test_invalid_probabilities_raise(wrong):
    with pytest.raises(InputError):
        frequencies(wrong)


@pytest.mark.parametrize("wrong", [[], [TOTAL - 1], [TOTAL, 0], [TOTAL + 1, -1]])
def test_invalid_tables_raise(wrong):
    with pytest.raises(InputError, match=f"{len(wrong)} .* {sum(wrong)} "):
        Table(wrong)


def test_values_out_of_range_raise():
    table = Table([TOTAL])
    for value in (2**24 - 1, 1 - 2**24):
        assert Decoder(encoded([table], [value])).get(table) == value
    for value in (2**24, -(2**24)):
        with pytest.raises(InputError, match=str(value)):
            Encoder().put(table, value)
    for value, count in ((4, 2), (-1, 3), (1, 0)):
        with pytest.raises(InputError, match=f"{value} .*{count} bits"):
            Encoder().put_bits(value, count)


@pytest.mark.parametrize("data", [b"", b"\0\0\1", b"\0\0\1\0\0", b"\xff\xff\0\0"])
def test_invalid_streams_raise(data):
    with pytest.raises(CorruptFileError):
        Decoder(data)


def test_every_truncation_and_extension_raises():
    table = Table(frequencies([0.4, 0.3, 0.2, 0.1]))
    numbers = [value for value in range(-30, 30)]
    data = encoded([table] * 60, numbers)
    for length in range(len(data)):
        with pytest.raises(CorruptFileError):
            Decoder(data[:length]).get_many([table] * 60)
    for more in (b"\0\0", b"\0\0\1\0"):
        decoder = Decoder(data + more)
        assert decoder.get_many([table] * 60) == numbers
        with pytest.raises(CorruptFileError, match=f"{len(more) // 2} words"):
            decoder.finish()


@relaxed
@given(tables, st.binary(max_size=80), st.booleans())
def test_random_bytes_decode_or_raise_corrupt_file_error(table, data, in_bulk):
    try:
        decoder = Decoder(data)
        found = decoder.get_many([table] * 1000) if in_bulk else [decoder.get(table) for _ in range(1000)]
        assert all(abs(value) <= 2**24 + TOTAL for value in found)
        decoder.get_bits(40)
        decoder.finish()
    except CorruptFileError as error:
        assert str(error).endswith(".")


def test_unterminated_escape_raises():
    encoder = Encoder()
    encoder.put_bits(0, 40)
    with pytest.raises(CorruptFileError, match="24"):
        Decoder(encoder.finish()).get(Table([TOTAL]))

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finola.codec.container import MAX_BLOCK, MAX_COMPRESSED, Container, unpack
from finola.errors import CorruptFileError, InputError

PLAIN = Container("waves0", b"hash", width=640, height=480, step=20, payload=b"coded")
FULL = replace(PLAIN, grey=True, mode=1, icc=b"a colour profile" * 4, exif=b"taken at noon")
SIZES = slice(17, 21)  # bytes of the width and height of PLAIN
FLAGS = 5
BLOCKS = 23  # offset of ICC and EXIF
relaxed = settings(max_examples=200)

containers = st.builds(
    Container,
    model=st.from_regex(r"[a-z0-9.@:/+_-]{1,32}", fullmatch=True),
    model_hash=st.binary(min_size=4, max_size=4),
    width=st.integers(1, 2**14),
    height=st.integers(1, 2**14),
    step=st.integers(0, 255),
    mode=st.integers(0, 1),
    grey=st.booleans(),
    icc=st.none() | st.binary(max_size=300),
    exif=st.none() | st.binary(max_size=300),
    payload=st.binary(max_size=300),
)


def sealed(body: bytes | bytearray) -> bytes:
    """`body` with a valid checksum, as an attacker would write it."""
    return bytes(body) + zlib.crc32(body).to_bytes(4, "little")


def with_block(block: bytes, flag: int = 2) -> bytes:
    """PLAIN with `block` in place of its ICC profile."""
    body = bytearray(PLAIN.pack()[:-4])
    body[FLAGS] = flag
    body[BLOCKS:BLOCKS] = block
    return sealed(body)


def varint(value: int, count: int) -> bytes:
    """`value` in `count` bytes, which need not be the shortest form."""
    return bytes([value >> 7 * i & 0x7F | 0x80 * (i < count - 1) for i in range(count)])


@relaxed
@given(containers)
def test_unpack_inverts_pack(container):
    data = container.pack()
    assert unpack(data) == container
    assert len(data) == container.overhead() + len(container.payload)


def test_bytes_of_the_format_are_stable():
    assert PLAIN.pack().hex(" ") == (
        "89 46 4e 4c 01 00 06 77 61 76 65 73 30 68 61 73 68 80 05 e0 03 14 00 63 6f 64 65 64 2c 8a e9 f1"
    )


def test_header_has_at_most_32_bytes():
    assert replace(PLAIN, width=16383, height=16383).overhead() <= 32


@pytest.mark.parametrize("container", [PLAIN, FULL], ids=["plain", "full"])
def test_every_changed_byte_and_truncation_raises(container):
    data = container.pack()
    for position in range(len(data)):
        for change in range(1, 256):
            changed = bytearray(data)
            changed[position] ^= change
            with pytest.raises(CorruptFileError):
                unpack(bytes(changed))
    for length in range(len(data)):
        with pytest.raises(CorruptFileError):
            unpack(data[:length])


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"", "x.finola"),
        (b"\x89PNG\r\n", "x.finola.*89504e47.*89464e4c"),
        (b"\x89FNL\x03", "version 3"),
        (b"\x89FNL", "checksum"),
        (PLAIN.pack()[:-1], "checksum"),
        (sealed(b"\x89FNL\x01"), r"\b1 bytes.*\b0\b"),
    ],
)
def test_magic_version_checksum_and_fields_are_checked_in_this_order(data, values):
    with pytest.raises(CorruptFileError, match=values):
        unpack(data, "x.finola")


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        (varint(60000, 3) * 2, "60000x60000"),
        (b"\x00\x01", r"\b0x1\b"),
        (b"\x01\x00", r"\b1x0\b"),
        (varint(2**24 + 1, 4) + b"\x01", "16777217x1"),
        (varint(2**24, 4) + b"\x11", "16777216x17"),
        (varint(1, 2) + b"\x01", r"\b1\b.*\b2 bytes"),
        (varint(640, 3) + b"\x01", r"\b640\b.*\b3 bytes"),
        (varint(640, 5) + b"\x01", "4 bytes"),
        (b"\xff" * 200, "4 bytes"),
    ],
)
def test_invalid_sizes_with_valid_checksum_raise(sizes, values):
    body = bytearray(PLAIN.pack()[:-4])
    body[SIZES] = sizes
    with pytest.raises(CorruptFileError, match=values):
        unpack(sealed(body))


@pytest.mark.parametrize(
    ("position", "byte", "values"),
    [
        *[(FLAGS, 1 << bit, f"{1 << bit:#04x}") for bit in range(3, 8)],
        (6, 0, "''"),
        (6, 33, "33 bytes"),
        (7, ord("W"), "Waves0"),
        (7, 0xE9, "éaves0"),
        (22, 2, "mode 2"),
        (22, 255, "mode 255"),
    ],
)
def test_invalid_fields_with_valid_checksum_raise(position, byte, values):
    body = bytearray(PLAIN.pack()[:-4])
    body[position] = byte
    with pytest.raises(CorruptFileError, match=values):
        unpack(sealed(body))


@pytest.mark.parametrize("flag", [2, 4], ids=["icc", "exif"])
def test_invalid_blocks_raise(flag):
    short = zlib.compress(b"profile")
    name = {2: "ICC profile", 4: "EXIF"}[flag]
    cases = [
        (bytes([5]) + b"hello", name),
        (bytes([0]), f"{name}.* 0 bytes"),
        (bytes([len(short) - 2]) + short, f"{name}.* {len(short) - 2} bytes"),
        (bytes([len(short) + 3]) + short + b"abc", f"{name}.* {len(short) + 3} bytes"),
        (bytes([127]) + short, "127 bytes"),
        (varint(MAX_COMPRESSED, 4) + short, "4194304 bytes"),
        (varint(MAX_COMPRESSED + 1, 4) + short, f"{name}.*4194305.*4194304"),
    ]
    for stored, values in cases:
        with pytest.raises(CorruptFileError, match=values):
            unpack(with_block(stored, flag))


def test_decompressed_blocks_are_bounded():
    largest = replace(PLAIN, icc=bytes(MAX_BLOCK))
    assert unpack(largest.pack()) == largest
    for size in (MAX_BLOCK + 1, 4 * MAX_BLOCK):
        bomb = zlib.compress(bytes(size))
        with pytest.raises(CorruptFileError, match="16777216 bytes"):
            unpack(with_block(varint(len(bomb), 2 + (len(bomb) >= 2**14)) + bomb))


@relaxed
@given(st.data())
def test_mutations_with_valid_checksum_parse_or_raise_corrupt_file_error(data):
    body = bytearray(data.draw(st.sampled_from([PLAIN, FULL])).pack()[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(body)))
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        container = unpack(sealed(body))
    except CorruptFileError as error:
        assert str(error).endswith(".")
    else:
        assert unpack(container.pack()) == container


@relaxed
@given(st.binary(max_size=60))
def test_arbitrary_bytes_parse_or_raise_corrupt_file_error(data):
    for candidate in (data, sealed(b"\x89FNL\x01" + data)):
        try:
            assert isinstance(unpack(candidate), Container)
        except CorruptFileError as error:
            assert str(error).endswith(".")


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"model": ""}, "''"),
        ({"model": "a" * 33}, "a" * 33),
        ({"model": "waves\n"}, r"waves\\n"),
        ({"model_hash": b"abc"}, "3 bytes.*4"),
        ({"width": 0}, "0x480"),
        ({"height": 2**24 + 1}, "640x16777217"),
        ({"width": 60000, "height": 60000}, "60000x60000"),
        ({"step": 256}, "256"),
        ({"mode": 3}, "mode 3"),
    ],
)
def test_invalid_fields_cannot_be_constructed(change, values):
    with pytest.raises(InputError, match=values) as caught:
        replace(PLAIN, **change)
    assert not isinstance(caught.value, CorruptFileError)


@pytest.mark.parametrize(
    "block", [bytes(MAX_BLOCK + 1), random.Random(0).randbytes(MAX_COMPRESSED)], ids=["plain", "compressed"]
)
def test_oversized_blocks_cannot_be_written(block):
    with pytest.raises(InputError, match=f"EXIF.*{len(block)}"):
        replace(PLAIN, exif=block).pack()

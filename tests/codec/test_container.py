from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finola.codec.container import MAX_BLOCK, MAX_COMPRESSED, Container, CorruptFileError, unpack

PLAIN = Container("waves0", b"hash", width=640, height=480, step=20, payload=b"coded")
FULL = replace(PLAIN, grey=True, mode=1, icc=b"a colour profile" * 4, exif=b"taken at noon")
SIZES = slice(17, 21)  # where PLAIN has its width and height
FLAGS = 5
BLOCKS = 23  # where ICC and EXIF begin
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
    """`body` under a checksum that matches, as someone who means harm would write it."""
    return bytes(body) + zlib.crc32(body).to_bytes(4, "little")


def with_block(block: bytes, flag: int = 2) -> bytes:
    """PLAIN with `block` where its ICC profile would stand."""
    body = bytearray(PLAIN.pack()[:-4])
    body[FLAGS] = flag
    body[BLOCKS:BLOCKS] = block
    return sealed(body)


def varint(value: int, count: int) -> bytes:
    """`value` in `count` bytes, be they its shortest form or not."""
    return bytes([value >> 7 * i & 0x7F | 0x80 * (i < count - 1) for i in range(count)])


@relaxed
@given(containers)
def test_unpack_undoes_pack(container):
    data = container.pack()
    assert unpack(data) == container
    assert len(data) == container.overhead() + len(container.payload)


def test_the_format_does_not_drift():
    assert PLAIN.pack().hex(" ") == (
        "89 46 4e 4c 01 00 06 77 61 76 65 73 30 68 61 73 68 80 05 e0 03 14 00 63 6f 64 65 64 2c 8a e9 f1"
    )


def test_a_header_takes_at_most_32_bytes():
    assert replace(PLAIN, width=16383, height=16383).overhead() <= 32


@pytest.mark.parametrize("container", [PLAIN, FULL], ids=["plain", "full"])
def test_every_change_of_a_byte_and_every_truncation_is_refused(container):
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
    ("data", "sentence"),
    [
        (b"", r"^x.finola is not a \.finola file"),
        (b"\x89PNG\r\n", r"^x.finola is not a \.finola file: its first bytes are '89504e47', not '89464e4c'\.$"),
        (b"\x89FNL\x02", "version 2"),
        (b"\x89FNL", "its checksum does not match: the file is damaged or cut short"),
        (PLAIN.pack()[:-1], "its checksum does not match: the file is damaged or cut short"),
        (sealed(b"\x89FNL\x01"), "asks for 1 bytes where 0 are left"),
    ],
)
def test_what_is_wrong_is_said_in_this_order(data, sentence):
    with pytest.raises(CorruptFileError, match=sentence):
        unpack(data, "x.finola")


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (varint(60000, 3) * 2, "60000x60000"),
        (b"\x00\x01", "0x1 pixels"),
        (b"\x01\x00", "1x0 pixels"),
        (varint(2**24 + 1, 4) + b"\x01", "16777217x1 pixels"),
        (varint(2**24, 4) + b"\x11", "16777216x17 pixels"),
        (varint(1, 2) + b"\x01", "shortest form"),
        (varint(640, 3) + b"\x01", "shortest form"),
        (varint(640, 5) + b"\x01", "more than 4 bytes"),
        (b"\xff" * 200, "more than 4 bytes"),
    ],
)
def test_sizes_no_photo_has_are_refused_under_a_right_checksum(sizes, sentence):
    body = bytearray(PLAIN.pack()[:-4])
    body[SIZES] = sizes
    with pytest.raises(CorruptFileError, match=sentence):
        unpack(sealed(body))


@pytest.mark.parametrize(
    ("position", "byte", "sentence"),
    [
        *[(FLAGS, 1 << bit, "flags") for bit in range(3, 8)],
        (6, 0, "model's name is ''"),
        (6, 33, "33 bytes where"),
        (7, ord("W"), "Waves0"),
        (7, 0xE9, "model's name"),
        (22, 2, "mode 2"),
        (22, 255, "mode 255"),
    ],
)
def test_fields_out_of_range_are_refused_under_a_right_checksum(position, byte, sentence):
    body = bytearray(PLAIN.pack()[:-4])
    body[position] = byte
    with pytest.raises(CorruptFileError, match=sentence):
        unpack(sealed(body))


@pytest.mark.parametrize("flag", [2, 4], ids=["icc", "exif"])
def test_blocks_that_are_not_what_they_say_are_refused(flag):
    short = zlib.compress(b"profile")
    cases = [
        (bytes([5]) + b"hello", "cannot be decompressed"),
        (bytes([0]), "does not end where its length says"),
        (bytes([len(short) - 2]) + short, "does not end where its length says"),
        (bytes([len(short) + 3]) + short + b"abc", "does not end where its length says"),
        (bytes([127]) + short, "asks for 127 bytes"),
        (varint(MAX_COMPRESSED, 4) + short, "asks for 4194304 bytes"),
        (varint(MAX_COMPRESSED + 1, 4) + short, "4194305 compressed bytes"),
    ]
    for stored, sentence in cases:
        with pytest.raises(CorruptFileError, match=sentence):
            unpack(with_block(stored, flag))


def test_a_block_inflates_to_its_bound_and_no_further():
    largest = replace(PLAIN, icc=bytes(MAX_BLOCK))
    assert unpack(largest.pack()) == largest
    for size in (MAX_BLOCK + 1, 4 * MAX_BLOCK):
        bomb = zlib.compress(bytes(size))
        with pytest.raises(CorruptFileError, match="more than 16777216 bytes"):
            unpack(with_block(varint(len(bomb), 2 + (len(bomb) >= 2**14)) + bomb))


@relaxed
@given(st.data())
def test_mutations_under_a_right_checksum_never_end_otherwise(data):
    body = bytearray(data.draw(st.sampled_from([PLAIN, FULL])).pack()[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(body)))
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        container = unpack(sealed(body))
    except CorruptFileError as error:
        assert str(error).startswith("the file cannot be read: ") and str(error).endswith(".")
    else:
        assert unpack(container.pack()) == container


@relaxed
@given(st.binary(max_size=60))
def test_any_bytes_behind_the_magic_never_end_otherwise(data):
    for candidate in (data, sealed(b"\x89FNL\x01" + data)):
        try:
            assert isinstance(unpack(candidate), Container)
        except CorruptFileError as error:
            assert str(error).endswith(".")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": ""}, "model's name is ''"),
        ({"model": "a" * 33}, "1 to 32 characters"),
        ({"model": "waves\n"}, "model's name"),
        ({"model_hash": b"abc"}, "3 bytes, not 4"),
        ({"width": 0}, "0x480 pixels"),
        ({"height": 2**24 + 1}, "640x16777217 pixels"),
        ({"width": 60000, "height": 60000}, "60000x60000 pixels"),
        ({"step": 256}, "index 256"),
        ({"mode": 2}, "mode 2"),
    ],
)
def test_a_container_that_could_not_be_read_is_not_made(change, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        replace(PLAIN, **change)
    assert not isinstance(caught.value, CorruptFileError)


@pytest.mark.parametrize(
    "block", [bytes(MAX_BLOCK + 1), random.Random(0).randbytes(MAX_COMPRESSED)], ids=["plain", "compressed"]
)
def test_a_block_that_could_not_be_read_is_not_written(block):
    with pytest.raises(ValueError, match="the EXIF has"):
        replace(PLAIN, exif=block).pack()

"""The container of a `.finola` file: a short header, optional ICC and EXIF, the payload, a checksum."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from finola.errors import CorruptFileError, InputError
from finola.files import read_file
from finola.locations import user_path

MAGIC = b"\x89FNL"
VERSIONS = (1, 2)  # 2: elastic codecs
MAX_SIDE = 2**24
MAX_PIXELS = 2**28
ENTROPY_CODED, FIXED_LENGTH, ELASTIC = 0, 1, 2
MAX_BLOCK, MAX_COMPRESSED = 2**24, 2**22  # bytes of ICC or EXIF, uncompressed and compressed

_GREY, _ICC, _EXIF = 1, 2, 4
_MODEL = re.compile(r"[a-z0-9.@:/+_-]{1,32}")
_VARINT_BYTES = 4  # 28 bits, sufficient for every field
_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class Container:
    """Contents of a `.finola` file.

    >>> container = Container("waves0", b"hash", width=640, height=480, step=20, payload=b"coded")
    >>> container.overhead(), unpack(container.pack()) == container
    (27, True)
    """

    model: str
    model_hash: bytes
    width: int
    height: int
    step: int  # index of the quantiser step
    mode: int = ENTROPY_CODED
    grey: bool = False
    icc: bytes | None = None
    exif: bytes | None = None
    payload: bytes = b""

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            raise InputError(f"invalid model name {self.model!r}: use 1 to 32 characters of a-z 0-9 . @ : / + _ -.")
        if len(self.model_hash) != 4:
            raise InputError(f"the model hash has {len(self.model_hash)} bytes, not 4.")
        if not (1 <= self.width <= MAX_SIDE and 1 <= self.height <= MAX_SIDE):
            raise InputError(f"the photo has {self.width}x{self.height} pixels; a side must be 1 to {MAX_SIDE}.")
        if self.width * self.height > MAX_PIXELS:
            raise InputError(f"the photo has {self.width}x{self.height} pixels; at most {MAX_PIXELS} are supported.")
        if not 0 <= self.step <= 255:
            raise InputError(f"the quantiser step has index {self.step}; it must be 0 to 255.")
        if self.mode not in (ENTROPY_CODED, FIXED_LENGTH, ELASTIC):
            raise InputError(f"unknown mode {self.mode}; it must be {ENTROPY_CODED}, {FIXED_LENGTH} or {ELASTIC}.")

    @property
    def version(self) -> int:
        """Version of the format that the file is written in."""
        return 2 if self.mode == ELASTIC else 1

    def pack(self) -> bytes:
        """Serialise to the bytes of a file."""
        body = self._header() + self.payload
        return body + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little")

    def overhead(self) -> int:
        """Number of bytes of the file besides the payload."""
        return len(self._header()) + _CHECKSUM_BYTES

    def _header(self) -> bytes:
        flags = _GREY * self.grey + _ICC * (self.icc is not None) + _EXIF * (self.exif is not None)
        model = self.model.encode("ascii")
        header = MAGIC + bytes([self.version, flags, len(model)]) + model + self.model_hash
        header += _varint(self.width) + _varint(self.height) + bytes([self.step, self.mode])
        for name, block in (("ICC profile", self.icc), ("EXIF", self.exif)):
            if block is not None:
                header += _deflated(name, block)
        return header


def unpack(data: bytes, name: str = "The file") -> Container:
    """Parse and validate the bytes of a file; raises `CorruptFileError`, with `name` in its message, if invalid."""
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptFileError(
            f"{name} is not a .finola file: it starts with {data[:4].hex()!r} instead of {MAGIC.hex()!r}."
        )
    try:
        return _parse(data)
    except ValueError as error:
        raise CorruptFileError(f"{name} cannot be read: {error}") from error


def read_container(file: str | Path | bytes | BinaryIO) -> Container:
    """Read and validate a `.finola` file, given as path, bytes or stream."""
    if isinstance(file, bytes):
        return unpack(file)
    if isinstance(file, str | Path):
        return unpack(read_file(user_path(file)), str(file))
    return unpack(file.read())


class _Reader:
    """Sequential reader of bytes that raises `CorruptFileError` at the end of the data."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            left = len(self.data) - self.position
            raise CorruptFileError(f"the header declares a field of {count} bytes, but only {left} are left.")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        """Read a LEB128 integer; only the shortest encoding is valid."""
        value = 0
        for index in range(_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if byte == 0 and index > 0:
                    raise CorruptFileError(
                        f"the header encodes {value} in {index + 1} bytes, not in the shortest form."
                    )
                return value
        raise CorruptFileError(f"the header has an integer of more than {_VARINT_BYTES} bytes.")


def _parse(data: bytes) -> Container:
    version = data[len(MAGIC) : len(MAGIC) + 1]
    if version and version[0] not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise CorruptFileError(f"format version {version[0]} is not supported; this release reads {known}.")
    body = data[:-_CHECKSUM_BYTES]
    if zlib.crc32(body) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little"):
        raise CorruptFileError("the checksum does not match; the file is damaged or truncated.")
    reader = _Reader(body, len(MAGIC) + 1)
    flags = reader.byte()
    if flags & ~(_GREY | _ICC | _EXIF):
        raise CorruptFileError(f"unknown flags {flags:#04x}; version {version[0]} defines none above {_EXIF:#04x}.")
    model = reader.take(reader.byte()).decode("latin-1")
    container = Container(
        model,
        reader.take(4),
        width=reader.varint(),
        height=reader.varint(),
        step=reader.byte(),
        mode=reader.byte(),
        grey=bool(flags & _GREY),
        icc=_inflated("ICC profile", reader) if flags & _ICC else None,
        exif=_inflated("EXIF", reader) if flags & _EXIF else None,
        payload=body[reader.position :],
    )
    if container.version != version[0]:
        raise CorruptFileError(f"mode {container.mode} does not exist in version {version[0]}.")
    return container


def _varint(value: int) -> bytes:
    """Encode as LEB128: seven bits per byte, lowest first, with the high bit set in all bytes but the last.

    >>> _varint(300).hex()
    'ac02'
    """
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _deflated(name: str, block: bytes) -> bytes:
    compressed = zlib.compress(block, 9)
    if len(block) > MAX_BLOCK or len(compressed) > MAX_COMPRESSED:
        raise InputError(
            f"the {name} has {len(block)} bytes, {len(compressed)} when compressed; "
            f"at most {MAX_BLOCK} and {MAX_COMPRESSED} are supported."
        )
    return _varint(len(compressed)) + compressed


def _inflated(name: str, reader: _Reader) -> bytes:
    length = reader.varint()
    if length > MAX_COMPRESSED:
        raise CorruptFileError(f"the {name} has {length} compressed bytes; at most {MAX_COMPRESSED} are supported.")
    inflater = zlib.decompressobj()
    try:
        block = inflater.decompress(reader.take(length), MAX_BLOCK + 1)
    except zlib.error as error:
        raise CorruptFileError(f"the {name} cannot be decompressed.") from error
    if len(block) > MAX_BLOCK:
        raise CorruptFileError(f"the {name} has more than {MAX_BLOCK} bytes.")
    if not inflater.eof or inflater.unused_data:
        raise CorruptFileError(f"the {name} does not end after its declared length of {length} bytes.")
    return block

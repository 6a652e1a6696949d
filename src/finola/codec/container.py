"""The container of a `.finola` file: a short header, optional ICC and EXIF, the payload, a checksum."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from finola.errors import CorruptFileError

MAGIC = b"\x89FNL"
VERSION = 1
MAX_SIDE = 2**24
MAX_PIXELS = 2**28
ENTROPY_CODED, FIXED_LENGTH = 0, 1
MAX_BLOCK, MAX_COMPRESSED = 2**24, 2**22  # bytes of ICC or EXIF, plain and as stored

_GREY, _ICC, _EXIF = 1, 2, 4
_MODEL = re.compile(r"[a-z0-9.@:/+_-]{1,32}")
_VARINT_BYTES = 4  # 28 bits: more than any number here needs
_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class Container:
    """What a `.finola` file holds.

    >>> container = Container("waves0", b"hash", width=640, height=480, step=20, payload=b"coded")
    >>> container.overhead(), unpack(container.pack()) == container
    (27, True)
    """

    model: str
    model_hash: bytes
    width: int
    height: int
    step: int  # index of the quantiser's step
    mode: int = ENTROPY_CODED
    grey: bool = False
    icc: bytes | None = None
    exif: bytes | None = None
    payload: bytes = b""

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            raise ValueError(f"the model's name is {self.model!r}: it has 1 to 32 characters of a-z 0-9 . @ : / + _ -.")
        if len(self.model_hash) != 4:
            raise ValueError(f"the model's hash has {len(self.model_hash)} bytes, not 4.")
        if not (1 <= self.width <= MAX_SIDE and 1 <= self.height <= MAX_SIDE):
            raise ValueError(f"the photo is {self.width}x{self.height} pixels: a side is 1 to {MAX_SIDE}.")
        if self.width * self.height > MAX_PIXELS:
            raise ValueError(f"the photo is {self.width}x{self.height} pixels: {MAX_PIXELS} in all are the most.")
        if not 0 <= self.step <= 255:
            raise ValueError(f"the quantiser's step has index {self.step}: it is 0 to 255.")
        if self.mode not in (ENTROPY_CODED, FIXED_LENGTH):
            raise ValueError(f"mode {self.mode} is not known: it is {ENTROPY_CODED} or {FIXED_LENGTH}.")

    def pack(self) -> bytes:
        """The file's bytes."""
        body = self._header() + self.payload
        return body + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little")

    def overhead(self) -> int:
        """Bytes of the file besides the payload."""
        return len(self._header()) + _CHECKSUM_BYTES

    def _header(self) -> bytes:
        flags = _GREY * self.grey + _ICC * (self.icc is not None) + _EXIF * (self.exif is not None)
        model = self.model.encode("ascii")
        header = MAGIC + bytes([VERSION, flags, len(model)]) + model + self.model_hash
        header += _varint(self.width) + _varint(self.height) + bytes([self.step, self.mode])
        for name, block in (("ICC profile", self.icc), ("EXIF", self.exif)):
            if block is not None:
                header += _deflated(name, block)
        return header


def unpack(data: bytes, name: str = "the file") -> Container:
    """The inverse of `Container.pack`; whatever else the bytes are raises `CorruptFileError`, which names `name`."""
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptFileError(
            f"{name} is not a .finola file: its first bytes are {data[:4].hex()!r}, not {MAGIC.hex()!r}."
        )
    try:
        return _parse(data)
    except ValueError as error:
        raise CorruptFileError(f"{name} cannot be read: {error}") from error


class _Reader:
    """Bytes from front to back, with a ValueError in place of a short read."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise ValueError(f"its header asks for {count} bytes where {len(self.data) - self.position} are left.")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        """LEB128, refused unless it is the shortest form."""
        value = 0
        for index in range(_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if byte == 0 and index > 0:
                    raise ValueError(f"a number in its header, {value}, is not written in its shortest form.")
                return value
        raise ValueError(f"a number in its header has more than {_VARINT_BYTES} bytes.")


def _parse(data: bytes) -> Container:
    version = data[len(MAGIC) : len(MAGIC) + 1]
    if version and version[0] != VERSION:
        raise ValueError(f"it has version {version[0]} of the format, and this release reads version {VERSION}.")
    body = data[:-_CHECKSUM_BYTES]
    if zlib.crc32(body) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little"):
        raise ValueError("its checksum does not match: the file is damaged or cut short.")
    reader = _Reader(body, len(MAGIC) + 1)
    flags = reader.byte()
    if flags & ~(_GREY | _ICC | _EXIF):
        raise ValueError(f"its flags are {flags:#04x}, and version {VERSION} knows none above {_EXIF:#04x}.")
    model = reader.take(reader.byte()).decode("latin-1")
    return Container(
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


def _varint(value: int) -> bytes:
    """LEB128: seven bits a byte, the lowest first, the high bit set on all but the last.

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
        raise ValueError(
            f"the {name} has {len(block)} bytes, {len(compressed)} when compressed: "
            f"{MAX_BLOCK} and {MAX_COMPRESSED} are the most."
        )
    return _varint(len(compressed)) + compressed


def _inflated(name: str, reader: _Reader) -> bytes:
    length = reader.varint()
    if length > MAX_COMPRESSED:
        raise ValueError(f"its {name} has {length} compressed bytes: {MAX_COMPRESSED} are the most.")
    inflater = zlib.decompressobj()
    try:
        block = inflater.decompress(reader.take(length), MAX_BLOCK + 1)
    except zlib.error as error:
        raise ValueError(f"its {name} cannot be decompressed.") from error
    if len(block) > MAX_BLOCK:
        raise ValueError(f"its {name} has more than {MAX_BLOCK} bytes.")
    if not inflater.eof or inflater.unused_data:
        raise ValueError(f"its {name} does not end where its length says.")
    return block

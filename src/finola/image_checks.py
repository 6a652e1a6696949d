"""Checks of opened image files before decoding: a photo costs what its pixels cost."""

import re
import struct

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH, TiffImageFile

from finola.errors import InputError

MAX_SCANS = 100
"""Maximum number of scans of a JPEG. Encoders write about ten; an empty one costs as much as all pixels."""

MAX_TILE_PIXELS = 2**22
"""Largest tile of a TIFF whose image is small: a decoder holds whole tiles."""

_JPEG_MARKER = re.compile(rb"\xff+([^\x00\x01\xd0-\xd7\xff])")  # of segments with a length, and the end of the image


def check_cost(photo: Image.Image, data: bytes) -> None:
    """Raise InputError if decoding an image opened from `data` would cost far more than its pixels."""
    if isinstance(photo, JpegImageFile):
        _check_scans(data)
    if isinstance(photo, TiffImageFile):
        _check_tiles(photo, data)


def _check_scans(data: bytes) -> None:
    if data.count(b"\xff\xda") <= MAX_SCANS:  # an upper bound: other segments may contain these bytes
        return
    scans, position = 0, 2
    while (marker := _JPEG_MARKER.search(data, position)) and marker[1] != b"\xd9":
        scans += marker[1] == b"\xda"
        position = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    if scans > MAX_SCANS:
        raise InputError(f"it has {scans} scans, more than {MAX_SCANS}; save it again")


def _check_tiles(photo: TiffImageFile, data: bytes) -> None:
    # Strips need no check: libtiff cuts them to the height of the image.
    sides = [photo.tag_v2.get(tag, 0) for tag in (TILEWIDTH, TILELENGTH)]
    if not all(isinstance(side, int) for side in sides):
        raise InputError("the size of its tiles is not a number; save it again")
    if sides[0] * sides[1] > max(MAX_TILE_PIXELS, 4 * photo.width * photo.height):
        raise InputError(f"it has {photo.width}×{photo.height} pixels in tiles of {sides[0]}×{sides[1]}; save it again")
    # Of two entries with the same tag, libtiff takes the first and Pillow, whose tags were checked, the last.
    wide = 0x2B in data[2:4]  # BigTIFF
    order = "<" if data[:1] == b"I" else ">"
    (start,) = struct.unpack_from(order + ("Q" if wide else "I"), data, 8 if wide else 4)
    (count,) = struct.unpack_from(order + ("Q" if wide else "H"), data, start)
    first, size = start + (8 if wide else 2), 20 if wide else 12
    tags = [struct.unpack_from(f"{order}H", data, first + size * number)[0] for number in range(count)]
    if len(set(tags)) < count:
        raise InputError("a tag of its header is repeated; save it again")

"""Checks of untrusted data files: JSON of bounded size and depth, and file names without path traversal."""

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from finola.errors import CorruptFileError, first_line, shorten
from finola.files import read_file

MAX_JSON_BYTES = 2**31
"""Maximum size of a JSON file: the annotations of COCO have 0.45 GB, those of LVIS 1.1 GB."""
MAX_NAME_BYTES = 4096
"""Maximum length of the name of a photo inside a data set."""


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise `CorruptFileError`."""
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise CorruptFileError(
            f"{path} has {size} bytes; JSON files may have at most {MAX_JSON_BYTES}: split the file."
        )
    return parse_json(read_file(path), str(path))


def parse_json(data: bytes, name: str) -> Any:
    """Parse JSON, or raise `CorruptFileError` with `name`."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise CorruptFileError(f"{name} is not valid JSON: its values are nested too deeply.") from error
    except ValueError as error:
        raise CorruptFileError(f"{name} is not valid JSON: {first_line(error)}.") from error


def check_name(name: str) -> str:
    """Return `name` if it is a relative path inside its folder, otherwise raise `CorruptFileError`.

    >>> check_name("train/0001.jpg")
    'train/0001.jpg'
    """
    try:
        encoded = name.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise CorruptFileError(f"the file name {shorten(name)} is not valid Unicode.") from error
    if not name or len(encoded) > MAX_NAME_BYTES:
        raise CorruptFileError(f"a file name has {len(encoded)} bytes; it must have 1 to {MAX_NAME_BYTES}.")
    if any(ord(character) < 32 for character in name):
        raise CorruptFileError(f"the file name {shorten(name)} contains control characters.")
    outside = PurePosixPath(name).is_absolute() or bool(PureWindowsPath(name).anchor)
    if outside or ".." in PurePosixPath(name.replace("\\", "/")).parts:
        raise CorruptFileError(f"the file name {shorten(name)} is outside the folder of the data set.")
    return name

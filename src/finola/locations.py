"""Which files an argument means: photos, folders, patterns, names of data in FINOLA_DATA, photos of scikit-image.

Imports no other package than the standard library, so that a mistyped path is reported at once.
"""

from __future__ import annotations

import math
import os
import re
import stat
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from finola.errors import InputError, MissingFileError, UnknownNameError, require, shorten

_COMMON = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".heic", ".heif", ".gif", ".bmp", ".tif", ".tiff")
READ = (*_COMMON, ".jp2", ".j2k", ".ppm", ".pgm", ".pnm")
"""Suffixes of image files; files that Pillow cannot decode are reported, not skipped."""

WRITE = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Suffixes of image files that can be written, with Pillow's name of the format."""

SKIMAGE = "skimage:"
"""Prefix of the photos installed with scikit-image, as in `skimage:astronaut`."""

VARIABLE = "FINOLA_DATA"
"""Environment variable that names the folder of data sets."""

MAX_NAME = 4096
"""Maximum length of a path."""
MAX_FILES = 1_000_000
"""Maximum number of files of a brace pattern."""


def user_path(path: str | Path) -> Path:
    """Path with `~` expanded. The `~name` of an unknown user stays, and is then reported as a file that is missing.

    >>> user_path("~no-such-user").name
    '~no-such-user'
    """
    return Path(os.path.expanduser(path))  # Path.expanduser raises RuntimeError for an unknown user


def is_photo(name: str) -> bool:
    """Whether a file name has an image suffix and is not hidden.

    >>> is_photo("a.JPG"), is_photo(".a.jpg"), is_photo("a.txt")
    (True, False, False)
    """
    return not name.startswith(".") and name.lower().endswith(READ)


def photos_below(folder: Path) -> list[str]:
    """Image files (suffixes `READ`) below a folder: sorted paths relative to it, with forward slashes.

    Names that start with a dot, FIFOs, sockets and devices are skipped, and each linked folder is visited once. Strings
    instead of paths, which is faster for millions of files.
    """
    found: list[str] = []
    seen: set[str] = set()
    pending = [""]
    while pending:
        within = pending.pop()
        place = os.path.join(folder, within)
        real = os.path.realpath(place)
        if real in seen or not os.access(place, os.R_OK | os.X_OK):
            continue
        seen.add(real)
        inner = []
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    inner.append(f"{within}{entry.name}/")
                elif is_photo(entry.name) and (entry.is_file(follow_symlinks=False) or not is_special(entry)):
                    found.append(within + entry.name)
        pending += sorted(inner, reverse=True)
    return sorted(found)


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a FIFO, socket or device, also through links: opening it may wait, and reading it never end."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # missing, or a broken link, which opening it reports
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_regular(path: Path) -> None:
    """Raise InputError if a path to read is special; see `is_special`."""
    if is_special(path):
        raise InputError(f"{path} is not a regular file: name a file to read.")


def skimage_photos() -> dict[str, Path]:
    """Paths by name of the images installed with scikit-image; those it would download are excluded."""
    require("skimage")
    spec = find_spec("skimage")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "data"
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".png", ".jpg")}


def skimage_photo(word: str) -> Path:
    """Path of the photo that `skimage:NAME` means."""
    photos, name = skimage_photos(), word.removeprefix(SKIMAGE)
    if name not in photos:
        raise UnknownNameError(f"Unknown scikit-image photo {name!r}; available: {', '.join(photos)}.")
    return photos[name]


def locate(source: str | Path | None) -> list[Path]:
    """Resolve an argument to a folder or to files.

    It is an existing path, a glob or brace pattern (`shards/{000..127}.tar`), `skimage:NAME`, or a name or pattern
    inside the folder FINOLA_DATA; existing paths take precedence. None means FINOLA_DATA itself.
    """
    variable = os.environ.get(VARIABLE)
    home = user_path(variable) if variable else None
    if source is None:
        if home is None:
            raise InputError(
                f"No data given: pass a folder, set {VARIABLE} to one, or use 'smoke' for built-in photos."
            )
        if not home.exists():
            raise MissingFileError(f"{VARIABLE} is set to {str(home)!r}, which does not exist.")
        return [home]
    text = str(source)
    if len(text) > MAX_NAME or "\0" in text:
        raise InputError(f"{shorten(text)} is not a valid path: it is too long or contains a null byte.")
    if text.startswith(SKIMAGE):
        return [skimage_photo(text)]
    path = user_path(source)
    candidates = [path] if home is None or path.is_absolute() else [path, home / path]
    for candidate in candidates:
        found = _expand(candidate)
        if found:
            return found
    inside = f" or inside {VARIABLE}={home}" if home else f" ({VARIABLE} is not set)"
    names = [folder.name for folder in subfolders(home)] if home and home.is_dir() else []
    contents = f", which contains {', '.join(names)}" if names else ""
    raise MissingFileError(f"There is no file or folder {text!r}{inside}{contents}.")


def subfolders(folder: Path) -> list[Path]:
    """Direct subfolders, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def evenly_spaced(length: int, count: int | None) -> list[int]:
    """`count` evenly spaced indices of a sequence; all if it has no more, or if `count` is None.

    >>> evenly_spaced(10, 4), evenly_spaced(3, None), evenly_spaced(5, 1)
    ([0, 3, 6, 9], [0, 1, 2], [0])
    """
    if count is not None and count < 1:
        raise InputError(f"The number of photos must be at least 1, got {count}.")
    if count is None or count >= length:
        return list(range(length))
    step = (length - 1) / max(1, count - 1)
    return [round(number * step) for number in range(count)]


def _expand(pattern: Path) -> list[Path]:
    """Existing paths that match a path, a glob or a brace pattern."""
    if pattern.exists():
        return [pattern]
    if "{" not in str(pattern):
        return sorted(Path(path) for path in glob(str(pattern), recursive=True))
    paths = [Path(path) for text in expand_braces(str(pattern)) for path in sorted(glob(text)) or [text]]
    missing = [path for path in paths if not path.exists()]
    if missing and len(missing) < len(paths):
        raise MissingFileError(f"{pattern} expands to {len(paths)} files, but {missing[0]} does not exist.")
    return [] if missing else paths


def expand_braces(pattern: str) -> list[str]:
    """Expand the braces of a pattern; files need not exist.

    >>> expand_braces("shards/{08..10}.tar"), expand_braces("photos")
    (['shards/08.tar', 'shards/09.tar', 'shards/10.tar'], ['photos'])
    """
    if "{" not in pattern:
        return [pattern]
    require("braceexpand")
    from braceexpand import braceexpand

    if _expansions(pattern) > MAX_FILES:
        raise InputError(f"{shorten(pattern)} expands to more than {MAX_FILES} files; give a folder instead.")
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise InputError(
            f"The braces in {shorten(pattern)} are not balanced; write for example shards/{{000..127}}.tar."
        ) from error


def _expansions(pattern: str) -> int:
    """Number of expansions of a brace pattern, counted from the innermost braces outwards.

    >>> _expansions("{train-{000..127},val-{0,1}}.tar")
    130
    """
    while braces := re.search(r"\{([^{}]*)\}", pattern):
        if limits := re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})(\.\.-?\d+)?", braces[1]):
            count = abs(int(limits[2]) - int(limits[1])) + 1
        elif re.fullmatch(r"-?\d+\.\.-?\d+(\.\.-?\d+)?", braces[1]):
            return MAX_FILES + 1
        else:
            count = sum(_product(part) for part in braces[1].split(","))
        if count > MAX_FILES:
            return count
        pattern = f"{pattern[: braces.start()]}\0{count}\0{pattern[braces.end() :]}"
    return _product(pattern)


def _product(text: str) -> int:
    return math.prod(int(count) for count in re.findall("\0(\\d+)\0", text))

"""Photos, Parquet files and tar shards at any URL that fsspec can open, such as `s3://bucket/photos`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from finola.data.sources import Source, split_by_name, stamps
from finola.errors import InputError, MissingFileError, first_line
from finola.image_io import open_photo
from finola.locations import check_regular, expand_braces, is_photo, is_special
from finola.urls import file_system_errors, open_url, without_credentials


@dataclass(frozen=True)
class RemoteFile:
    """File of an fsspec file system; it can be sent to another process, which opens its own connection."""

    system: Any  # fsspec.AbstractFileSystem
    path: str
    size: int = field(compare=False)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def open(self) -> IO[bytes]:
        with file_system_errors(str(self)):
            stream: IO[bytes] = self.system.open(self.path, "rb")
        return stream

    def __str__(self) -> str:
        return without_credentials(self.system.unstrip_protocol(self.path))


File = Path | RemoteFile


def size_of(file: File) -> int:
    """Size of a file in bytes."""
    return file.size if isinstance(file, RemoteFile) else file.stat().st_size


def extent_of(files: Sequence[File]) -> bytes:
    """`stamps` of files, or the sizes of remote ones, whose times of modification not every file system knows."""
    local = [file for file in files if isinstance(file, Path)]
    return stamps(local) + np.array([file.size for file in files if isinstance(file, RemoteFile)], np.int64).tobytes()


def open_binary(file: File) -> IO[bytes]:
    """Open a file for reading."""
    if isinstance(file, RemoteFile):
        return file.open()
    check_regular(file)
    return file.open("rb")


class RemoteFolderSource(Source):
    """Photos below a URL, or given as files, without labels. Each is read with one request."""

    def __init__(self, files: Sequence[RemoteFile], root: str, where: str) -> None:
        self.where, self.classes = where, {}
        self._system, self._root = files[0].system, root.rstrip("/")
        names = [file.path.removeprefix(root).lstrip("/") or file.name for file in files]
        self._names = np.array([name.encode(errors="surrogateescape") for name in names])
        self._sizes = np.array([file.size for file in files])

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return bytes(self._names[index]).decode(errors="surrogateescape")

    def open(self, index: int) -> Image.Image:
        name = self.name(index)
        with file_system_errors(name):
            data = self._system.cat_file(f"{self._root}/{name}")
        return open_photo(data, name)

    def extent(self) -> bytes:
        return self._sizes.tobytes()


def find_remote(url: str) -> tuple[list[RemoteFile], str]:
    """Files at a URL, which is a file, a folder, or a glob or brace pattern; also return the path of their folder.

    Hidden files and files in hidden folders are left out.
    """
    shown = without_credentials(url)
    found: dict[str, int] = {}
    system, root = None, ""
    parts = expand_braces(url)
    for part in parts:
        system, path = open_url(part)
        try:
            entries = _entries(system, path)
            if not entries:
                system.info(path)  # raises what a search ignores, such as a server that does not answer
        except Exception as error:  # every file system of fsspec raises its own classes
            cause = error.__cause__ or error
            if not isinstance(cause, FileNotFoundError):
                raise InputError(f"{shown} cannot be opened: {without_credentials(first_line(cause))}.") from error
            entries = {}
        if not entries:
            raise MissingFileError(f"There is no file or folder {without_credentials(part)!r}.")
        found |= entries
        root = path if len(parts) == 1 and path not in entries and not _is_pattern(path) else ""
    root = root or _common_folder(list(found))
    paths = sorted(path for path in found if not _is_hidden(path.removeprefix(root)))
    if not paths:
        raise MissingFileError(f"{shown} has hidden files only.")
    return [RemoteFile(system, path, found[path]) for path in paths], root


def _entries(system: Any, path: str) -> dict[str, int]:
    """Sizes by path of a file, of all regular files below a folder, or of those that match a pattern."""
    details: dict[str, dict[str, Any]]
    details = system.glob(path, detail=True) if _is_pattern(path) else system.find(path, detail=True)
    local = "file" in system.protocol
    return {
        name: int(info.get("size") or 0)
        for name, info in details.items()
        if info.get("type") != "directory" and not (local and is_special(name))
    }


def _is_pattern(path: str) -> bool:
    return "*" in path or "?" in path


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _common_folder(paths: Sequence[str]) -> str:
    """Longest folder that contains all paths.

    >>> _common_folder(["/a/b/c.jpg", "/a/d/e.jpg"]), _common_folder(["/a/b/c.jpg"])
    ('/a', '/a/b')
    """
    folders = [path.split("/")[:-1] for path in paths]
    shared = 0
    while folders and all(len(folder) > shared and folder[shared] == folders[0][shared] for folder in folders):
        shared += 1
    return "/".join(folders[0][:shared]) if folders else ""


def open_photos_at(files: Sequence[RemoteFile], root: str, url: str, split: str) -> Source:
    """Open the photos among the files at a URL."""
    photos = [file for file in files if is_photo(file.name)]
    if not photos:
        raise MissingFileError(f"{without_credentials(url)} contains no photos, Parquet files or tar shards.")
    return split_by_name(RemoteFolderSource(photos, root, without_credentials(url)), split)

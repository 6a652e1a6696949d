"""Files and JSON records in a folder on this machine, written atomically, or at a URL of fsspec."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import IO, Any

from finola.errors import valid_unicode
from finola.files import PART, write_bytes
from finola.locations import check_regular, user_path
from finola.urls import file_system_errors, is_url, open_url, without_credentials


class Store:
    """Files of a folder by name, such as `part-00000.parquet`, and JSON records, such as `_shards/00000.json`.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.write_record("_shards/00000.json", {"rows": 8})
    >>> store.record("_shards/00000.json"), store.read("missing"), store.names()
    ({'rows': 8}, None, [])
    """

    def __init__(self, where: str | Path) -> None:
        self._system: Any = None
        where = re.sub("^(file|local)://", "", str(where))
        if is_url(where):
            self.where = without_credentials(where)
            self._system, self._root = open_url(where)
        else:
            self.path = user_path(where)
            self.where = str(self.path)

    @property
    def is_local(self) -> bool:
        return self._system is None

    def is_inside(self, other: Store) -> bool:
        """Whether this is the same folder as another, or below it."""
        if self.is_local and other.is_local:
            return other.path.is_dir() and self.path.resolve().is_relative_to(other.path.resolve())
        return not self.is_local and f"{self.where.rstrip('/')}/".startswith(f"{other.where.rstrip('/')}/")

    def names(self) -> list[str]:
        """Sorted names of all files and folders at the top level that are not hidden and do not start with `_`."""
        if self.is_local:
            found = [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []
        else:
            with file_system_errors(self.where):
                listed = self._system.ls(self._root, detail=False) if self._system.isdir(self._root) else []
            found = [path.rstrip("/").rpartition("/")[2] for path in listed]
        return sorted(name for name in found if not name.startswith((".", "_")))

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically. Object stores make a file visible when it is complete."""
        if not self.is_local:
            with file_system_errors(f"{self.where}/{name}"):
                self._system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self._system.pipe_file(self._at(name), data)
            return
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)

    def read(self, name: str, most: int = 2**26) -> bytes | None:
        """Content of a small file; None if there is no such file or it has more than `most` bytes."""
        size = self.size(name)
        if size is None or size > most:
            return None
        with file_system_errors(f"{self.where}/{name}"), self.open(name) as stream:
            return stream.read()

    def write_record(self, name: str, record: dict[str, Any]) -> None:
        """Write a JSON record atomically. Bytes of file names that are not UTF-8 are escaped."""
        self.write(name, json.dumps(valid_unicode(record)).encode())

    def record(self, name: str) -> dict[str, Any] | None:
        """A JSON record; None if there is none, or if it is damaged, since it can be computed again."""
        try:
            found = json.loads(self.read(name) or b"")
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def size(self, name: str) -> int | None:
        """Size of a file in bytes; None if there is no such file."""
        if self.is_local:
            path = self.path / name
            return path.stat().st_size if path.is_file() else None
        with file_system_errors(f"{self.where}/{name}"):
            return int(self._system.size(self._at(name))) if self._system.isfile(self._at(name)) else None

    def open(self, name: str) -> IO[bytes]:
        if self.is_local:
            check_regular(self.path / name)
            return (self.path / name).open("rb")
        with file_system_errors(f"{self.where}/{name}"):
            stream: IO[bytes] = self._system.open(self._at(name), "rb")
        return stream

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        if self.is_local:
            (self.path / name).unlink(missing_ok=True)
            return
        with file_system_errors(f"{self.where}/{name}"):
            if self._system.isfile(self._at(name)):
                self._system.rm_file(self._at(name))

    def remove_temporary(self) -> None:
        """Remove the temporary files that killed processes have left behind."""
        if self.is_local:
            for pattern in (f".*{PART}", f"*/.*{PART}"):
                for path in self.path.glob(pattern):
                    path.unlink(missing_ok=True)

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

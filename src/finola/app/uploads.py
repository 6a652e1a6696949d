"""Folder of uploaded files with bounded size. Files are deleted once read, or after a few minutes.

Gradio stores a file under a hash of its content, so two visitors who upload the same file share one path, and the first
to have it read would delete that of the other. Every upload is therefore linked to a path of its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread

from finola.errors import InputError

MAX_BYTES = 40_000_000  # of one file
FOLDER_BYTES = 400_000_000  # of all unread uploads
AGE = 300.0  # seconds until an unread upload is deleted
EVERY = 30.0  # seconds between two searches for old uploads
FORM_BYTES = 10_000  # of a multipart request in addition to the file
OWN = "own-"  # prefix of the folders of single uploads


class Uploads:
    """Uploaded files in a folder used by this server only."""

    def __init__(self, folder: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = Path(folder).resolve()
        self._clock = clock
        self._since: dict[tuple[Path, int], float] = {}  # when a file with this time of writing was first found
        self._incoming = 0  # bytes of uploads that are being received
        self._receiving = 0  # their number
        self._lock = Lock()

    @contextmanager
    def receiving(self, size: int) -> Iterator[None]:
        """Reserve space for an upload of `size` bytes while it is received."""
        if size > MAX_BYTES + FORM_BYTES:
            raise InputError(f"The file has {size / 1e6:.0f} MB; the maximum is {MAX_BYTES / 1e6:.0f} MB.")
        self.delete_old()
        with self._lock:
            if self._incoming + self.bytes_stored() + size > FOLDER_BYTES:
                raise InputError("Too many uploads are waiting. Try again in a few minutes.")
            self._incoming += size
            self._receiving += 1
        try:
            yield
        finally:
            with self._lock:
                self._incoming -= size
                self._receiving -= 1
                if not self._receiving:  # otherwise another upload may have the same path
                    self._delete_shared()

    def claim(self, path: object) -> str:
        """Link an upload to a path of its own and return that. To be called while the upload is being received."""
        found = self.check(path)
        own = self.folder / f"{OWN}{secrets.token_hex(16)}" / found.name
        own.parent.mkdir()
        try:
            os.link(found, own)
        except OSError:  # a file system without hard links
            shutil.copyfile(found, own)
        return str(own)

    def _delete_shared(self) -> None:
        """Delete the paths under which Gradio stored the uploads."""
        for path, _ in self._files():
            if not path.parent.name.startswith(OWN):
                self._delete(path)

    def check(self, path: object) -> Path:
        """Return the path of an uploaded file as given by the upload request. Raises InputError for any other path."""
        if isinstance(path, str) and "\0" not in path and os.path.isabs(path):
            found = Path(path)
            if found.resolve() == found and self.folder in found.parents and found.is_file():
                return found
        raise InputError("The file is not an upload of this page, or it was deleted. Drop it again.")

    def take(self, path: str) -> bytes:
        """Return the content of an upload and delete it together with its folder."""
        found = self.check(path)
        try:
            return found.read_bytes()
        except FileNotFoundError:  # one upload was sent to two jobs
            raise InputError(f"The upload of {found.name} was lost. Drop it again.") from None
        finally:
            self._delete(found)

    def bytes_stored(self) -> int:
        """Total size of all files in the folder; a file with several links counts once."""
        return sum({(s.st_dev, s.st_ino): s.st_size for _, s in self._files()}.values())

    def delete_old(self) -> None:
        """Delete every file that was found unchanged for more than `AGE` seconds.

        Ages are those of the monotonic clock: the time of day, which a file system stores, may jump.
        """
        with self._lock:
            now = self._clock()
            written = [(path, status.st_mtime_ns) for path, status in self._files()]
            self._since = {file: self._since.get(file, now) for file in written}
            old = [path for (path, _), since in self._since.items() if now - since > AGE]
        for path in old:
            self._delete(path)

    def watch(self) -> None:
        """Delete old uploads regularly in a background thread, until the folder is removed."""

        def delete_regularly() -> None:
            while self.folder.exists():
                self.delete_old()
                time.sleep(EVERY)

        Thread(target=delete_regularly, name="delete old uploads", daemon=True).start()

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for place, _, names in os.walk(self.folder):
            for name in names:
                path = Path(place, name)
                with suppress(FileNotFoundError):  # deleted by another thread
                    found.append((path, path.lstat()))
        return found

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        if path.parent != self.folder:
            with suppress(OSError):  # not empty, or deleted already
                path.parent.rmdir()

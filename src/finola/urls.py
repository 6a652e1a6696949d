"""URLs of fsspec, such as `s3://bucket/photos`: their file systems and errors, without the credentials in them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from finola.errors import FinolaError, InputError, first_line, require

SILENT_SECONDS = 20.0
"""Seconds that an HTTP server may send nothing."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)")


def is_url(source: object) -> bool:
    """Whether a source is a URL of fsspec rather than a path.

    >>> is_url("s3://bucket/photos"), is_url("photos/a.jpg"), is_url("skimage:astronaut")
    (True, False, False)
    """
    return isinstance(source, str) and _URL.match(source) is not None


def without_credentials(text: str) -> str:
    """A URL, or a message with URLs, without user names, passwords and queries, for messages and manifests.

    >>> without_credentials("ftp://me:secret@host/photos"), without_credentials("az://host/a.tar?token=secret")
    ('ftp://host/photos', 'az://host/a.tar?…')
    """
    text = re.sub(r"//[^/\s]*@", "//", text)
    text = re.sub(r"(https?://[^?]*\?)\S+", r"\1…", text)
    # In other URLs a question mark may belong to a pattern, but a query has an equals sign.
    return re.sub(r"(://[^?]*\?)[^\s=]*=\S*", r"\1…", text)


@contextmanager
def file_system_errors(where: str) -> Iterator[None]:
    """Convert exceptions of a file system to OSError with a number: every file system of fsspec has its own classes."""
    try:
        yield
    except (FinolaError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and error.strerror:
            raise OSError(error.errno, error.strerror, where) from error
        if isinstance(error, FileNotFoundError):
            raise OSError(errno.ENOENT, "No such file or folder", where) from error
        reason = without_credentials(first_line(error))
        if isinstance(error, NotImplementedError):
            reason = "the file system does not support this operation"
        raise OSError(errno.EIO, reason, where) from error


def open_url(url: str) -> tuple[Any, str]:
    """File system of a URL, and the path in it; InputError if there is none. HTTP servers must not stop answering."""
    require("fsspec")
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    try:
        if protocols := set(re.findall(r"\b(https?)://", url)):
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS)
            options = {protocol: {"client_kwargs": {"timeout": timeout}} for protocol in protocols}
        system, path = url_to_fs(url, **options)
    except Exception as error:  # every file system of fsspec raises its own classes
        reason = without_credentials(first_line(error))
        raise InputError(f"{without_credentials(url)} cannot be opened: {reason}.") from error
    return system, path

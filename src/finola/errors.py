"""Exceptions for errors that a user can cause. The command line prints one line and exits with code 2.

Each class also derives from the built-in exception that callers would expect, so `except ValueError` keeps working.
"""

from __future__ import annotations


class FinolaError(Exception):
    """Base class of all exceptions of this package."""


class InputError(FinolaError, ValueError):
    """An argument, setting or tensor is invalid."""


class CorruptFileError(InputError):
    """A file is damaged, truncated, or not of the expected format."""


class UnknownNameError(InputError):
    """A name is not registered: a model, recipe, encoder, method, …"""


class MissingExtraError(FinolaError, ImportError):
    """An optional dependency is not installed."""


class MissingFileError(FinolaError, FileNotFoundError):
    """An input file or folder does not exist."""


class OutputExistsError(FinolaError, FileExistsError):
    """The output would overwrite an existing file or an input."""


def first_line(error: BaseException) -> str:
    """First line of an exception's message without its full stop, to be quoted in another message.

    >>> first_line(ValueError("too long.\\nDetails follow."))
    'too long'
    """
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:300]

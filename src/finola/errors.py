"""Exceptions for errors that a user can cause, and how names and values are written in messages and files.

The command line prints one line for an exception and exits with code 2. Each class also derives from the built-in
exception that callers would expect, so `except ValueError` keeps working.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


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


EXTRAS = {
    "braceexpand": "train",
    "diffusers": "compare",
    "fastapi": "app",
    "fsspec": "batch",
    "gradio": "app",
    "imageio_ffmpeg": "video",
    "lightly": "moco",
    "lightning": "train",
    "matplotlib": "plot",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "pillow_jxl": "compare",
    "pyarrow": "batch",
    "pycocotools": "detect",
    "pywt": "compare",
    "ray": "ray",
    "skimage": "demo",
    "tensorboard": "train",
    "uvicorn": "app",
    "wandb": "wandb",
    "yaml": "train",
}
"""Extra of pyproject.toml that installs each optional dependency, by the name under which it is imported."""


def require(*modules: str) -> None:
    """Raise MissingExtraError, which names the extra to install, unless these optional dependencies are installed.

    >>> require("matplotlib", "pywt")
    """
    for module in modules:
        try:
            installed = find_spec(module) is not None
        except ModuleNotFoundError:
            installed = False
        if not installed:
            raise MissingExtraError(
                f"{module} is not installed. Install it with: pip install 'finola[{EXTRAS[module]}]'."
            )


def valid_unicode(value: Value) -> Value:
    r"""Escape what cannot be encoded as UTF-8 in a name, or in all text of a JSON value, that is written to a file.

    Bytes of a file name that are not UTF-8 are surrogates in Python. Other text is unchanged.

    >>> valid_unicode(["bad\udcff.png", 1]) == [r"bad\xff.png", 1], valid_unicode("é.png")
    (True, 'é.png')
    """
    found: Any = value
    if isinstance(value, str):
        found = re.sub("[\ud800-\udfff]", lambda match: _escape(match[0]), value)
    elif isinstance(value, dict):
        found = {valid_unicode(key): valid_unicode(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        found = [valid_unicode(item) for item in value]
    return cast("Value", found)


def printable(text: str) -> str:
    r"""Escape control characters, line breaks and invalid UTF-8 in a name or message that is printed.

    >>> printable("\x1b[2Ja\nb\udcff.png") == r"\x1b[2Ja\nb\xff.png"
    True
    """
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def shorten(value: object, length: int = 80) -> str:
    """The `repr` of a value, truncated to about `length` characters, for an error message."""
    if isinstance(value, int) and not -(10**length) < value < 10**length:
        return f"a number of {value.bit_length()} bits"  # Python limits the number of digits that it converts
    if isinstance(value, str | bytes):
        value = value[: 2 * length]
    elif isinstance(value, list | dict) and len(value) > length:
        return f"a {type(value).__name__} of {len(value)} items"
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a nested {type(value).__name__}"
    return text if len(text) <= length else f"{text[: length - 1]}…"


def first_line(error: BaseException) -> str:
    """First line of an exception's message without its full stop, to be quoted in another message.

    >>> first_line(ValueError("too long.\\nDetails follow."))
    'too long'
    """
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:300]

"""Commands that fail."""

from __future__ import annotations

import pytest

from finola.cli import main
from finola.errors import InputError


def failed(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run a command that must fail with one line, and return the line."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"finola {arguments[0]}: ") and error.count("\n") == 1
    return error


def no_training(*_: object, **__: object) -> None:
    """A stand-in for `finola.training.run.train` that fails at once."""
    raise InputError("training begins")

"""Colours of all plots, and writing figures to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finola.errors import InputError
from finola.files import check_folder, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#22262b", "#c9ced6"
FORMATS = (".png", ".pdf", ".svg", ".jpg")


def check_path(path: str | Path, formats: Sequence[str] = FORMATS) -> Path:
    """Return the path with `~` expanded; raise InputError if its suffix or its folder does not allow writing it."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in formats:
        raise InputError(f"Cannot write {str(path)!r}: the name must end with one of {', '.join(formats)}.")
    return check_folder(path)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically as .png, .pdf, .svg or .jpg, by suffix."""
    path = check_path(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=130)
    return path

"""Colours of all plots, and writing figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finola.files import plot_path, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#22262b", "#c9ced6"


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically as .png, .pdf, .svg or .jpg, by suffix."""
    path = plot_path(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=130)
    return path

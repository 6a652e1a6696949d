"""Colours of all plots, and writing figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finola.errors import printable
from finola.files import plot_path, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#22262b", "#c9ced6"


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically as .png, .pdf, .svg or .jpg, by suffix."""
    path = plot_path(path)
    show_as_text(figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=130)
    return path


def show_as_text(figure: Figure) -> None:
    """Show the titles and labels of a figure as they are: names of files may have `$` and unprintable characters."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        shown = text.get_text()
        if shown and not shown.startswith("$\\mathdefault"):  # numbers of a logarithmic axis
            text.set_text("\n".join(map(printable, shown.split("\n"))))
            text.set_parse_math(False)

"""Output shared by the commands: tables, JSON, progress bars, error messages, and checks of output files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from finola.errors import FinolaError, InputError

WEIGHTS = ("config.json", "model.safetensors")
"""The files that loading a model's folder reads."""


MISMATCH = "in loading state_dict"
"""How PyTorch's message on weights that do not fit a model begins."""


def is_bad_input(error: Exception) -> bool:
    """Whether bad input or the machine caused an exception; any other is a defect of this package."""
    if isinstance(error, FinolaError | ValueError | OSError | MemoryError | RecursionError):
        return True
    if type(error).__name__ == "SafetensorError":  # named, because importing safetensors here takes long
        return True
    known = ("can't allocate memory", "out of memory", MISMATCH)  # PyTorch has no class of its own for some of these
    return isinstance(error, RuntimeError) and any(text in str(error) for text in known)


def sentence(error: Exception) -> str:
    """What went wrong, in one line, with the name of the file if the operating system gave one."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        file = error.filename2 or error.filename
        return f"{file}: {error.strerror}." if file else f"{error.strerror}."
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in text):
        return f"Out of memory{f' ({text})' if text else ''}: use a smaller input."
    if isinstance(error, RuntimeError) and MISMATCH in text:
        return f"The weights do not fit the model of config.json: {str(error).splitlines()[1].strip()}"
    if isinstance(error, RecursionError):
        return f"The input is nested too deeply ({text})."
    return text or f"{type(error).__name__}."


def complain(verb: str, text: str) -> None:
    """Print one line on standard error."""
    print(f"finola {verb}: {text}", file=sys.stderr)


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="overwrite existing output files (never an input)")


def input_files(
    photos: Iterable[str | None] = (), data: Iterable[str | None] = (), models: Iterable[str | None] = ()
) -> list[Path]:
    """The files and folders that a command reads, for `finola.files.output_paths`.

    `photos` are files, folders or skimage:NAME; `data` are data sets as `finola.data.open_data` takes them, None being
    FINOLA_DATA; `models` are folders or names.
    """
    found = [Path(word).expanduser() for word in photos if word and not word.startswith("skimage:")]
    for word in data:
        if word is None or not (word == "smoke" or word.startswith("skimage:")):
            from finola.data.discovery import locate

            found += locate(word)
    for word in filter(None, models):
        from finola.zoo import BUNDLED

        found += [folder / name for folder in (Path(word).expanduser(), BUNDLED / word) for name in WEIGHTS]
    return found


def output_folder(word: str) -> Path:
    """The folder that -o names; an `InputError` where it names a file."""
    from finola.image_io import READ

    folder = Path(word).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or folder.suffix.lower() in (*READ, ".finola", ".json", ".csv"):
        raise InputError(f"-o {word} names a file, and a folder is needed here.")
    return folder


def print_json(value: Any) -> None:
    """Print one JSON value. NaN and infinities raise, because JSON has no such numbers."""
    escaped = not (sys.stdout.encoding or "").lower().startswith("utf")  # `main` would escape in Python's way
    print(json.dumps(value, indent=2, ensure_ascii=escaped, allow_nan=False))


def write_figures(folder: Path, summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """summary.json, and images.csv with a line per photo."""
    import csv
    import io

    from finola.files import write_text

    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "images.csv", table.getvalue())
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A short table: the first column to the left, the others to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    wide = None if sys.stdout.isatty() else 110  # nobody reads a file through a narrow window
    Console(width=wide).print(table)


def progress(items: Iterable[Any], total: int, what: str, quiet: bool = False) -> Iterable[Any]:
    """Yield the items, with a progress bar on standard error if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)

"""Output shared by the commands: tables, JSON, progress, error messages, and checks of output files."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from finola.errors import FinolaError, InputError, printable, valid_unicode
from finola.hub import local_folder
from finola.locations import READ, SKIMAGE, locate, user_path

WEIGHTS = ("config.json", "model.safetensors")
"""Files read when a model folder is loaded."""

PROGRESS_SECONDS = 2.0
"""Seconds before progress is first reported, and between two lines where standard error is not a terminal."""

MISMATCH = "in loading state_dict"
"""Part of PyTorch's message for weights that do not match the model."""


NUMBER = re.compile(r"[-+−±<>≤≥~]?\s?[.\d]|[-–—]?$")
"""Start of a table cell that holds a number or nothing."""


def is_bad_input(error: Exception) -> bool:
    """Whether an exception was caused by invalid input or system resources, rather than a defect of this package."""
    if isinstance(error, FinolaError | ValueError | OSError | MemoryError | RecursionError):
        return True
    if type(error).__name__ == "SafetensorError":  # compared by name, because importing safetensors is slow
        return True
    return isinstance(error, RuntimeError) and (MISMATCH in str(error) or _is_out_of_memory(error))


def _is_out_of_memory(error: Exception) -> bool:
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    from finola.jobs.memory import is_out_of_memory

    return is_out_of_memory(error)


def describe_error(error: Exception, inputs: str = "") -> str:
    """Describe an exception in one line, with the file that it names, or else with the `inputs` of the work."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        file = error.filename2 or error.filename or (inputs if error.errno == errno.EIO else "")
        return f"{file}: {error.strerror}." if file else f"{error.strerror}."
    text = " ".join(str(error).split())
    about = f" in {inputs}" if inputs else ""
    if isinstance(error, RecursionError):
        return f"The input is nested too deeply{about} ({text})."
    if _is_out_of_memory(error):
        return f"Out of memory{about}{f' ({text})' if text else ''}: use a smaller input."
    if isinstance(error, RuntimeError) and MISMATCH in text:
        return f"The weights do not match the model in config.json: {str(error).splitlines()[1].strip()}"
    return text or f"{type(error).__name__}{about}."


def print_error(verb: str, text: str) -> None:
    """Print a one-line error message on standard error."""
    say(f"finola {verb}: {text}" if verb else f"finola: {text}")


def say(text: str) -> None:
    """Print one line on standard error. It is ignored that this fails, because the exit code still tells."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a stream that is full or closed to the null device, so that flushing at exit does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_line(text: str) -> None:
    """Print one line. Names in it may have any characters, which are escaped."""
    print(printable(text), flush=True)


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="overwrite existing output files (never an input)")


def input_files(
    photos: Iterable[str | None] = (), data: Iterable[str | None] = (), models: Iterable[str | None] = ()
) -> list[Path]:
    """Collect the files and folders that a command reads, for `finola.files.output_paths`.

    `photos` are files or skimage:NAME; `data` are data sets as `finola.data.open_data` takes them, None being
    FINOLA_DATA; `models` are folders or names. Raises MissingFileError if there is no such data.
    """
    found = [user_path(word) for word in photos if word and not word.startswith(SKIMAGE)]
    found += [path for word in data if word != "smoke" for path in locate(word)]
    for word in filter(None, models):
        folder = local_folder(word)
        found += [folder / name for name in WEIGHTS] if folder is not None else []
    return found


def output_folder(word: str) -> Path:
    """Return the output folder given by -o. Raises InputError if it is a file."""
    folder = user_path(word)
    if folder.is_dir():
        return folder
    if folder.exists() or folder.suffix.lower() in (*READ, ".finola", ".json", ".csv"):
        raise InputError(f"-o {word} is a file, but this command needs a folder.")
    return folder


def print_json(value: Any) -> None:
    """Print a value as JSON. Raises ValueError for NaN and infinity, which JSON does not have."""
    escaped = not (sys.stdout.encoding or "").lower().startswith("utf")  # otherwise `main` would use Python escapes
    print(json.dumps(valid_unicode(value), indent=2, ensure_ascii=escaped, allow_nan=False))


def write_metrics(folder: Path, summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write summary.json, and images.csv with one row per photo."""
    import csv
    import io

    from finola.files import write_json, write_text

    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "images.csv", table.getvalue())
    write_json(folder / "summary.json", summary)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, with columns of numbers right-aligned and columns of text left-aligned.

    A cell that is a tuple has one line for each of its items. Text is printed as it is, without markup.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def shown(cell: object) -> str:
        return "\n".join(printable(str(line)) for line in (cell if isinstance(cell, tuple) else (cell,)))

    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    lines = [[shown(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        numbers = sum(NUMBER.match(line[number]) is not None for line in lines)
        justify: Literal["right", "left"] = "right" if number and column and 2 * numbers >= len(lines) else "left"
        table.add_column(Text(printable(column)), justify=justify, no_wrap=number == 0)
    for line in lines:
        table.add_row(*map(Text, line))
    console = Console(width=None if sys.stdout.isatty() else 110)  # fixed width for files and pipes
    with console.capture() as captured:  # because rich ends the process when a pipe is closed
        console.print(Text(printable(title), style="bold"), soft_wrap=True)
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def progress(items: Iterable[Any], total: int, what: str, quiet: bool = False) -> Iterator[Any]:
    """Yield the items and report progress on standard error, as `progress_bar` does."""
    if quiet:
        yield from items
        return
    with progress_bar(what) as report:
        for done, item in enumerate(items, 1):
            yield item
            report(done, total)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield `report(done, total)`: a progress bar in a terminal; elsewhere a line every few seconds.

    Both are written to standard error, and nothing is written by work that ends within `PROGRESS_SECONDS`.
    """
    start = last = time.monotonic()
    bar: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar, last
        now = time.monotonic()
        if bar is None and (now - last < PROGRESS_SECONDS or done >= total):
            return
        if not sys.stderr.isatty():
            say(f"finola: {what}, {done} of {total} after {now - start:.0f} s")
            last = now
            return
        if bar is None:
            bar = _rich_bar(what, done)
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _rich_bar(what: str, done: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(printable(what), markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=None, completed=done)
    return bar

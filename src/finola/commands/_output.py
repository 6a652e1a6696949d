"""What the verbs share in speaking to people and to machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def print_json(value: Any) -> None:
    """One JSON value on standard output; NaN and infinities are an error, not a surprise for the reader."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def write_figures(folder: Path, summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """summary.json, and images.csv with a line per photo."""
    import csv
    import io

    from finola.files import write_text

    folder.mkdir(parents=True, exist_ok=True)
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
    """The items, with a bar on standard error when the work is long enough to wonder about."""
    if quiet:
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

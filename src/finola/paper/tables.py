"""All tables and figures of the paper: their numbers, the models that they name, and the results that they quote.

They are listed in the order of their captions in the LaTeX source of arXiv 2310.12976, which numbers them.
"""

from __future__ import annotations

from finola.errors import UnknownNameError
from finola.paper import figures, tables_appendix, tables_main, tables_recognition
from finola.paper.definitions import Row, Same, Table

TABLES = (*tables_main.TABLES, *tables_appendix.TABLES, *tables_recognition.TABLES)
FIGURES = figures.FIGURES
EVERYTHING = (*TABLES, *FIGURES, *figures.OTHERS)
EQUATIONS = (
    *("eq:finola-intro", "eq:finola-pde", "eq:group-finola", "eq:finola-pde-diag", "eq:wave"),
    *("eq:group-finola-diag", "eq:group-finola-diag-para", "eq:wave-special-case1", "eq:wave-special-case2"),
    *("eq:appendix:guassian-curvature", "eq:norm-derive-1", "eq:norm-derive-2", "eq:norm-derive-3"),
)
_LABELS = {
    "Table": tuple(dict.fromkeys(table.label for table in TABLES)),  # parts of a table share its label
    "Figure": tuple(figure.label for figure in FIGURES),
    "Eq.": EQUATIONS,
}
ROWS: dict[str, Row | Same] = {f"{table.name}/{row}": table.rows[row] for table in EVERYTHING for row in table.rows}
"""Rows of all tables, by names such as `channels/3072`."""


def number(label: str) -> str:
    """Kind and number of a LaTeX label.

    >>> number("table:ablation"), number("eq:group-finola")
    ('Table 16', 'Eq. 3')
    """
    for kind, labels in _LABELS.items():
        if label in labels:
            return f"{kind} {labels.index(label) + 1}"
    raise UnknownNameError(f"Unknown label {label!r}; finola reproduce --list prints those of all tables and figures.")


def cite(label: str, part: str = "") -> str:
    """Citation by number and label, with an optional part of a table.

    >>> cite("table:ablation", "b")
    'Table 16b (table:ablation)'
    """
    return f"{number(label)}{part} ({label})"


def row_of(name: str) -> Row:
    """The row of a name, or the row that it repeats."""
    row = ROWS[name]
    return row_of(row.of) if isinstance(row, Same) else row


def quoted_numbers(row: Row | Same) -> dict[str, float]:
    """Numbers that the paper prints for a row; none if its settings differ from those of a row of the paper."""
    if isinstance(row, Row):
        return {**({} if row.psnr is None else {"psnr": row.psnr}), **row.quoted}
    if row.of not in ROWS or row.overrides or "channels" in row.twin:
        return dict(row.quoted)
    return {**quoted_numbers(ROWS[row.of]), **row.quoted}


def _models() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for table in EVERYTHING:
        where = f", {cite(table.label, table.part)}" if table.label else ""
        if table.rows:
            names = (row_of(f"{table.name}/{row}").model for row in table.rows)
            found[f"{table.name}{where}"] = list(dict.fromkeys(names))
        found |= {f"{title}{where}": list(models) for title, models in table.models.items()}
    return found


MODELS = _models()
"""Names of the models of each table, by its title: one-line names, and for recognition those of recipes."""


def find_table(label: str) -> Table:
    """The first table or figure of a label."""
    return next(table for table in EVERYTHING if table.label == label)

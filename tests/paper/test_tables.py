"""Tables: citations have the number of their LaTeX label, and every number is in the LaTeX source."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from finola.paper.definitions import Row, Same, Table
from finola.paper.recipes import RECIPES
from finola.paper.tables import EQUATIONS, FIGURES, ROWS, TABLES, cite, number, quoted_numbers

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "benchmarks", "README.md", "CHANGELOG.md")
TEXTS = [
    path
    for name in FOLDERS
    for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
    if path.suffix in (".py", ".md", ".yaml", ".json", ".ipynb") and path.parent.name != "paper"
]
CITED = re.compile(r"\b(Table|Figure|Fig\.|Tables|Figures) (\d+)[a-c]?\b")
PAIRED = re.compile(r"\b(Table|Figure) (\d+)[a-c]?\s+\(`?((?:table|fig):[\w:-]+)`?\)")
LABEL = re.compile(r"\b(?:table|fig|eq):[A-Za-z][\w:-]*")


def test_numbers_are_the_order_of_the_captions() -> None:
    """Counted from the LaTeX source: 30 tables, 21 figures, 13 equations."""
    tables, figures = ([*dict.fromkeys(table.label for table in kind)] for kind in (TABLES, FIGURES))
    assert [number(label) for label in tables] == [f"Table {place}" for place in range(1, 31)]
    assert [number(label) for label in figures] == [f"Figure {place}" for place in range(1, 22)]
    assert [number(label) for label in EQUATIONS] == [f"Eq. {place}" for place in range(1, 14)]
    assert len({*tables, *figures, *EQUATIONS}) == 64
    with pytest.raises(ValueError, match="table:none"):
        number("table:none")


def test_every_citation_has_its_number_and_label() -> None:
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        paired = {(kind, place): label for kind, place, label in PAIRED.findall(text)}
        assert {label: f"{kind} {place}" for (kind, place), label in paired.items()} == {
            label: number(label) for label in paired.values()
        }, path
        cited = {(word[:3], place) for word, place in CITED.findall(text)}
        assert cited <= {(kind[:3], place) for kind, place in paired}, f"{path}: cite tables as Table 1 (table:label)"
        for label in LABEL.findall(text):
            assert number(label.rstrip(":-")), path


def test_every_cited_equation_exists() -> None:
    for path in TEXTS:
        for first, last in re.findall(r"\bEqs?\. (\d+)(?:(?:–| and | to )(\d+))?", path.read_text(encoding="utf-8")):
            assert 1 <= int(first) <= int(last or first) <= len(EQUATIONS), path


def test_recipes_of_the_paper_cite_their_table() -> None:
    citations = tuple(
        f"{cite(label, part)}: " for label in (table.label for table in (*TABLES, *FIGURES)) for part in ("", "a", "b")
    )
    assert all(recipe["about"].startswith(citations) for name, recipe in RECIPES.items() if name.startswith("paper/"))


def test_numbers_of_a_figure_are_those_of_a_table() -> None:
    """A figure is an image without numbers: tables repeat its rows."""
    repeated = {row.of for name, row in ROWS.items() if isinstance(row, Same)}
    figures = [f"{figure.name}/{row}" for figure in FIGURES for row in figure.rows]
    assert {name for name in figures if isinstance(ROWS[name], Row) and quoted_numbers(ROWS[name])} <= repeated


SOURCE = os.environ.get("FINOLA_PAPER", "")
needs_source = pytest.mark.skipif(not SOURCE, reason="FINOLA_PAPER names the LaTeX source of arXiv 2310.12976")


def captioned() -> dict[str, str]:
    """The environment of each table by its label, or the part of it from its caption to the next."""
    text = re.sub(r"(?<!\\)%.*", "", Path(SOURCE).read_text(encoding="utf-8"))
    found = {}
    for _, body in re.findall(r"\\begin\{((?:wrap)?table\*?)\}(.*?)\\end\{\1\}", text, re.DOTALL):
        for part in re.split(r"(?=\\caption)", body)[1:]:
            found |= dict.fromkeys(re.findall(r"\\label\{(table:[^}]+)\}", part), part)
    return found


@needs_source
def test_labels_are_in_the_order_of_the_source() -> None:
    labels = re.findall(r"\\label\{((?:table|fig|eq):[^}]+)\}", Path(SOURCE).read_text(encoding="utf-8"))
    known = [*(table.label for table in (*TABLES, *FIGURES)), *EQUATIONS]
    assert sorted(labels) == sorted(set(known))
    for kind in ("fig", "eq"):
        assert [label for label in labels if label.startswith(kind)] == [la for la in known if la.startswith(kind)]


@needs_source
@pytest.mark.parametrize("table", [table for table in TABLES if table.rows or table.quoted], ids=lambda t: t.label)
def test_every_number_is_in_its_table_of_the_source(table: Table) -> None:
    printed = {float(word) for word in re.findall(r"\d+(?:\.\d+)?", captioned()[table.label])}
    numbers = {float(value) for row in table.rows.values() for value in quoted_numbers(row).values()}
    numbers |= {float(value) for row in table.quoted for value in row.values() if isinstance(value, int | float)}
    assert numbers and numbers <= printed

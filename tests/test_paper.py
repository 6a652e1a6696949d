"""Citations of the paper have the number of their LaTeX label."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from finola.paper import EQUATIONS, FIGURES, TABLES, cite, number
from finola.recipes.table import RECIPES

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "docs", "benchmarks", "README.md", "CHANGELOG.md")
TEXTS = [
    path
    for name in FOLDERS
    for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
    if path.suffix in (".py", ".md", ".yaml", ".json", ".ipynb") and path.name != "paper.py"
]
CITED = re.compile(r"\b(Table|Figure|Fig\.|Tables|Figures) (\d+)[a-c]?\b")
PAIRED = re.compile(r"\b(Table|Figure) (\d+)[a-c]?\s+\(`?((?:table|fig):[\w:-]+)`?\)")
LABEL = re.compile(r"\b(?:table|fig|eq):[A-Za-z][\w:-]*")


def test_numbers_are_the_order_of_the_captions() -> None:
    """Counted from the LaTeX source: 30 tables, 21 figures, 13 equations."""
    assert (len(TABLES), len(FIGURES), len(EQUATIONS)) == (30, 21, 13)
    assert len({*TABLES, *FIGURES, *EQUATIONS}) == 64
    assert [number(label) for label in TABLES] == [f"Table {place}" for place in range(1, 31)]
    assert [number(label) for label in FIGURES] == [f"Figure {place}" for place in range(1, 22)]
    assert [number(label) for label in EQUATIONS] == [f"Eq. {place}" for place in range(1, 14)]
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
    citations = tuple(f"{cite(label, part)}: " for label in (*TABLES, *FIGURES) for part in ("", "a", "b"))
    assert all(recipe["about"].startswith(citations) for name, recipe in RECIPES.items() if name.startswith("paper/"))

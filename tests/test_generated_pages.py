"""Pages generated from stored results are current."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="source distributions have no results/")


@pytest.mark.parametrize(
    "script, page",
    [("wave_start.py", "wave-start.md"), ("recognition.py", "recognition.md"), ("exports.py", "export.md")],
)
def test_page_follows_from_the_stored_results(script: str, page: str) -> None:
    assert runpy.run_path(str(DOCS / script))["page"]() == (DOCS / page).read_text(encoding="utf-8")

"""Pages generated from stored results are current."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("script, page", [("wave_start.py", "wave-start.md"), ("recognition.py", "recognition.md")])
def test_page_follows_from_the_stored_results(script: str, page: str) -> None:
    assert runpy.run_path(str(DOCS / script))["page"]() == (DOCS / page).read_text(encoding="utf-8")

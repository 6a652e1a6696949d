"""The page of `make coverage` names every module below the bar, and no other."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "coverage.py"))


def summary(lines: int, missing: int) -> dict[str, Any]:
    percent = 100 * (lines - missing) / lines if lines else 100.0
    return {"num_statements": lines, "missing_lines": missing, "percent_covered": percent}


def test_modules_below_the_bar_are_named_lowest_first() -> None:
    files = {"a": (10, 1), "b": (10, 2), "c": (100, 70), "d": (0, 0)}
    report = {
        "files": {f"src/finola/{name}.py": {"summary": summary(*counts)} for name, counts in files.items()},
        "totals": summary(120, 73),
    }
    found = SCRIPT["summarise"](report)
    assert list(found["modules"]) == ["finola/a.py", "finola/b.py", "finola/c.py"] and found["lines"] == 120
    text = SCRIPT["page"](found)
    assert "finola/a.py" not in text and "finola/d.py" not in text
    assert text.index("finola/c.py") < text.index("finola/b.py")

"""Write results/coverage.json and docs/coverage.md from a JSON report of coverage: python docs/coverage.py REPORT"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BAR = 90.0  # percent of lines
HEAD = """# Test coverage

Lines that the tests execute, measured by `make coverage`, which writes this page and `results/coverage.json`. Doctests
are not counted.
"""


def summarise(report: dict[str, Any]) -> dict[str, Any]:
    """Percentages of lines of all modules together and of each, as in the report of coverage."""
    modules = {
        Path(name).as_posix().partition("src/")[2]: {
            "lines": found["summary"]["num_statements"],
            "missing": found["summary"]["missing_lines"],
            "percent": round(found["summary"]["percent_covered"], 1),
        }
        for name, found in report["files"].items()
        if found["summary"]["num_statements"]
    }
    totals = report["totals"]
    whole = {"lines": totals["num_statements"], "percent": round(totals["percent_covered"], 1)}
    return {"bar": BAR, **whole, "modules": dict(sorted(modules.items()))}


def page(found: dict[str, Any]) -> str:
    """The page: the total, and a table of the modules below the bar, lowest first."""
    below = [(row["percent"], name, row) for name, row in found["modules"].items() if row["percent"] < found["bar"]]
    count = f"{len(below)} of {len(found['modules'])} modules are below {found['bar']:.0f} %"
    parts = [HEAD, f"**{found['percent']} %** of {found['lines']:,} lines; {count}.\n"]
    if below:
        rows = [
            f"| `{name}` | {percent} % | {row['missing']} of {row['lines']} |"
            for percent, name, row in sorted(below, key=lambda one: one[:2])
        ]
        parts.append("\n".join(["| module | covered | lines not executed |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def main() -> None:
    from finola.files import write_text

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="JSON report of coverage")
    found = summarise(json.loads(parser.parse_args().report.read_text(encoding="utf-8")))
    write_text(ROOT / "results" / "coverage.json", json.dumps(found, indent=1) + "\n")
    write_text(ROOT / "docs" / "coverage.md", page(found))
    print(page(found))


if __name__ == "__main__":
    main()

"""Write the table of docs/export.md from results/export.json: python docs/exports.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "export.md"
HEADING = "## Sizes and times\n"
COLUMNS = ("model", "part", "MB", "in half precision", "largest difference", "PyTorch, ms", "onnxruntime, ms", "ratio")


def table(found: dict[str, Any]) -> str:
    """One row per model and part; times of single precision."""
    half = {(row["model"], row["part"]): row for row in found["rows"] if row["half"]}
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---" + "|---:" * (len(COLUMNS) - 2) + "|"]
    for row in found["rows"]:
        if row["half"]:
            continue
        seconds = row["pytorch_seconds"], row["exported_seconds"]
        cells = (
            f"`{row['model']}`",
            row["part"],
            f"{row['bytes'] / 1e6:.1f}",
            f"{half[row['model'], row['part']]['bytes'] / 1e6:.1f}",
            f"{row['difference']:.1e}",
            *(f"{1e3 * time:.1f}" for time in seconds),
            f"{seconds[0] / seconds[1]:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its last section replaced by the stored results."""
    found = json.loads((ROOT / "results" / "export.json").read_text(encoding="utf-8"))
    about = (
        f"`python benchmarks/export_models.py --json` (`results/export.json`) on {found['cpu']}, one thread, for one "
        "tile or image:"
    )
    return f"{PAGE.read_text(encoding='utf-8').partition(HEADING)[0]}{HEADING}{about}\n\n{table(found)}\n"


def main() -> None:
    from finola.files import write_text

    write_text(PAGE, page())


if __name__ == "__main__":
    main()

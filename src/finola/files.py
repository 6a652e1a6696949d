"""Text files written so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    os.replace(beside, path)

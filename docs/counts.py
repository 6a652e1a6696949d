"""Generate src/finola/model_counts.json, the counts that `finola models` prints: python docs/counts.py"""

from __future__ import annotations

import json
from dataclasses import astuple

from finola.files import write_text
from finola.hub import bundled_models
from finola.model_counts import COUNTS, count
from finola.model_zoo import known_names
from finola.paper.tables import MODELS

if __name__ == "__main__":
    listed = [name for names in MODELS.values() for name in names]
    names = dict.fromkeys([*bundled_models(), *known_names(), *listed])
    rows = {name: {part: astuple(size) for part, size in count(name).items()} for name in names}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    write_text(COUNTS, f"{{\n{lines}\n}}\n")
    print(f"Wrote {len(rows)} models to {COUNTS}")

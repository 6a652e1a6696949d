"""Sizes, differences and times of exported models: python benchmarks/export_models.py [MODEL …]

Exports each model to ONNX in single and half precision and prints one row per part. Times are on one thread, for one
tile or image, in PyTorch and in onnxruntime. With --json the rows are printed as JSON (results/export.json). With
--folder the exports are kept there, and those of a former call are used, so that only the comparison needs an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from finola.cli.output import print_table
from finola.deployment import export, verify
from finola.deployment.exporter import MANIFEST
from finola.model_zoo import load_model
from finola.paper.measure import machine

MODELS = ("tile32", "photo256", "paper64", "waves512")
REPEATS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--folder", type=Path, help="where to keep the exports")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.models:
            model = load_model(name).eval()
            for half in (False, True):
                folder = Path(args.folder or temporary, name, "half" if half else "single")
                if not (folder / MANIFEST).is_file():
                    export(model, folder, half=half, name=name)
                rows += [{"model": name, "half": half, **row} for row in verify(model, folder, repeats=REPEATS)]
    if args.json:
        print(json.dumps({"cpu": machine(), "threads": 1, "repeats": REPEATS, "rows": rows}, indent=1))
        return
    cells = [
        (
            row["model"],
            row["part"],
            "half" if row["half"] else "single",
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['difference']:.1e}",
            f"{1e3 * row['pytorch_seconds']:.1f}",
            f"{1e3 * row['exported_seconds']:.1f}",
            f"{row['pytorch_seconds'] / row['exported_seconds']:.1f}",
        )
        for row in rows
    ]
    columns = ["model", "part", "weights", "MB", "largest difference", "PyTorch, ms", "onnxruntime, ms", "ratio"]
    print_table(f"{machine()}, one thread", columns, cells)


if __name__ == "__main__":
    main()

"""Execute the notebooks and store their outputs: python docs/notebooks.py"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def execute(path: Path) -> None:
    """Run a notebook from top to bottom and write it with its outputs; images are stored once, as JPEG if possible."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of the run
        if cell.cell_type == "code":  # warnings of libraries on the machine of the run are left out
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            if "image/jpeg" in output.get("data", {}):
                output.data.pop("image/png", None)
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in NOTEBOOKS:
        execute(path)
        print(path.name, f"{path.stat().st_size / 1e3:.0f} kB")

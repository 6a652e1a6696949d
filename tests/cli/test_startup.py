"""What needs no model does not import torch, which takes a second or more."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version
from PIL import Image

import finola
from finola.hub import UNTRAINED, bundled_models

FROZEN = Path(__file__).parents[1] / "codec" / "frozen.finola"


def run_without_torch(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which importing torch fails."""
    environment = os.environ | {"PYTHONPATH": str(Path(finola.__file__).parents[1])}
    code = f"import sys; sys.modules['torch'] = None\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["info"], 0, finola.__version__),
        (["info", str(FROZEN)], 0, "waves512"),
        (["info", "nowhere.finola"], 2, "nowhere.finola"),
        (["models", "tile32", "mf-w2880/1024x4@64"], 0, "tile32"),
        (["models", "tile46"], 2, "tile46"),
    ],
)
def test_commands_without_a_model(arguments: list[str], exit_code: int, expected: str, tmp_path: Path) -> None:
    done = run_without_torch(f"from finola.cli import main; sys.exit(main({arguments!r}))", tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert expected in done.stdout + done.stderr


def test_the_main_process_of_workers_does_not_import_torch(tmp_path: Path) -> None:
    """On two cores its import would take the time of thousands of photos from the workers."""
    for number in range(3):
        Image.new("RGB", (40, 50), (number, 0, 0)).save(tmp_path / f"{number}.png")
    words = ["embed", "*.png", "-m", "waves/64x1@8:32", "-o", "out", "--shard-size", "2", "--workers", "2", "--json"]
    done = run_without_torch(f"from finola.cli import main; sys.exit(main({words!r}))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 3


def test_the_version_is_that_of_the_installed_distribution(tmp_path: Path) -> None:
    code = "from finola.cli import main; main(['--version'])"
    done = run_without_torch(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, f"finola {importlib.metadata.version('finola')}\n")


def test_a_checkout_that_is_not_installed_has_a_version(tmp_path: Path) -> None:
    """Without site-packages there is no distribution to ask."""
    source = Path(finola.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(source)!r}); import finola; print(finola.__version__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and Version(done.stdout.strip()) < Version("0.1"), done.stderr


def test_the_list_of_models_has_all_bundled_ones(tmp_path: Path) -> None:
    done = run_without_torch("from finola.cli import main; sys.exit(main(['models', '--json']))", tmp_path)
    rows = json.loads(done.stdout)["models"]
    assert {row["model"] for row in rows} == {*bundled_models(), *UNTRAINED}
    for row in rows:
        for numbers in (row["parameters"], row["multiply_adds"]):
            assert numbers["all"] == sum(value for part, value in numbers.items() if part != "all")


def test_names_of_models_are_resolved(tmp_path: Path) -> None:
    code = """
import finola
for load in (finola.load, finola.load_classifier, finola.load_detector):
    names = {"tile23": "tile23"} | ({} if load is finola.load else {"tile32": "load it with"})
    for name, words in names.items():
        try:
            load(name)
        except (FileNotFoundError, ValueError) as error:
            assert words in str(error), error
        else:
            sys.exit(f"{name} was loaded")
"""
    assert run_without_torch(code, tmp_path).returncode == 0

"""The core installation works without the optional dependencies, and what needs one names its extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from finola.errors import EXTRAS
from finola.image_io import save_photo

ROOT = Path(__file__).parents[1]
PROBED = {"fsspec", "yaml", "onnx", "onnxruntime"}  # huggingface_hub depends on two, torch looks for the others
OPTIONAL = sorted(set(EXTRAS) - PROBED)
BLOCKED = f"""
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from finola.cli import main
"""


def run_blocked(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process where no optional dependency can be imported."""
    command = [sys.executable, "-c", BLOCKED + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_core_commands_import_no_optional_dependency(tmp_path: Path) -> None:
    save_photo(torch.rand(3, 70, 90), tmp_path / "photo.png")
    commands = [
        ["reconstruct", "photo.png", "-o", "out"],
        ["compress", "photo.png", "-m", "waves512", "-o", "photo.finola"],
        ["decompress", "photo.finola", "-o", "decoded.png"],
        ["info", "photo.finola"],
        ["models", "waves/64x1@8:32"],
        ["waves", "waves/64x1@8:32", "--images", "photo.png"],
        ["evaluate", "-m", "waves/64x1@8:32", "photo.png"],
        ["compare", "photo.png", "--methods", "dct:1", "--workers", "1", "--cache", "cache"],
    ]
    done = run_blocked(f"print([main(words) for words in {commands}])", tmp_path)
    assert done.stdout.splitlines()[-1:] == [str([0] * len(commands))], done.stderr
    assert {"out", "photo.finola", "decoded.png"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["train", "smoke", "--out", "run"], "train"),
        (["reconstruct", "skimage:astronaut"], "demo"),
        (["reconstruct", "{0..9}.png"], "train"),
        (["waves", "waves/64x1@8:32", "--images", "photo.png", "--plot", "speeds.png"], "plot"),
        (["grow", "photo.png", "-o", "film.mp4"], "video"),
        (["compare", "photo.png", "--methods", "dwt:ll"], "compare"),
        (["embed", "photo.png", "-o", "out"], "batch"),
        (["export", "waves/16x1@4:16", "-o", "out"], "onnx"),
        (["app"], "app"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(arguments: list[str], extra: str, tmp_path: Path) -> None:
    save_photo(torch.rand(3, 16, 16), tmp_path / "photo.png")
    done = run_blocked(f"sys.exit(main({arguments}))", tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"pip install 'finola[{extra}]'" in done.stderr


def test_every_optional_dependency_is_declared_in_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {"skimage": "scikit-image", "pywt": "pywavelets", "yaml": "pyyaml", "pillow_jxl": "pillow-jxl-plugin"}
    for module, extra in EXTRAS.items():
        name = names.get(module, module.replace("_", "-"))
        declared = [re.split(r"[<>=\[]", word)[0] for word in project["optional-dependencies"][extra]]
        assert name in declared, module
        assert name not in [re.split(r"[<>=\[]", word)[0] for word in project["dependencies"]]

"""The commands in the documentation are valid, the recipes that they train exist, and the README's examples run."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from finola.cli import build_parser
from finola.errors import EXTRAS
from finola.recipes.loading import list_recipes, load_recipe

ROOT = Path(__file__).parents[1]
PAGES = [
    path for pattern in ("README.md", "docs/*.md", "src/finola/weights/*/*.md") for path in sorted(ROOT.glob(pattern))
]


def code_blocks(text: str, language: str = r"\w*") -> list[str]:
    """Contents of the fenced code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Arguments of all commands in code blocks, fenced or indented, with continued lines joined."""
    fenced = "".join(code_blocks(text))
    indented = "".join(re.findall(r"^    .*\n", text, re.MULTILINE))
    lines = (fenced + indented).replace("\\\n", " ").splitlines()
    found = [
        part for line in lines for part in re.split(r"\s{2,}(?=finola )", f"  {line}") if part.startswith("finola ")
    ]
    return [shlex.split(re.split(r" [>|] ", part)[0], comments=True)[1:] for part in found]


def mentioned_options(text: str) -> list[tuple[str, str]]:
    """Verb and option of inline code such as `finola waves MODEL --plot FILE`."""
    spans = re.findall(r"`finola ([a-z]+)([^`]*)`", text)
    return [(verb, option) for verb, rest in spans for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest)]


def known_options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Help text by verb, nested verbs included."""
    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    texts = {}
    for name, verb in verbs.items():
        nested = [action.choices for action in verb._actions if isinstance(action, argparse._SubParsersAction)]
        texts[name] = verb.format_help() + "".join(one.format_help() for each in nested for one in each.values())
    return texts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_are_valid(page):
    parser, text = build_parser(), page.read_text(encoding="utf-8")
    for command in commands(text):
        arguments = parser.parse_args(command)
        if command[0] == "train" and arguments.recipe in list_recipes():
            load_recipe(arguments.recipe, arguments.overrides)
        elif command[0] == "train" and arguments.recipe:
            assert arguments.resume or arguments.recipe.endswith(".yaml"), command
    known = known_options(parser)
    for verb, option in mentioned_options(text):
        assert re.search(rf"(?<![\w-]){option}\b", known[verb]), f"finola {verb} has no option {option}"


def test_the_documentation_has_commands_of_every_form():
    found = {command[0] for page in PAGES for command in commands(page.read_text(encoding="utf-8"))}
    assert found >= {"reconstruct", "compress", "decompress", "train", "latent", "app", "detect"}


def test_the_python_examples_of_the_readme_run():
    first, second = code_blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {}
    exec(first, names)
    assert names["reconstruction"].shape == names["photo"].shape == names["image"].shape
    names |= {name: torch.zeros(512, 512) for name in ("A", "B", "A_minus", "B_minus")}
    exec(second, names)
    assert names["z"].shape == (1, 512, 64, 64)


def test_the_example_of_gradients_per_sample_runs():
    (example,) = code_blocks((ROOT / "docs" / "speed.md").read_text(encoding="utf-8"), "python")
    variables: dict[str, object] = {}
    exec(example, variables)
    assert variables["gradients"]["transition.A"].shape == (4, 64, 64)  # type: ignore[index]


def test_one_recurrence_has_any_printed_spectrum(capsys):
    (example,) = code_blocks((ROOT / "docs" / "speeds.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {}
    exec(example, names)
    A, B, u = names["A"], names["B"], names["u"]
    printed = torch.linalg.eigvals((A + u) @ torch.linalg.inv(B))
    torch.testing.assert_close(printed.real.sort().values, names["wanted"].double(), atol=1e-6, rtol=0)
    same = names["finola"].propagate(names["q"], names["same"], 16)
    torch.testing.assert_close(same, names["ours"], atol=1e-8, rtol=0)


CORE = {"finola", "torch", "torchvision", "timm", "numpy", "PIL", "safetensors", "huggingface_hub", "rich", "scipy"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_import_what_the_package_or_an_extra_installs(page):
    nodes = [node for block in code_blocks(page.read_text("utf-8"), "python") for node in ast.walk(ast.parse(block))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - CORE <= set(EXTRAS)

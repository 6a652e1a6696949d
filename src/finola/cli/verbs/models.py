"""finola models: list models with parameters and multiply–adds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

HELP = "list models with parameters and multiply-adds of each part"
AUTOENCODERS, CLASSIFIERS = "bundled autoencoders", "bundled classifiers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "names of models or of the recipes that train them, or patterns; '*' lists all (default: bundled models)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=text)
    parser.add_argument("-m", "--model", nargs="+", default=[], metavar="NAME", help="the same as an option")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json, print_table, progress
    from finola.hub import UNTRAINED, bundled_models
    from finola.paper.tables import MODELS

    bundled = {AUTOENCODERS: [*bundled_models("autoencoder"), *UNTRAINED], CLASSIFIERS: bundled_models("classifier")}
    everything = bundled | MODELS
    words = [*args.names, *args.model]
    groups = choose(everything, words) if words else bundled
    total = sum(map(len, groups.values()))
    pairs = ((group, name) for group, names in groups.items() for name in names)
    rows = [_row(group, name) for group, name in progress(pairs, total, "counting", quiet=args.json)]
    if args.json:
        print_json({"models": rows})
        return
    print("Upper line: parameters. Lower line: multiply-adds per image.")
    for group in groups:
        for parts in dict.fromkeys(tuple(row["parameters"]) for row in rows if row["group"] == group):
            body = [_cells(row) for row in rows if row["group"] == group and tuple(row["parameters"]) == parts]
            print_table(group, ["name", "classes" if "head" in parts else "latent", *parts], body)
    if not words:
        rest = {name for names in everything.values() for name in names} - {row["model"] for row in rows}
        print(f"{len(rest)} more, those of the paper among them: finola models '*', or a pattern such as 'paper/*'.")


def choose(groups: dict[str, list[str]], words: Sequence[str]) -> dict[str, list[str]]:
    """Models that match any word, each in its first group; one-line names that are not listed have their own group.

    A word is the name of a model, the name of a recipe that trains it, or a pattern of such names.

    >>> choose({"a": ["tile32", "photo256"], "b": ["waves512"]}, ["tile*", "waves/64x1@8:32"])
    {'a': ['tile32'], 'named': ['waves/64x1@8:32']}
    """
    from finola.config import nearest
    from finola.errors import UnknownNameError
    from finola.paper.recipes import RECIPES

    recipes: dict[str, list[str]] = {}
    for recipe, settings in RECIPES.items():
        recipes.setdefault(settings.get("model", {}).get("name", ""), []).append(recipe)
    known = {model: [model, *recipes.get(model, [])] for models in groups.values() for model in models}
    chosen: set[str] = set()
    named: list[str] = []
    for word in words:
        found = {model for model, names in known.items() if any(fnmatchcase(name, word) for name in names)}
        if not found and "@" in word:
            named.append(word)
        elif not found:
            raise UnknownNameError(f"Unknown model {word!r}: {nearest(word, known)}")
        chosen |= found
    first = {model: group for group, models in reversed(groups.items()) for model in models}
    selected = {group: [m for m in models if m in chosen and first[m] == group] for group, models in groups.items()}
    return {group: models for group, models in (selected | {"named": named}).items() if models}


def _row(group: str, name: str) -> dict[str, Any]:
    from finola.config import ModelConfig
    from finola.hub import WEIGHTS_FOLDER, bundled_models, full_name, read_config
    from finola.model_counts import sizes

    counted = sizes(name)
    row: dict[str, Any] = {"group": group, "model": name}
    if name in bundled_models("classifier"):
        row["classes"] = len(read_config(WEIGHTS_FOLDER / name)["classes"])
    elif "head" in counted:
        row["classes"] = 80 if name.startswith("detection/") else 1000
    elif "embedding" in counted:  # masked FINOLA-B: 64 vectors of 512, which are not pooled
        row |= {"latent": 64 * 512, "parameters_per_matrix": 512**2}
    elif name.startswith("masked/"):
        row |= {"latent": 512, "parameters_per_matrix": 512**2}
    else:
        config = ModelConfig.parse(full_name(name))
        row |= {"latent": config.channels * config.paths, "parameters_per_matrix": config.channels**2}
    for key in ("parameters", "multiply_adds"):
        row[key] = {part: getattr(size, key) for part, size in counted.items()}
        row[key]["all"] = sum(row[key].values())
    return row


def _cells(row: dict[str, Any]) -> list[object]:
    cells: list[object] = [row["model"], f"{row.get('latent', row.get('classes')):,}"]
    for part, parameters in row["parameters"].items():
        cells.append((short(parameters), short(row["multiply_adds"][part])))
    return cells


def short(number: int) -> str:
    """Format a number with a unit prefix: 1234567 → 1.23M.

    >>> short(268_435_456), short(0)
    ('268M', '0')
    """
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g}{unit}"
    return str(number)

"""Load recipes from a bundled name or a YAML file, with `key=value` overrides and one-line error messages."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finola.config import nearest
from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError, first_line, shorten
from finola.recipes.table import RECIPES
from finola.training.config import Recipe, ReconstructionRecipe, recipe_class
from finola.training.validation import (
    MAX_FILE_SIZE,
    Settings,
    check_key,
    check_type,
    leaves,
    nest,
    parse_setting,
    schema,
)

RECIPE = "recipe.yaml"
"""File of the resolved recipe in a run directory."""
RECIPE_FOLDER = Path(__file__).parents[1] / "recipes"
COMMAND_LINE = "the command line"
MAX_SETTINGS = 500


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a bundled recipe by name (`finola train --list`) or a YAML file, and apply overrides such as `seed=1`.

    A file can inherit from another recipe by its `base` key.

    >>> load_recipe("smoke", ["schedule.epochs=2"]).schedule.epochs
    2
    """
    path = find(source)
    settings: Settings = {}
    for where, content in reversed(_with_bases(path)):
        settings |= {key: (value, where) for key, value in leaves(content)}
    settings.pop("base", None)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise InputError(f"Invalid override {shorten(override)}. Write key=value, such as schedule.epochs=20.")
        value = parse_setting(text, f"The override {shorten(override)}")
        # Overriding a whole section, as in optimiser.groups={}, replaces all its settings.
        for known in [known for known in settings if known == key or known.startswith(f"{key}.")]:
            del settings[known]
        settings |= {k: (v, COMMAND_LINE) for k, v in leaves({key: value})}
    recipe = _build(settings, path)
    recipe.check()
    return recipe


def _build(settings: Settings, source: Path | str) -> Recipe:
    """Build the recipe of the task that the settings name. Raises InputError for unknown keys and wrong types."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    task, where = settings.get("task", (ReconstructionRecipe.task, ""))
    if not isinstance(task, str):
        raise InputError(f"{where} sets task to {shorten(task)}, but a string is expected.")
    kind: Any = recipe_class(task)
    if len(settings) > MAX_SETTINGS:
        raise InputError(f"{source} has {len(settings)} settings; the maximum is {MAX_SETTINGS}.")
    for key, (value, where) in settings.items():
        check_key(kind, key, value, where)
    try:
        config = OmegaConf.merge(schema(kind), nest(settings))
        recipe = typing.cast(Recipe, OmegaConf.to_object(config))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        for key, (value, where) in settings.items():
            check_type(kind, key, value, where)
        raise InputError(f"{source} is not a valid recipe: {first_line(error)}.") from error
    recipe.name = recipe.name or name_of(source)
    return recipe


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as YAML, in the format that `load_recipe` reads."""
    from omegaconf import OmegaConf

    from finola.files import write_text  # imports torch, which reading a recipe does not need

    write_text(path, OmegaConf.to_yaml(OmegaConf.structured(recipe)))


def list_recipes() -> list[str]:
    """Names of the bundled recipes: the generated ones and the YAML files, except bases (leading underscore)."""
    return sorted([*RECIPES, *(name_of(path) for path in RECIPE_FOLDER.rglob("[!_]*.yaml"))])


def find(source: str | Path) -> Path | str:
    """Resolve a path or bundled name to its YAML file, or a generated recipe (`finola.recipes.table`) to its name."""
    path = Path(os.path.expanduser(source))  # Path.expanduser raises for unknown users
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise MissingFileError(
                f"Recipe file {path} does not exist. Check the path, or list recipes with finola train --list."
            )
        return path
    if path.as_posix() in RECIPES:
        return path.as_posix()
    bundled = RECIPE_FOLDER / f"{source}.yaml"
    if not bundled.is_file():
        raise UnknownNameError(f"Unknown recipe {shorten(source)}: {nearest(str(source), list_recipes())}")
    return bundled


def name_of(found: Path | str) -> str:
    """The name of what `find` returned: `masked/e-w720-128` for a bundled file, the stem for another file.

    >>> name_of(find("paper/resolution/3072x1@16"))
    'paper/resolution/3072x1@16'
    """
    if isinstance(found, str):
        return found
    path, folder = found.resolve(), RECIPE_FOLDER.resolve()
    inside = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    return inside.with_suffix("").as_posix()


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Flatten a recipe to a dictionary from dotted keys to values."""
    return dict(leaves(dataclasses.asdict(recipe)))


def _with_bases(found: Path | str) -> list[tuple[str, dict[str, Any]]]:
    """The settings of a recipe, of its base, of the base of that, …, each with a name for error messages."""
    chain: list[tuple[str, dict[str, Any]]] = []
    visited: set[Path | str] = set()
    while (key := found.resolve() if isinstance(found, Path) else found) not in visited:
        visited.add(key)
        content = _read(found) if isinstance(found, Path) else RECIPES[found]
        chain.append((found.name if isinstance(found, Path) else found, content))
        if not (base := content.get("base")):
            return chain
        last, found = found, _find_base(base, found)
    raise InputError(f"Circular base: {last} has base {base}, which is derived from it.")


def _find_base(base: Any, recipe: Path | str) -> Path | str:
    """Resolve a base to a file in the same folder or a bundled recipe."""
    if not isinstance(base, str) or not Path(base).name or len(base) > 200 or "\0" in base:
        raise InputError(f"{recipe} has base {shorten(base)}, which is not a valid recipe name.")
    if isinstance(recipe, Path):
        beside = (recipe.parent / base).with_suffix(".yaml")
        if beside.is_file():
            return beside
    return find(base)


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MAX_FILE_SIZE:
        raise CorruptFileError(f"{path} is not a recipe: it has {size} bytes; the maximum is {MAX_FILE_SIZE}.")
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} cannot be read as YAML: it is not UTF-8 text.") from error
    content = parse_setting(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CorruptFileError(
            f"{path} is not a recipe: it contains a {type(content).__name__}, not a mapping of settings."
        )
    return content

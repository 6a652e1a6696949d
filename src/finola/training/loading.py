"""Load recipes from a bundled name or a YAML file, with `key=value` overrides and one-line error messages."""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from finola.config import nearest
from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError
from finola.recipes.table import RECIPES
from finola.training.config import Recipe, check
from finola.training.parsing import MAX_FILE_SIZE, parse_setting, shown

BUNDLED = Path(__file__).parents[1] / "recipes"
MAX_SETTINGS = 500
MAX_KEY_LENGTH = 200
_TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a bundled recipe by name (`finola train --list`) or a YAML file, and apply overrides such as `seed=1`.

    A file can inherit from another recipe by its `base` key.

    >>> load_recipe("smoke", ["schedule.epochs=2"]).schedule.epochs
    2
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = find(source)
    settings: dict[str, tuple[Any, str]] = {}
    for where, content in reversed(_with_bases(path)):
        settings |= {key: (value, where) for key, value in _leaves(content)}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise InputError(f"Invalid override {shown(override)}. Write key=value, such as schedule.epochs=20.")
        value = parse_setting(text, f"The override {shown(override)}")
        # Overriding a whole section, as in optimiser.groups={}, replaces all its settings.
        settings = {k: v for k, v in settings.items() if not k.startswith(f"{key}.")}
        settings |= {k: (v, "the command line") for k, v in _leaves({key: value})}
    settings.pop("base", None)
    if len(settings) > MAX_SETTINGS:
        raise InputError(f"{path} has {len(settings)} settings; the maximum is {MAX_SETTINGS}.")
    for key, (value, where) in settings.items():
        _check_key(key, value, where)
    try:
        config = OmegaConf.merge(_schema(), _nest({key: value for key, (value, _) in settings.items()}))
        recipe = typing.cast(Recipe, OmegaConf.to_object(config))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        for key, (value, where) in settings.items():
            _check_type(key, value, where)
        raise InputError(f"{path} is not a valid recipe: {str(error).splitlines()[0]}.") from error
    recipe.name = recipe.name or name_of(path)
    return check(recipe)


@cache
def _schema() -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.structured(Recipe)  # slow to create, fast to copy


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as YAML, in the format that `load_recipe` reads."""
    from omegaconf import OmegaConf

    from finola.files import write_text  # imports torch, which reading a recipe does not need

    write_text(path, OmegaConf.to_yaml(OmegaConf.structured(recipe)))


def list_recipes() -> list[str]:
    """Names of the bundled recipes: the generated ones and the YAML files, except bases (leading underscore)."""
    return sorted([*RECIPES, *(name_of(path) for path in BUNDLED.rglob("[!_]*.yaml"))])


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
    bundled = BUNDLED / f"{source}.yaml"
    if not bundled.is_file():
        raise UnknownNameError(f"Unknown recipe {shown(source)}: {nearest(str(source), list_recipes())}")
    return bundled


def name_of(found: Path | str) -> str:
    """The name of what `find` returned: `masked/e-w720-128` for a bundled file, the stem for another file.

    >>> name_of(find("paper/resolution/3072x1@16"))
    'paper/resolution/3072x1@16'
    """
    if isinstance(found, str):
        return found
    path = found.resolve()
    inside = path.relative_to(BUNDLED.resolve()) if path.is_relative_to(BUNDLED.resolve()) else Path(path.name)
    return inside.with_suffix("").as_posix()


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Flatten a recipe to a dictionary from dotted keys to values."""
    return dict(_leaves(dataclasses.asdict(recipe)))


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
        raise InputError(f"{recipe} has base {shown(base)}, which is not a valid recipe name.")
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


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nest(settings: dict[str, Any]) -> dict[str, Any]:
    """Inverse of `_leaves`."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def _check_key(key: str, value: Any, where: str) -> None:
    """Raise InputError for an unknown key or a missing value."""
    expected = _type_of(key) if len(key) <= MAX_KEY_LENGTH else None
    if expected is None:
        raise InputError(f"Unknown setting {shown(key)} in {where}: {_nearest_key(key)}")
    if value is None and not _allows_none(expected):
        raise InputError(f"{where} sets {key} to nothing, but {_describe(expected)} is expected.")
    # OmegaConf does not check the type of lists and sections inside a list.
    items = value if typing.get_origin(expected) is list and isinstance(value, list) else []
    if any(item is None or isinstance(item, list | dict) for item in items):
        raise InputError(f"{where} sets {key} to {shown(value)}, but {_describe(expected)} is expected.")
    if dataclasses.is_dataclass(expected) and not isinstance(value, dict):
        example = f"{key}.{next(iter(typing.get_type_hints(expected)))}"
        got = f"{shown(value)} ({type(value).__name__})"
        raise InputError(f"{where} sets {key} to {got}, but it is a section with settings such as {example}.")


def _check_type(key: str, value: Any, where: str) -> None:
    """Raise InputError for a value of the wrong type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.to_object(OmegaConf.merge(_schema(), _nest({key: value})))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        got = f"{shown(value)} ({type(value).__name__})"
        raise InputError(f"{where} sets {key} to {got}, but {_describe(_type_of(key))} is expected.") from error


@cache
def _type_of(key: str) -> Any:
    """Type annotation of a dotted key, or None if the key is unknown."""
    kind: Any = Recipe
    for part in key.split("."):
        if typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
            continue
        hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if part not in hints:
            return None
        kind = hints[part]
    return kind


def _allows_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _describe(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return f"{_describe(next(k for k in typing.get_args(kind) if k is not type(None)))} or nothing"
    if typing.get_origin(kind) is list:
        item = {float: "numbers", int: "integers", str: "strings"}[typing.get_args(kind)[0]]
        return f"a list of {item}"
    return _TYPE_NAMES.get(kind, "a section of settings")


def known_keys(kind: Any = Recipe, prefix: str = "") -> list[str]:
    """All dotted keys; NAME stands for user-defined names such as those of parameter groups."""
    keys = []
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            keys += known_keys(hint, f"{prefix}{name}.")
        elif typing.get_origin(hint) is dict:
            keys += known_keys(typing.get_args(hint)[1], f"{prefix}{name}.NAME.")
        else:
            keys.append(prefix + name)
    return keys


def _nearest_key(key: str) -> str:
    """Suggest the most similar key. The last component has extra weight, so that `epochs` suggests schedule.epochs."""
    key = key[:MAX_KEY_LENGTH]  # comparison time is quadratic in the length
    last = key.rsplit(".", 1)[-1]

    def similarity(candidate: str) -> float:
        last_ratio = difflib.SequenceMatcher(None, last, candidate.rsplit(".", 1)[-1]).ratio()
        return difflib.SequenceMatcher(None, key, candidate).ratio() + last_ratio

    return f"did you mean {max(known_keys(), key=similarity)}?"

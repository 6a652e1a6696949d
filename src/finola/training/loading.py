"""A recipe from a bundled name or a YAML file, with `key=value` overrides; what is wrong is said in one sentence."""

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
from finola.training.parsing import LARGEST_FILE, parse_setting, shown

BUNDLED = Path(__file__).parents[1] / "recipes"
MOST_SETTINGS = 500
LONGEST_KEY = 200
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a bundled name (`finola train --list`) or a YAML file, changed by overrides such as `seed=1`.

    A file may name another as its `base`, whose settings it changes.

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
            raise InputError(f"{shown(override)} is no override; write key=value, such as schedule.epochs=20.")
        value = parse_setting(text, f"The override {shown(override)}")
        # A section given whole, as in optimiser.groups={}, replaces what a file said about it.
        settings = {k: v for k, v in settings.items() if not k.startswith(f"{key}.")}
        settings |= {k: (v, "the command line") for k, v in _leaves({key: value})}
    settings.pop("base", None)
    if len(settings) > MOST_SETTINGS:
        raise InputError(f"{path} has {len(settings)} settings, and {MOST_SETTINGS} are the most.")
    for key, (value, where) in settings.items():
        _check_key(key, value, where)
    try:
        config = OmegaConf.merge(_schema(), _nest({key: value for key, (value, _) in settings.items()}))
        recipe = typing.cast(Recipe, OmegaConf.to_object(config))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        for key, (value, where) in settings.items():
            _check_type(key, value, where)
        raise InputError(f"{path} is no recipe: {str(error).splitlines()[0]}.") from error
    recipe.name = recipe.name or name_of(path)
    return check(recipe)


@cache
def _schema() -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.structured(Recipe)  # slow to make, quick to copy


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as YAML; `load_recipe` reads it back."""
    from omegaconf import OmegaConf

    from finola.files import write_text  # imports torch, which reading a recipe does not need

    write_text(path, OmegaConf.to_yaml(OmegaConf.structured(recipe)))


def list_recipes() -> list[str]:
    """Names of the bundled recipes: the generated ones and the YAML files, except bases (leading underscore)."""
    return sorted([*RECIPES, *(name_of(path) for path in BUNDLED.rglob("[!_]*.yaml"))])


def find(source: str | Path) -> Path | str:
    """The YAML file of a path or bundled name; for a generated recipe (`finola.recipes.table`), its name."""
    path = Path(os.path.expanduser(source))  # Path.expanduser raises where a user is not known
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise MissingFileError(f"there is no recipe file {path}; check the path, or see finola train --list.")
        return path
    if path.as_posix() in RECIPES:
        return path.as_posix()
    bundled = BUNDLED / f"{source}.yaml"
    if not bundled.is_file():
        raise UnknownNameError(f"there is no recipe {shown(source)}: {nearest(str(source), list_recipes())}")
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
    """Every setting by its dotted name."""
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
    raise InputError(f"{last} has {base} as its base, which is based on it in turn.")


def _find_base(base: Any, recipe: Path | str) -> Path | str:
    """A file beside the one that names it, or a bundled recipe."""
    if not isinstance(base, str) or not Path(base).name or len(base) > 200 or "\0" in base:
        raise InputError(f"{recipe} has {shown(base)} as its base, which is the name of no recipe.")
    if isinstance(recipe, Path):
        beside = (recipe.parent / base).with_suffix(".yaml")
        if beside.is_file():
            return beside
    return find(base)


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise CorruptFileError(f"{path} is no recipe: it has {size} bytes, and {LARGEST_FILE} are the most.")
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} cannot be read as YAML: it is not UTF-8 text.") from error
    content = parse_setting(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} is no recipe: it holds {type(content).__name__}, not settings by name.")
    return content


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nest(settings: dict[str, Any]) -> dict[str, Any]:
    """The way back from `_leaves`."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def _check_key(key: str, value: Any, where: str) -> None:
    """One sentence for a key that no recipe has, or that needs a value."""
    wanted = _type_of(key) if len(key) <= LONGEST_KEY else None
    if wanted is None:
        raise InputError(f"{where} sets {shown(key)}, which no recipe has: {_nearest_key(key)}")
    if value is None and not _allows_none(wanted):
        raise InputError(f"{where} leaves {key} empty, but {_describe(wanted)} is wanted.")
    # OmegaConf does not look at the type of lists and sections inside a list.
    items = value if typing.get_origin(wanted) is list and isinstance(value, list) else []
    if any(item is None or isinstance(item, list | dict) for item in items):
        raise InputError(f"{where} sets {key} to {shown(value)}, but {_describe(wanted)} is wanted.")
    if dataclasses.is_dataclass(wanted) and not isinstance(value, dict):
        example = f"{key}.{next(iter(typing.get_type_hints(wanted)))}"
        got = f"{shown(value)} ({type(value).__name__})"
        raise InputError(f"{where} sets {key} to {got}, but it is a section of settings such as {example}.")


def _check_type(key: str, value: Any, where: str) -> None:
    """One sentence for a value of the wrong type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.to_object(OmegaConf.merge(_schema(), _nest({key: value})))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        got = f"{shown(value)} ({type(value).__name__})"
        raise InputError(f"{where} sets {key} to {got}, but {_describe(_type_of(key))} is wanted.") from error


@cache
def _type_of(key: str) -> Any:
    """The annotation of a dotted key; None where no recipe has it."""
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
        item = {float: "numbers", int: "whole numbers", str: "texts"}[typing.get_args(kind)[0]]
        return f"a list of {item}"
    return _WORDS.get(kind, "a section of settings")


def known_keys(kind: Any = Recipe, prefix: str = "") -> list[str]:
    """Every dotted key; a name of one's own stands as NAME."""
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
    """Nearest by the whole dotted name, and above all by its last word: `epochs` means schedule.epochs."""
    key = key[:LONGEST_KEY]  # the comparison takes time in proportion to its square
    last = key.rsplit(".", 1)[-1]

    def likeness(candidate: str) -> float:
        ends = difflib.SequenceMatcher(None, last, candidate.rsplit(".", 1)[-1]).ratio()
        return difflib.SequenceMatcher(None, key, candidate).ratio() + ends

    return f"did you mean {max(known_keys(), key=likeness)}?"

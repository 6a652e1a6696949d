"""Load recipes from a bundled name or a YAML file, with `key=value` overrides and one-line error messages.

Only text, lists and mappings are read from YAML, without aliases and tags. The dataclass of the task decides what a
text means, so nothing in a recipe is executed, expanded or interpolated.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml

from finola.config import nearest
from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError, first_line, shorten
from finola.paper.recipes import RECIPES
from finola.recipes.recipe import TASKS, Recipe, ReconstructionRecipe
from finola.recipes.sections import GroupSection

RECIPE = "recipe.yaml"
"""File of the resolved recipe in a run directory."""
FOLDER = Path(__file__).parent
MAX_SIZE = 2**20  # of a file in bytes, or of an override in characters
MAX_KEY = 200
MAX_NUMBER = 2**63 - 1
Layers = list[tuple[str, dict[str, Any]]]
"""Settings of the bases of a recipe, of itself and of each override, with the source of each for error messages."""
_SCALARS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a bundled recipe by name (`finola train --list`) or a YAML file, and apply overrides such as `seed=1`.

    A file can inherit from another recipe by its `base` key.

    >>> load_recipe("smoke", ["schedule.epochs=2"]).schedule.epochs
    2
    """
    found = _find(source)
    layers = _with_bases(found)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not (equals and key):
            raise InputError(f"Invalid override {shorten(override)}. Write key=value, such as schedule.epochs=20.")
        content = _read_yaml(text, f"The override {shorten(override)}")
        for part in reversed(key[:MAX_KEY].split(".")):
            content = {part: content}
        layers.append(("the command line", content))
    settings = reduce(_merged, (content for _, content in layers), {"name": _name(found)})
    settings.pop("base", None)
    task = str(settings.get("task", ReconstructionRecipe.task))
    if task not in TASKS:
        raise UnknownNameError(f"Unknown task {task!r}: {nearest(task, TASKS)}")
    kind = TASKS[task]
    try:
        recipe: Recipe = _typed(kind, settings)
    except _Rejected as error:
        raise InputError(_explain(kind, layers, *error.args)) from error
    recipe.check()
    return recipe


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as YAML, in the format that `load_recipe` reads."""
    from finola.files import write_text  # imports torch, which reading a recipe does not need

    write_text(path, yaml.safe_dump(asdict(recipe), sort_keys=False, allow_unicode=True))


def list_recipes() -> list[str]:
    """Names of the bundled recipes: the generated ones and the YAML files, except bases (leading underscore)."""
    return sorted([*RECIPES, *(_name(path) for path in FOLDER.rglob("[!_]*.yaml"))])


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Flatten a recipe to a dictionary from dotted keys to values."""
    return dict(_leaves(asdict(recipe)))


def _find(source: str | Path) -> Path | str:
    """Resolve a path or bundled name to its YAML file, or a generated recipe (`finola.paper.recipes`) to its name."""
    path = Path(os.path.expanduser(source))  # Path.expanduser raises for unknown users
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise MissingFileError(
                f"Recipe file {path} does not exist. Check the path, or list recipes with finola train --list."
            )
        return path
    if path.as_posix() in RECIPES:
        return path.as_posix()
    bundled = FOLDER / f"{source}.yaml"
    if not bundled.is_file():
        raise UnknownNameError(f"Unknown recipe {shorten(source)}: {nearest(str(source), list_recipes())}")
    return bundled


def _name(found: Path | str) -> str:
    """Name of what `_find` returned: relative to the bundled recipes, or the stem of another file."""
    path = Path(found).resolve() if isinstance(found, Path) else FOLDER.resolve() / f"{found}.yaml"
    inside = path.relative_to(FOLDER.resolve()) if path.is_relative_to(FOLDER.resolve()) else Path(path.name)
    return inside.with_suffix("").as_posix()


def _with_bases(found: Path | str) -> Layers:
    """The settings of a recipe after those of its base, and so on."""
    chain: dict[Path | str, tuple[str, dict[str, Any]]] = {}
    while (key := found.resolve() if isinstance(found, Path) else found) not in chain:
        name, content = (found.name, _read(found)) if isinstance(found, Path) else (found, RECIPES[found])
        chain[key] = name, content
        if not (base := content.get("base")):
            return list(reversed(chain.values()))
        if not isinstance(base, str) or not Path(base).name or len(base) > 200 or "\0" in base:
            raise InputError(f"{name} has base {shorten(base)}, which is not a valid recipe name.")
        beside = found.parent / f"{base.removesuffix('.yaml')}.yaml" if isinstance(found, Path) else None
        found = beside if beside is not None and beside.is_file() else _find(base)
    raise InputError(f"Circular base: {name} has base {base}, which is derived from it.")


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        content = _read_yaml(file.read(MAX_SIZE + 1), str(path)) or {}
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} is not a recipe: it contains no mapping of settings.")
    return content


def _read_yaml(text: str | bytes, where: str) -> Any:
    """Parse YAML to texts, lists and mappings. `where` is the source named at the start of error messages."""
    if len(text) > MAX_SIZE:
        raise InputError(f"{where} is too long for a recipe: the maximum is {MAX_SIZE} bytes.")
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return "" if node is None else _plain(node, set())
    except InputError as error:
        raise InputError(f"{where} {error}") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise CorruptFileError(f"{where} cannot be read as YAML: {first_line(error)}.") from error


def _plain(node: yaml.Node, seen: set[yaml.Node]) -> Any:
    """Text, list or mapping of a node. Aliases, which expand a few bytes into billions of settings, are errors."""
    if node in seen or not node.tag.endswith((":str", ":seq", ":map")):
        raise InputError("contains an alias or a tag, which are not supported: write the settings out.")
    seen.add(node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, seen) for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        node.value.encode()  # raises UnicodeError for half of a surrogate pair
        return node.value
    content: dict[str, Any] = {}
    for key, value in ((_plain(key, seen), _plain(value, seen)) for key, value in node.value):
        if not isinstance(key, str) or key in content:
            raise InputError(f"sets {shorten(key)} twice, or as a key that is not a name.")
        content[key] = value
    return content


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested settings to pairs of dotted key and value."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _keys(settings: dict[str, Any]) -> set[str]:
    """Dotted keys of nested settings and of their sections."""
    return {key.rsplit(".", n)[0] for key, _ in _leaves(settings) for n in range(key.count(".") + 1)}


def _merged(old: Any, new: Any) -> Any:
    """Settings `old` with those of `new`; an empty section, as in optimiser.groups={}, removes all that `old` has."""
    if not (isinstance(old, dict) and isinstance(new, dict) and new):
        return new
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


class _Rejected(Exception):
    """A setting of the wrong type, or without a type if the task does not have it: key, value, type or None."""


def _typed(hint: Any, value: Any, key: str = "") -> Any:
    """What a type makes of texts, lists and mappings of YAML. Raises _Rejected."""
    first, *others = typing.get_args(hint) or (hint,)
    prefix = f"{key}." if key else ""
    origin: Any = typing.get_origin(hint)
    if origin is types.UnionType:
        return None if value in (None, "", "null", "~") else _typed(first, value, key)
    if is_dataclass(hint) and isinstance(value, dict):
        hints = _hints(hint)  # type: ignore[arg-type]
        if unknown := [name for name in value if name not in hints]:
            key, _ = next(_leaves({prefix + unknown[0]: value[unknown[0]]}))
            raise _Rejected(key, None, None)
        kind: Any = hint
        return kind(**{name: _typed(hints[name], item, prefix + name) for name, item in value.items()})
    if origin is dict and isinstance(value, dict):
        return {name: _typed(others[0], item, prefix + name) for name, item in value.items()}
    if origin is list and isinstance(value, list):
        try:
            return [_typed(first, item, key) for item in value]
        except _Rejected:
            raise _Rejected(key, value, hint) from None
    try:
        if hint in _SCALARS and not isinstance(value, dict | list):
            parsed = {"true": True, "false": False}[str(value).lower()] if hint is bool else hint(value)
            if hint is str or -MAX_NUMBER <= parsed <= MAX_NUMBER:  # not nan
                return parsed
    except (KeyError, ValueError):
        pass
    raise _Rejected(key, value, hint)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def known_keys(kind: type[Recipe]) -> list[str]:
    """All dotted keys of a recipe class; NAME stands for the name of a parameter group."""
    return [*settings_of(kind()), *(f"optimiser.groups.NAME.{entry.name}" for entry in fields(GroupSection))]


def _explain(kind: type[Recipe], layers: Layers, key: str, value: Any, hint: Any) -> str:
    """Error message for a setting that was rejected: its source, and the expected type or the most similar keys."""
    where = next((where for where, content in reversed(layers) if key in _keys(content)), "the recipe")
    if hint is not None:
        expected = _SCALARS.get(hint, "a section of settings")
        if typing.get_origin(hint) is list:
            expected = f"a list of {_SCALARS[typing.get_args(hint)[0]].split()[-1]}s"
        elif is_dataclass(hint):
            expected = f"a section with settings such as {key}.{fields(hint)[0].name}"
        return f"{where} sets {shorten(key)} to {shorten(value)}, but {expected} is expected."
    tasks = [task for task, other in TASKS.items() if key in known_keys(other)]
    only = f", only for {' and '.join(tasks)}" if tasks else ""
    hint = nearest(key[:MAX_KEY], known_keys(kind), 1)
    return f"Unknown setting {shorten(key)} in {where} for the task {kind.task}{only}: {hint}"

"""YAML of recipes and overrides, of bounded size and without anything that is resolved or expanded."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache
from typing import Any

from finola.errors import CorruptFileError, InputError

LARGEST_FILE = 2**20
"""Bytes of a recipe file, or characters of an override."""
LONGEST_VALUE = 4096
"""Characters of one value."""
MOST_VALUES = 30_000
"""Values of one file: the names of 21,841 classes fit."""
DEEPEST = 16
"""Sections and lists inside each other."""
LARGEST_NUMBER = 2**63 - 1


def parse_setting(text: str, where: str) -> Any:
    """Parse YAML of bounded size and depth, without aliases and without `${…}`, which OmegaConf would resolve.

    Interpolations could copy environment variables or files into the model card, aliases a few bytes into billions of
    settings. `where` begins the sentence of an error.
    """
    import yaml

    if len(text) > LARGEST_FILE:
        raise InputError(f"{where} has {len(text)} characters, and {LARGEST_FILE} are the most.")
    try:
        _check_events(text)
        parsed = yaml.load(text, Loader=_loader())
        _check_numbers(parsed)
    except InputError as error:
        raise InputError(f"{where} {error}") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise CorruptFileError(f"{where} cannot be read as YAML: {str(error).splitlines()[0]}.") from error
    return parsed


@cache
def _loader() -> Any:
    """PyYAML's safe loader, in which 1e-4 is a number, a date is text, and a key may stand only once."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for key, count in Counter(keys).items():
                if count > 1:
                    raise InputError(f"sets {shown(key)} {count} times.")
            return super().construct_mapping(node, deep=deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":float"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    exponent, digits = "[eE][-+]?[0-9]+", "[0-9][0-9_]*"
    number = rf"[-+]?(?:{digits}\.[0-9_]*(?:{exponent})?|{digits}{exponent}|\.{digits}(?:{exponent})?)"
    pattern = re.compile(rf"^(?:{number}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", pattern, list("-+.0123456789"))
    return Loader


def _check_events(text: str) -> None:
    """Refuse what must not be resolved or expanded, before anything is built from it."""
    import yaml

    depth = values = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise InputError(f"has the alias *{event.anchor[:40]}: write the settings out.")
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if any("\ud800" <= character <= "\udfff" for character in event.value):
                raise InputError(f"has the text {shown(event.value)}, which is not valid Unicode.")
            if "${" in event.value or event.value == "???":  # the latter is OmegaConf's mark of a missing value
                raise InputError(f"has the interpolation {shown(event.value)}: write the value itself.")
            if len(event.value) > LONGEST_VALUE:
                raise InputError(f"has a value of {len(event.value)} characters, and {LONGEST_VALUE} are the most.")
        if getattr(event, "tag", None) is not None:
            raise InputError(f"has the YAML tag {shown(event.tag)}: leave it out.")
        if values > MOST_VALUES:
            raise InputError(f"has more than {MOST_VALUES} values.")
        if depth > DEEPEST:
            raise InputError(f"has more than {DEEPEST} sections or lists inside each other, and no recipe has.")


def _check_numbers(value: Any) -> None:
    """Refuse numbers that no setting can hold; keys are checked as values are."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(key)
            _check_numbers(item)
    elif isinstance(value, list):
        for item in value:
            _check_numbers(item)
    elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise InputError(f"has a number of {value.bit_length()} bits, and 63 are the most.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"has the number {value}, and settings are finite.")


def shown(value: object) -> str:
    """The `repr` of a value, cut to 80 characters, for an error message."""
    text = repr(value if not isinstance(value, str) else value[:200])
    return text if len(text) <= 80 else f"{text[:79]}…"

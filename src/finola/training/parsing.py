"""Restricted YAML parser for recipes and overrides: bounded size, no aliases, tags or interpolation."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache
from typing import Any

from finola.errors import CorruptFileError, InputError

MAX_FILE_SIZE = 2**20
"""Maximum size: bytes of a recipe file, or characters of an override."""
MAX_VALUE_LENGTH = 4096
"""Maximum number of characters of one value."""
MAX_VALUES = 30_000
"""Maximum number of values in one file, sufficient for the names of 21,841 classes."""
MAX_DEPTH = 16
"""Maximum nesting of sections and lists."""
MAX_NUMBER = 2**63 - 1


def parse_setting(text: str, where: str) -> Any:
    """Parse YAML of bounded size and depth, without aliases and without `${…}`, which OmegaConf would resolve.

    Interpolations could copy environment variables or files into the model card, and aliases could expand a few bytes
    into billions of settings. `where` is the source named at the start of error messages.
    """
    import yaml

    if len(text) > MAX_FILE_SIZE:
        raise InputError(f"{where} has {len(text)} characters; the maximum is {MAX_FILE_SIZE}.")
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
    """PyYAML's safe loader, except that 1e-4 is a number, dates are strings, and duplicate keys raise InputError."""
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
    """Raise InputError for aliases, tags, interpolations and excessive sizes, before any value is constructed."""
    import yaml

    depth = values = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise InputError(
                f"contains the alias *{event.anchor[:40]}. Aliases are not supported: write the settings out."
            )
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if any("\ud800" <= character <= "\udfff" for character in event.value):
                raise InputError(f"contains {shown(event.value)}, which is not valid Unicode.")
            if "${" in event.value or event.value == "???":  # ??? marks a missing value in OmegaConf
                raise InputError(
                    f"contains the interpolation {shown(event.value)}. Interpolation is not supported: write the value."
                )
            if len(event.value) > MAX_VALUE_LENGTH:
                raise InputError(
                    f"contains a value of {len(event.value)} characters; the maximum is {MAX_VALUE_LENGTH}."
                )
        if getattr(event, "tag", None) is not None:
            raise InputError(f"contains the YAML tag {shown(event.tag)}. Tags are not supported: remove it.")
        if values > MAX_VALUES:
            raise InputError(f"contains more than {MAX_VALUES} values, which is the maximum.")
        if depth > MAX_DEPTH:
            raise InputError(f"is nested more than {MAX_DEPTH} levels deep, which is the maximum.")


def _check_numbers(value: Any) -> None:
    """Raise InputError for integers of more than 63 bits and non-finite floats, in keys and values."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(key)
            _check_numbers(item)
    elif isinstance(value, list):
        for item in value:
            _check_numbers(item)
    elif isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise InputError(f"contains an integer of {value.bit_length()} bits; the maximum is 63.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"contains the number {value}, but settings must be finite.")


def shown(value: object) -> str:
    """Return the `repr` of a value, truncated to 80 characters, for error messages."""
    text = repr(value if not isinstance(value, str) else value[:200])
    return text if len(text) <= 80 else f"{text[:79]}…"

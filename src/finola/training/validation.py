"""Validation of recipes and overrides: restricted YAML of bounded size, known keys, expected types."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from finola.errors import CorruptFileError, InputError, first_line, shorten
from finola.training.config import TASKS

MAX_FILE_SIZE = 2**20
"""Maximum size: bytes of a recipe file, or characters of an override."""
MAX_VALUE_LENGTH = 4096
"""Maximum number of characters of one value."""
MAX_VALUES = 30_000
"""Maximum number of values in one file, sufficient for the names of 21,841 classes."""
MAX_DEPTH = 16
"""Maximum nesting of sections and lists."""
MAX_NUMBER = 2**63 - 1
MAX_KEY_LENGTH = 200
RENAMED = {
    "data.workers": "num_workers",
    "head.erase": "random_erasing",
    "head.smoothing": "label_smoothing",
    "loss.rounded": "quantised_fraction",
    "loss.steps": "quantisation_steps",
    "moco.queue": "queue_size",
    "moco.size": "projection_dim",
    "model.checkpointing": "grad_checkpointing",
    "objects.crop": "random_crop",
    "objects.encoder_norms": "update_encoder_norms",
    "objects.long": "max_long_side",
    "objects.short": "short_side",
    "objects.step": "short_side_step",
    "optimiser.base_rate": "base_lr",
    "optimiser.groups.NAME.multiplier": "lr_multiplier",
    "optimiser.groups.NAME.rate": "lr",
    "optimiser.rate": "lr",
    "schedule.drops": "milestones",
    "schedule.final": "final_lr_fraction",
    "trainer.accumulate": "accumulate_grad_batches",
    "trainer.clip": "gradient_clip_val",
    "trainer.ema": "ema_decay",
    "trainer.nodes": "num_nodes",
    "trainer.validate_every": "check_val_every_n_epoch",
}
"""Former names of settings, reported with the new name."""
Settings = dict[str, tuple[Any, str]]
"""Values by dotted key, each with the name of its source for error messages."""
_TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


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
        raise CorruptFileError(f"{where} cannot be read as YAML: {first_line(error)}.") from error
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
                    raise InputError(f"sets {shorten(key)} {count} times.")
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
                raise InputError(f"contains {shorten(event.value)}, which is not valid Unicode.")
            if "${" in event.value or event.value == "???":  # ??? marks a missing value in OmegaConf
                raise InputError(
                    f"contains the interpolation {shorten(event.value)}, which is not supported: write the value."
                )
            if len(event.value) > MAX_VALUE_LENGTH:
                raise InputError(
                    f"contains a value of {len(event.value)} characters; the maximum is {MAX_VALUE_LENGTH}."
                )
        if getattr(event, "tag", None) is not None:
            raise InputError(f"contains the YAML tag {shorten(event.tag)}. Tags are not supported: remove it.")
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


def leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested settings to pairs of dotted key and value."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nest(settings: Settings) -> dict[str, Any]:
    """Inverse of `leaves`."""
    nested: dict[str, Any] = {}
    for key, (value, _) in settings.items():
        *sections, last = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


@cache
def schema(kind: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.structured(kind)  # slow to create, fast to copy


def check_key(kind: Any, key: str, value: Any, where: str) -> None:
    """Raise InputError for an unknown key or a missing value."""
    expected = _type_of(kind, key) if len(key) <= MAX_KEY_LENGTH else None
    if expected is None:
        raise InputError(_unknown_key(kind, key[:MAX_KEY_LENGTH], where))
    if value is None and not _allows_none(expected):
        raise InputError(f"{where} sets {key} to nothing, but {_describe(expected)} is expected.")
    # OmegaConf does not check the type of lists and sections inside a list.
    items = value if typing.get_origin(expected) is list and isinstance(value, list) else []
    if any(item is None or isinstance(item, list | dict) for item in items):
        raise InputError(f"{where} sets {key} to {shorten(value)}, but {_describe(expected)} is expected.")
    if dataclasses.is_dataclass(expected) and not isinstance(value, dict):
        example = f"{key}.{dataclasses.fields(expected)[0].name}"
        got = f"{shorten(value)} ({type(value).__name__})"
        raise InputError(f"{where} sets {key} to {got}, but it is a section with settings such as {example}.")


def check_type(kind: Any, key: str, value: Any, where: str) -> None:
    """Raise InputError for a value of the wrong type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.to_object(OmegaConf.merge(schema(kind), nest({key: (value, where)})))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        got = f"{shorten(value)} ({type(value).__name__})"
        raise InputError(f"{where} sets {key} to {got}, but {_describe(_type_of(kind, key))} is expected.") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of the fields of a dataclass; empty for other types."""
    if not dataclasses.is_dataclass(kind):
        return {}
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _type_of(kind: Any, key: str) -> Any:
    """Type annotation of a dotted key, or None if the key is unknown."""
    for part in key.split("."):
        if typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif part in (hints := _hints(kind)):
            kind = hints[part]
        else:
            return None
    return kind


def _allows_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _describe(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return f"{_describe(next(k for k in typing.get_args(kind) if k is not type(None)))} or nothing"
    if typing.get_origin(kind) is list:
        item = {float: "numbers", int: "integers", str: "strings"}.get(typing.get_args(kind)[0], "sections")
        return f"a list of {item}"
    return _TYPE_NAMES.get(kind, "a section of settings")


def known_keys(kind: Any, prefix: str = "") -> list[str]:
    """All dotted keys of a recipe class; NAME stands for user-defined names such as those of parameter groups."""
    keys = []
    for name, hint in _hints(kind).items():
        if dataclasses.is_dataclass(hint):
            keys += known_keys(hint, f"{prefix}{name}.")
        elif typing.get_origin(hint) is dict:
            keys += known_keys(typing.get_args(hint)[1], f"{prefix}{name}.NAME.")
        else:
            keys.append(prefix + name)
    return keys


def _unknown_key(kind: Any, key: str, where: str) -> str:
    """Error message for a key that the task does not have: its new name, or the most similar key."""
    section, _, last = key.rpartition(".")
    pattern = "optimiser.groups.NAME" if section.startswith("optimiser.groups.") else section
    if new := RENAMED.get(f"{pattern}.{last}"):
        return f"Setting {shorten(key)} in {where} has been renamed to {section}.{new}."
    tasks = [task for task, other in TASKS.items() if key in known_keys(other)]
    only = f", only for {' and '.join(tasks)}" if tasks else ""

    def similarity(candidate: str) -> float:
        """The last component has extra weight, so that `epochs` suggests schedule.epochs."""
        last_ratio = difflib.SequenceMatcher(None, last, candidate.rsplit(".", 1)[-1]).ratio()
        return difflib.SequenceMatcher(None, key, candidate).ratio() + last_ratio

    nearest_key = max(known_keys(kind), key=similarity)
    return f"Unknown setting {shorten(key)} in {where} for the task {kind.task}{only}: did you mean {nearest_key}?"

"""Read config.json and model.safetensors of untrusted origin, and copy weights completely or not at all."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from finola.errors import CorruptFileError, MissingFileError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
CONFIG_BYTES = 16 * 2**20  # a list of a million class names fits
SHOWN = 3  # names of keys in an error message
ROOM = 2**24  # elements that a model may allocate beyond a multiple of those in its file: buffers that are not stored


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a file; CorruptFileError where it holds anything else."""
    try:
        size = path.stat().st_size
        if size > CONFIG_BYTES:
            raise CorruptFileError(f"Corrupt file {path}: {size} bytes are too many for a model's configuration.")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist: a model is a folder with {CONFIG} and {WEIGHTS}.") from error
    except CorruptFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"Corrupt file {path}: it is not valid JSON ({_first_line(error)}).") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"Corrupt file {path}: it holds a JSON {type(content).__name__}, not an object.")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_types(config: Mapping[str, Any], hints: Mapping[str, Any], path: Path) -> None:
    """Raise CorruptFileError where a field of `config` is unknown or has another type than `hints` say."""
    for key, value in config.items():
        if key not in hints:
            known = ", ".join(hints)
            raise CorruptFileError(f"Corrupt file {path}: unknown field {key[:40]!r}; the fields are {known}.")
        if not _is_a(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            raise CorruptFileError(f"Corrupt file {path}: {key} is {_short(value)}, not of type {wanted}.")


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of an annotation made of str, int, float, bool, None, lists and unions."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_is_a(value, argument) for argument in arguments)
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(_is_a(item, arguments[0]) for item in value)
    if isinstance(value, bool):  # bool is a subclass of int
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors of a safetensors file, from its header alone."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist: weights are read from safetensors only.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptFileError(f"Corrupt file {path}: it is not a safetensors file ({_first_line(error)}).") from error


def read_weights(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file whose names start with `prefix`, by what follows it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_shapes(path)
    try:
        state = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:  # KeyError: a dtype torch lacks
        raise CorruptFileError(f"Corrupt file {path}: its tensors cannot be read ({_first_line(error)}).") from error
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def load_weights(module: nn.Module, state: Mapping[str, Tensor], source: Path | str) -> None:
    """Copy `state` into `module`, all of it. CorruptFileError names keys that are missing, unexpected or misshapen.

    The keys must be exactly those of `module.state_dict()`. What a module computes anew when it is loaded is not in
    its state dict: the analysis of a `WaveEncoder` with `stored=False` is the only such case.
    """
    own = module.state_dict()
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    if missing or unexpected:
        if state and all(key.startswith("module.") for key in state):
            raise CorruptFileError(
                f"The weights in {source} were saved from a wrapper: every key starts with 'module.'. "
                "Save them again from the model inside it, wrapper.module."
            )
        problems = [_listed("missing", missing), _listed("unexpected", unexpected)]
        raise CorruptFileError(f"The weights in {source} do not fit: {'; '.join(filter(None, problems))}.")
    kinds = [
        f"{key} is {_kind(value)}, not {_kind(own[key])}"
        for key, value in state.items()
        if _kind(value) != _kind(own[key])
    ]
    if kinds:
        raise CorruptFileError(f"The weights in {source} do not fit: {_some(kinds)}.")
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:  # shapes, which a wave encoder knows only after it has read the waves
        lines = [line.strip().rstrip(".") for line in str(error).splitlines()[1:]]
        raise CorruptFileError(f"The weights in {source} do not fit: {_some(lines)}.") from error
    except CorruptFileError as error:
        raise CorruptFileError(f"The weights in {source} do not fit: {error}") from error


def _kind(tensor: Tensor) -> str:
    """Weights may be stored in half precision, but no conversion may change what a number means."""
    return "float" if tensor.is_floating_point() else "complex" if tensor.is_complex() else "integer"


def _listed(what: str, keys: Iterable[str]) -> str:
    names = sorted(keys)
    return f"{len(names)} {what} ({_some(names)})" if names else ""


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(name[:200] for name in names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a JSON {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


class TooLarge(Exception):
    """A model allocates more than the file of its weights can hold."""


def check_numbers(numbers: Iterable[int], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TooLarge where a number of a configuration is beyond any size that its weights have.

    This bounds what is allocated outside torch, such as a list with one entry per class.
    """
    bound = max([2**16, *(math.prod(shape) for shape in shapes.values())])
    for number in numbers:
        if abs(number) > bound:
            raise TooLarge(f"{number} is beyond every size there")


@contextmanager
def bounded_by(weights_file: Path, config_file: Path) -> Iterator[dict[str, tuple[int, ...]]]:
    """Build a model inside: CorruptFileError where it is far larger than its weights. Gives the weights' shapes."""
    shapes = read_shapes(weights_file)
    try:
        with AllocationLimit(shapes):
            yield shapes
    except TooLarge as error:
        held = _listed("tensors", shapes) or "no tensors"
        raise CorruptFileError(
            f"Corrupt file {config_file}: it does not describe {weights_file}, which holds {held}: {error}."
        ) from error


class AllocationLimit(TorchDispatchMode):
    """While it is active, raise TooLarge before tensors are allocated that the given weights cannot be part of.

    All new tensors together may have 8 elements for each one in the file, and `ROOM` more; so may the result of one
    operation. The number of new tensors is bounded too. Tensors on the meta device hold no memory and do not count.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = self.limit = ROOM + 8 * sum(math.prod(shape) for shape in shapes.values())
        self.tensors = 20_000 + 50 * len(shapes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        on_meta = str(kwargs.get("device")) == "meta" or any(tensor.is_meta for tensor in tensors)
        if not on_meta:
            if name in _FACTORIES:
                count = math.prod(args[0])
                self.elements, self.tensors = self.elements - count, self.tensors - 1
            elif tensors and name not in ("expand", "as_strided"):  # views
                count = _broadcast_size(tensors)
            else:
                count = 0
            if count > self.limit or self.elements < 0 or self.tensors < 0:
                raise TooLarge("the model is much larger")
        return func(*args, **kwargs)


_FACTORIES = {"empty", "zeros", "ones", "full", "rand", "randn", "empty_strided"}


def _broadcast_size(tensors: Sequence[Tensor]) -> int:
    """How many elements a pointwise operation on these tensors has; 0 where they do not broadcast."""
    try:
        return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    except RuntimeError:
        return 0

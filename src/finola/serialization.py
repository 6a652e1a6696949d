"""Read config.json and model.safetensors from untrusted sources and load weights strictly."""

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
CONFIG_BYTES = 16 * 2**20  # enough for a million class names
SHOWN = 3  # keys listed in an error message
ROOM = 2**24  # elements that a model may allocate in addition, for buffers that are not stored


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; raise CorruptFileError for any other content."""
    try:
        size = path.stat().st_size
        if size > CONFIG_BYTES:
            raise CorruptFileError(f"Corrupt file {path}: {size} bytes, more than the limit of {CONFIG_BYTES}.")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist. A model folder contains {CONFIG} and {WEIGHTS}.") from error
    except CorruptFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"Corrupt file {path}: it is not valid JSON ({_first_line(error)}).") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"Corrupt file {path}: expected a JSON object, got {type(content).__name__}.")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_types(config: Mapping[str, Any], hints: Mapping[str, Any], path: Path) -> None:
    """Raise CorruptFileError if a field of `config` is unknown or does not have the type given by `hints`."""
    for key, value in config.items():
        if key not in hints:
            known = ", ".join(hints)
            raise CorruptFileError(f"Corrupt file {path}: unknown field {key[:40]!r}; known fields: {known}.")
        if not _is_a(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            raise CorruptFileError(f"Corrupt file {path}: {key} is {_short(value)}, expected type {wanted}.")


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a JSON value matches an annotation of str, int, float, bool, None, lists and unions."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_is_a(value, argument) for argument in arguments)
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, list | tuple) and all(_is_a(item, arguments[0]) for item in value)
    if isinstance(value, bool):  # bool is a subclass of int
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of all tensors of a safetensors file from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist. Weights must be a safetensors file.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptFileError(f"Corrupt file {path}: it is not a safetensors file ({_first_line(error)}).") from error


def read_weights(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Read the tensors of a safetensors file whose names start with `prefix`, and remove it from their names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_shapes(path)
    try:
        state = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:  # KeyError: unsupported dtype
        raise CorruptFileError(f"Corrupt file {path}: its tensors cannot be read ({_first_line(error)}).") from error
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def load_weights(module: nn.Module, state: Mapping[str, Tensor], source: Path | str) -> None:
    """Load `state` into `module` strictly; CorruptFileError lists missing, unexpected or mismatched keys.

    The keys must be exactly those of `module.state_dict()`. Tensors that are recomputed on loading are not part of the
    state dict; the only case is the analysis of a `WaveEncoder` with `stored=False`.
    """
    own = module.state_dict()
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    if missing or unexpected:
        if state and all(key.startswith("module.") for key in state):
            raise CorruptFileError(
                f"The weights in {source} were saved from a wrapper such as DistributedDataParallel: all keys start "
                "with 'module.'. Save wrapper.module instead."
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
    except RuntimeError as error:  # mismatched shapes; those of a wave encoder depend on the loaded waves
        lines = [line.strip().rstrip(".") for line in str(error).splitlines()[1:]]
        raise CorruptFileError(f"The weights in {source} do not fit: {_some(lines)}.") from error
    except CorruptFileError as error:
        raise CorruptFileError(f"The weights in {source} do not fit: {error}") from error


def _kind(tensor: Tensor) -> str:
    """Numeric kind of a dtype. Loading may change the precision, for example from float16, but not the kind."""
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
    """A model is much larger than its weights file."""


def check_numbers(numbers: Iterable[int], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TooLarge if a number of a configuration exceeds the size of every tensor of its weights.

    This bounds memory allocated outside torch, such as a list with one entry per class.
    """
    bound = max([2**16, *(math.prod(shape) for shape in shapes.values())])
    for number in numbers:
        if abs(number) > bound:
            raise TooLarge(f"{number} exceeds the size of every tensor")


@contextmanager
def bounded_by(weights_file: Path, config_file: Path) -> Iterator[dict[str, tuple[int, ...]]]:
    """Context in which building a model much larger than its weights raises CorruptFileError; yields their shapes."""
    shapes = read_shapes(weights_file)
    try:
        with AllocationLimit(shapes):
            yield shapes
    except TooLarge as error:
        content = _listed("tensors", shapes) or "no tensors"
        raise CorruptFileError(
            f"Corrupt file {config_file}: it does not match {weights_file}, which has {content}: {error}."
        ) from error


class AllocationLimit(TorchDispatchMode):
    """Dispatch mode that raises TooLarge before a model allocates much more memory than its weights need.

    The limit, for all new tensors together and for the result of each operation, is 8 elements per element of the
    weights plus `ROOM`. The number of new tensors is limited too. Tensors on the meta device are not counted.
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
    """Number of elements of a pointwise operation on these tensors; 0 if they do not broadcast."""
    try:
        return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    except RuntimeError:
        return 0

"""Save and load models: `save_pretrained` and `from_pretrained`, with weights of untrusted origin loaded strictly."""

from __future__ import annotations

import inspect
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from finola.errors import CorruptFileError, InputError, MissingFileError, first_line
from finola.files import share
from finola.hub import CONFIG, WEIGHTS, check_fields, check_type, read_config, resolve
from finola.locations import check_regular

SHOWN = 3  # keys listed in an error message
ROOM = 2**24  # elements that a model may allocate in addition, for buffers that are not stored
MATRICES = 2**27  # elements computed from stored waves
FULL_PRECISION = "analysis"
"""Part of the names of weights that are never stored in half precision: the analysis matrices invert nearly dependent
waves, and half precision costs 2 dB there, 0.0001 dB elsewhere."""


class Pretrained(PyTorchModelHubMixin, library_name="finola"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub`, safetensors only.

    config.json holds the arguments of the constructor and the `type` of the model.
    """

    model_type: ClassVar[str]  # a key of `finola.hub.TYPES`
    arguments: dict[str, Any]  # of the constructor

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        model: Self = super().__new__(cls, *args, **kwargs)
        bound = inspect.signature(cls.__init__).bind_partial(model, *args, **kwargs)  # copy and pickle pass none
        bound.apply_defaults()
        model.arguments = dict(list(bound.arguments.items())[1:])
        return model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str = "cpu",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        token: str | bool | None = None,
        local_files_only: bool = False,
        **settings: Any,
    ) -> Self:
        """Load a bundled model, a folder or a hub id, in evaluation mode; `settings` replace fields of config.json.

        Weights are loaded strictly: missing or unexpected keys and mismatched shapes raise CorruptFileError, as does a
        configuration that is malformed or describes a model far larger than its weights. Pickle files are never read.
        """
        name = pretrained_model_name_or_path
        folder = resolve(
            name,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            token=token,
            local_files_only=local_files_only,
        )
        if folder is None:
            raise MissingFileError(f"No bundled model, folder or Hub repository named '{name}'.")
        config = read_config(folder)
        check_type(name, config, cls.model_type)
        model = cls._build({key: value for key, value in config.items() if key != "type"}, settings, folder)
        load_weights(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)  # type: ignore[arg-type]
        model.to(map_location).eval()  # type: ignore[attr-defined]
        return model

    @classmethod
    def _build(cls, config: dict[str, Any], settings: dict[str, Any], folder: Path) -> Self:
        """Build the configured model for weights that follow; its memory is bounded by the size of their file."""
        parameters = list(inspect.signature(cls.__init__).parameters)[1:]
        unknown = settings.keys() - set(parameters)
        if unknown:
            raise InputError(
                f"{cls.__name__} has no setting {', '.join(sorted(unknown))}; available: {', '.join(parameters)}."
            )
        hints = get_type_hints(cls.__init__)
        check_fields(config, {name: hints[name] for name in parameters}, folder / CONFIG)
        with building_for(folder / WEIGHTS, folder / CONFIG) as shapes:
            check_numbers(_numbers(config), shapes)
            try:
                return cls(**config | settings)
            except TooLarge:
                raise
            # The configuration is untrusted and reaches constructors of timm and torchvision, which raise any class.
            except Exception as error:
                raise CorruptFileError(
                    f"Corrupt file {folder / CONFIG}: no model can be built from it: {first_line(error)}."
                ) from error

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write config.json and model.safetensors, each atomically."""
        self.check_saveable()
        target = Path(save_directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            kwargs["config"] = {"type": self.model_type, **self.arguments}
            result = super().save_pretrained(temporary, **kwargs)
            target.mkdir(exist_ok=True)
            for file in sorted(temporary.iterdir()):
                share(file)
                os.replace(file, target / file.name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return result

    def check_saveable(self) -> None:
        """Raise InputError if config.json cannot describe the model, so that loading would not restore it."""


def _numbers(config: dict[str, Any]) -> Iterator[int]:
    """All integers of a configuration, including those in a model's one-line name."""
    for key, value in config.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, int):
                yield item
            elif isinstance(item, str) and key == "name":
                yield from (int(digits[:20]) for digits in re.findall(r"\d+", item))


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of all tensors of a safetensors file from its header."""
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist. Weights must be a safetensors file.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptFileError(f"Corrupt file {path}: it is not a safetensors file ({first_line(error)}).") from error


def read_weights(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Read the tensors of a safetensors file whose names start with `prefix`, and remove it from their names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_shapes(path)
    try:
        state = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:  # KeyError: unsupported dtype
        raise CorruptFileError(f"Corrupt file {path}: its tensors cannot be read ({first_line(error)}).") from error
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


_WEIGHTS_FOLLOW = ContextVar("weights_follow", default=False)


def weights_follow() -> bool:
    """Whether the model being built has its weights loaded next, so that its initial values are not needed."""
    return _WEIGHTS_FOLLOW.get()


@contextmanager
def building_for(weights_file: Path, config_file: Path) -> Iterator[dict[str, tuple[int, ...]]]:
    """Context in which a model is built whose weights are loaded next; yields their shapes.

    Initial values that take long to compute are left out, see `weights_follow`. A model much larger than its weights
    raises CorruptFileError.
    """
    shapes = read_shapes(weights_file)
    before = _WEIGHTS_FOLLOW.set(True)
    try:
        with AllocationLimit(shapes):
            yield shapes
    except TooLarge as error:
        content = _listed("tensors", shapes) or "no tensors"
        raise CorruptFileError(
            f"Corrupt file {config_file}: it does not match {weights_file}, which has {content}: {error}."
        ) from error
    finally:
        _WEIGHTS_FOLLOW.reset(before)


class AllocationLimit(TorchDispatchMode):
    """Dispatch mode that raises TooLarge before a model allocates much more memory than its weights need.

    The limit, for all new tensors together and for the result of each operation, is 8 elements per element of the
    weights plus `ROOM`. Models with exact waves compute matrices from the waves that are stored, for which at most
    `MATRICES` elements are added. The number of new tensors is limited too. Tensors on the meta device are not counted.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        waves = max((shape[0] for key, shape in shapes.items() if key.endswith("basis.waves") and shape), default=0)
        matrices = min(8 * (2 * waves + 8) ** 2, MATRICES) if waves else 0  # K waves have at most 2 K + 5 channels
        self.elements = self.limit = ROOM + matrices + 8 * sum(math.prod(shape) for shape in shapes.values())
        self.tensors = 20_000 + 50 * len(shapes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
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

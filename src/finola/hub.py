"""Find the files of a trained model by name and read its config.json, whose `type` says what kind of model it is.

A name has one meaning for `finola.load`, `from_pretrained`, the codec, the command line and the page:

1. The name of a bundled model is that model.
2. Any other name is a folder, if it exists. A folder named like a bundled model is written as a path, `./tile32` or
   `Path("tile32")`.
3. Otherwise `owner/name` is a repository of the Hugging Face Hub.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin

from finola.config import ModelConfig
from finola.errors import CorruptFileError, InputError, MissingFileError, first_line, shorten
from finola.locations import user_path

CONFIG, WEIGHTS = "config.json", "model.safetensors"
CONFIG_BYTES = 16 * 2**20  # enough for a million class names
WEIGHTS_FOLDER = Path(__file__).parent / "weights"
UNTRAINED = {"waves512": "waves/512x1@16:64"}
"""Bundled names of models that have no weights: they are created with wave initialisation."""

TYPES = {
    "autoencoder": ("an autoencoder", "finola.load"),
    "masked": ("a masked model", "finola.masked.MaskedFinola.from_pretrained"),
    "classifier": ("a classifier", "finola.load_classifier"),
    "detector": ("a detector", "finola.load_detector"),
    "segmenter": ("a segmenter", "finola.load_detector"),
    "encoder": ("an encoder", "finola.load_encoder"),
}
"""Values of `type` in config.json: how messages name them, and the function that loads such a model."""


def bundled_models(*wanted: str) -> list[str]:
    """Names of the models bundled with the package, of these types or of all.

    >>> bundled_models("autoencoder")
    ['paper64', 'photo256', 'tile32']
    """
    names = sorted(file.parent.name for file in WEIGHTS_FOLDER.glob(f"*/{CONFIG}"))
    return [name for name in names if not wanted or read_config(WEIGHTS_FOLDER / name)["type"] in wanted]


def local_folder(name: str | Path) -> Path | None:
    """Folder of a bundled model or of a path; None if there is no such folder."""
    if isinstance(name, str):
        if name in bundled_models():
            return WEIGHTS_FOLDER / name
        if name in UNTRAINED:
            return None
    folder = user_path(name).absolute()  # absolute, since str(Path("./tile32")) is the bundled name
    return folder if folder.is_dir() else None


def resolve(name: str | Path, **options: Any) -> Path | None:
    """Folder with config.json and model.safetensors of a trained model, downloaded from the Hub if necessary.

    None if `name` is neither a folder nor the id of a repository. `options` are arguments of `hf_hub_download`.

    >>> resolve("tile32").name
    'tile32'
    """
    folder = local_folder(name)
    if folder is not None:
        if not (folder / CONFIG).is_file():
            raise MissingFileError(f"{name} has no {CONFIG}. Name a folder written by save_pretrained.")
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        return None
    problem = f"No local folder or Hub repository named '{name}'"
    weights, _ = (download(str(name), file, problem, **options) for file in (WEIGHTS, CONFIG))
    return weights.parent


def download(repository: str, file: str, problem: str, **options: Any) -> Path:
    """Download a file from the Hugging Face Hub, or find it in the cache; MissingFileError starts with `problem`."""
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(repository, file, **options))
    except (errors.HfHubHTTPError, errors.EntryNotFoundError, errors.HFValidationError) as error:
        missing = isinstance(error, errors.RepositoryNotFoundError | errors.RemoteEntryNotFoundError)
        reason = "not found" if missing else first_line(error)
        raise MissingFileError(f"{problem}: {reason}.") from error


def model_folder(name: str | Path, *wanted: str) -> Path | None:
    """`resolve`, with an InputError that names the right function if the model is not of one of the `wanted` types."""
    folder = resolve(name)
    if folder is not None:
        check_type(name, read_config(folder), *wanted)
    return folder


def check_type(name: str | Path, config: Mapping[str, Any], *wanted: str) -> None:
    """Raise InputError unless the configuration is that of a model of one of these types."""
    if config["type"] not in wanted:
        noun, loader = TYPES[config["type"]]
        raise InputError(f"'{name}' is {noun}; load it with {loader}.")


def model_type(name: str | Path) -> str | None:
    """Type of a trained model, a key of `TYPES`; None if the name is not that of a trained model.

    >>> model_type("tile32")
    'autoencoder'
    """
    folder = resolve(name)
    return None if folder is None else str(read_config(folder)["type"])


def full_name(name: str) -> str:
    """One-line name of a bundled autoencoder; other names are returned unchanged.

    >>> full_name("waves512")
    'waves/512x1@16:64'
    """
    if name in UNTRAINED:
        return UNTRAINED[name]
    return str(read_config(WEIGHTS_FOLDER / name).get("name", name)) if name in bundled_models() else name


def encoder_name(folder: Path) -> str:
    """Name of the encoder of a trained model, as `build_encoder` takes it."""
    config = read_config(folder)
    name = config["encoder"] if "encoder" in config else ModelConfig.parse(config["name"]).encoder
    if name.startswith("waves"):
        raise InputError(f"{folder.name} has a wave encoder, which has no feature map. Choose another model.")
    return str(name)


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a trained model. The result always has a known `type`, also for older files without it."""
    file = folder / CONFIG
    config = read_json(file)
    for key in ("type", "name", "encoder", "head", "variant"):
        if not isinstance(config.get(key, ""), str):
            raise CorruptFileError(f"Corrupt file {file}: {key} is not a string.")
    if "name" not in config and "encoder" not in config:
        raise CorruptFileError(f"Corrupt file {file}: it has neither a name nor an encoder field.")
    config.setdefault("type", _type_of_older(config))
    if config["type"] not in TYPES:
        raise CorruptFileError(f"Corrupt file {file}: unknown type {config['type'][:40]!r}; known: {', '.join(TYPES)}.")
    return config


def _type_of_older(config: Mapping[str, Any]) -> str:
    """Type of a model saved before config.json had the field, derived from the other fields."""
    if "variant" in config:
        return "masked"
    if "classes" in config:
        return {"mf": "detector", "mask": "segmenter"}.get(config.get("head", "").partition("-")[0], "classifier")
    return "autoencoder" if "name" in config else "encoder"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of untrusted origin; raise CorruptFileError for any other content."""
    try:
        size = path.stat().st_size
        if size > CONFIG_BYTES:
            raise CorruptFileError(f"Corrupt file {path}: {size} bytes, more than the limit of {CONFIG_BYTES}.")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_reject_constant)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist. A model folder contains {CONFIG} and {WEIGHTS}.") from error
    except CorruptFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"Corrupt file {path}: it is not valid JSON ({first_line(error)}).") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"Corrupt file {path}: expected a JSON object, got {type(content).__name__}.")
    return content


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_fields(config: Mapping[str, Any], hints: Mapping[str, Any], path: Path) -> None:
    """Raise CorruptFileError if a field of `config` is unknown or does not have the type given by `hints`."""
    for key, value in config.items():
        if key not in hints:
            known = ", ".join(hints)
            raise CorruptFileError(f"Corrupt file {path}: unknown field {key[:40]!r}; known fields: {known}.")
        if not _is_a(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            raise CorruptFileError(f"Corrupt file {path}: {key} is {shorten(value, 40)}, expected type {wanted}.")


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

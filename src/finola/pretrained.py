"""Load and save models: the mixin of huggingface_hub with safetensors only, strict loading and atomic writes."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, get_type_hints

from huggingface_hub import PyTorchModelHubMixin

from finola.errors import CorruptFileError, InputError, MissingFileError
from finola.files import share
from finola.serialization import (
    CONFIG,
    WEIGHTS,
    TooLarge,
    bounded_by,
    check_numbers,
    check_types,
    load_weights,
    read_config,
    read_weights,
)


class Pretrained(PyTorchModelHubMixin, library_name="finola"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub`, safetensors only."""

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
        """Build a model from a folder or hub id, in evaluation mode; `settings` replace fields of its config.json.

        Weights are loaded strictly: missing or unexpected keys and mismatched shapes raise CorruptFileError, as does a
        configuration that is malformed or describes a model far larger than its weights. Pickle files are never read.
        """
        options = {
            "revision": revision,
            "cache_dir": cache_dir,
            "force_download": force_download,
            "token": token,
            "local_files_only": local_files_only,
        }
        config_file, weights_file = _find_files(str(pretrained_model_name_or_path), options)
        model = cls._build(read_config(config_file), settings, config_file, weights_file)
        load_weights(model, read_weights(weights_file), weights_file)  # type: ignore[arg-type]
        model.to(map_location).eval()  # type: ignore[attr-defined]
        return model

    @classmethod
    def _build(cls, config: dict[str, Any], settings: dict[str, Any], config_file: Path, weights_file: Path) -> Self:
        """Build the configured model with initial weights; its memory is bounded by the size of the weights file."""
        parameters = list(inspect.signature(cls.__init__).parameters)[1:]
        unknown = settings.keys() - set(parameters)
        if unknown:
            raise InputError(
                f"{cls.__name__} has no setting {', '.join(sorted(unknown))}; available: {', '.join(parameters)}."
            )
        hints = get_type_hints(cls.__init__)
        check_types(config, {name: hints[name] for name in parameters}, config_file)
        with bounded_by(weights_file, config_file) as shapes:
            check_numbers(_numbers(config), shapes)
            return cls._construct(config | settings, config_file)

    @classmethod
    def _construct(cls, config: dict[str, Any], config_file: Path) -> Self:
        try:
            return cls(**config)
        except TooLarge:
            raise
        # The configuration is untrusted and reaches constructors of timm and torchvision, which raise any class.
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:300]
            raise CorruptFileError(f"Corrupt file {config_file}: no model can be built from it: {reason}.") from error

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write config.json and model.safetensors, each atomically."""
        self.check_saveable()
        target = Path(save_directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
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


def _find_files(name: str, options: dict[str, Any]) -> tuple[Path, Path]:
    """Paths of config.json and model.safetensors in a folder, or of a hub id in the cache or downloaded."""
    if Path(name).is_dir():
        return Path(name) / CONFIG, Path(name) / WEIGHTS
    from huggingface_hub import errors, hf_hub_download

    try:
        config, weights = (Path(hf_hub_download(name, file, **options)) for file in (CONFIG, WEIGHTS))
    except (errors.HfHubHTTPError, errors.EntryNotFoundError, errors.HFValidationError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise MissingFileError(f"There is no folder {name}, and no such model on the hub: {reason}.") from error
    return config, weights

"""Runs that begin with the weights of another run."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from finola.autoencoder import Autoencoder
from finola.masked import MaskedFinola
from finola.names import nearest
from finola.training.recipe import ModelSection
from finola.wave.start import wave_basis
from finola.zoo import encoder_name, find_trained, load, read_config, trained_part


def encoder_of(section: ModelSection) -> tuple[str, Path | None]:
    """The encoder that a recipe's model section means, and the folder of its trained weights, where it has one."""
    if section.weights is None:
        return section.name, None
    folder = folder_of(section.weights)
    name = encoder_name(folder)
    if section.name not in ("", name):
        raise ValueError(f"model.name is {section.name}, but the encoder in {section.weights} is {name}.")
    return name, folder


def folder_of(weights: str) -> Path:
    """Where the trained model lies that `model.weights` names."""
    folder = find_trained(weights)
    if folder is None:
        raise FileNotFoundError(f"model.weights is {weights!r}: there is no trained model of that name here.")
    return folder


def same_shapes(given: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """Whether two states have the same names, each of the same shape."""
    return {key: value.shape for key, value in given.items()} == {key: value.shape for key, value in own.items()}


def begin_encoder(encoder: nn.Module, folder: Path) -> None:
    """Copy the encoder of a trained model, whatever stands on it there."""
    encoder.load_state_dict(trained_part(folder, "encoder."))


def begin_head(model: Any, folder: Path) -> None:
    """Copy the encoder, and the head on it where its kind and classes are the same (a probe starts fine-tuning)."""
    begin_encoder(model.encoder, folder)
    if read_config(folder).get("classes") != model.classes:
        return
    head, own = trained_part(folder, "head."), model.head.state_dict()
    if same_shapes(head, own):
        model.head.load_state_dict(head)


def begin_masked(model: MaskedFinola, name: str) -> None:
    """Copy a masked model of the same parts; the size of its images may be another, since no part depends on it."""
    given, own = load_file(folder_of(name) / "model.safetensors"), model.state_dict()
    if not same_shapes(given, own):
        raise ValueError(
            f"{model.config} cannot begin with the weights of {name}: that is no masked model of its parts."
        )
    model.load_state_dict(given)


def begin(model: Autoencoder, name: str) -> list[str]:
    """Begin with a trained model of the same name; of one with another encoder, with its recurrence and decoder; of one
    that draws no pictures, with encoder, pooling and recurrence.

    The last is how the appendix compares FINOLA and masked FINOLA: those three are kept, the decoder is new. The names
    of what was copied are returned.
    """
    own, folder = model.state_dict(), find_trained(name)
    draws = folder is None or ("variant" not in (config := read_config(folder)) and "name" in config)
    if draws:
        trained = load(name)
        fits = trained.state_dict()
        if str(trained.config) != str(model.config):
            fits = _without_encoder(trained, model)
    else:
        assert folder is not None
        fits = {
            key: value
            for key, value in load_file(folder / "model.safetensors").items()
            if key.startswith(("encoder.", "pool.", "transition.")) and key in own and own[key].shape == value.shape
        }
        if any(key.startswith("encoder.") and key not in fits for key in own):
            raise ValueError(f"the encoder of {name} does not fit {model.config}.")
    model.load_state_dict(own | fits)
    return sorted(fits)


def _without_encoder(trained: Autoencoder, model: Autoencoder) -> dict[str, Tensor]:
    """Recurrence, decoder and waves of a model that differs in its encoder alone."""
    own, ours = model.state_dict(), ("transition.", "grower.", "decoder.")
    fits = {key: value for key, value in trained.state_dict().items() if key.startswith(ours)}
    wanted = {key: value for key, value in own.items() if key.startswith(ours)}
    alike = replace(trained.config, encoder=model.config.encoder, decoder=model.config.decoder) == model.config
    if not alike or not same_shapes(fits, wanted):
        raise ValueError(
            f"{model.config} cannot begin with the weights of {trained.config}, another model: they differ in more "
            "than the encoder."
        )
    if hasattr(model, "wave_encoder") and (basis := wave_basis(trained)) is not None:
        fits |= {f"wave_encoder.basis.{key}": value for key, value in basis.state_dict().items()}
    return fits


def is_frozen(name: str, patterns: list[str]) -> bool:
    """Whether a parameter's name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """Parameters whose names match a pattern such as `encoder.*` are not trained."""
    for pattern in patterns:
        found = [parameter for name, parameter in model.named_parameters() if fnmatchcase(name, pattern)]
        if not found:
            hint = nearest(pattern.strip("*."), [name for name, _ in model.named_parameters()])
            raise ValueError(f"model.frozen has {pattern}, which is no parameter of the model: {hint}")
        for parameter in found:
            parameter.requires_grad_(False)

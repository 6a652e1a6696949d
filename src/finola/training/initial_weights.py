"""Runs that begin with the weights of another run."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from finola.autoencoder import Autoencoder
from finola.config import nearest
from finola.errors import InputError, MissingFileError
from finola.masked import MaskedFinola
from finola.serialization import WEIGHTS, load_weights, read_weights
from finola.training.config import ModelSection
from finola.training.processes import say
from finola.wave.initialisation import wave_basis
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
        raise MissingFileError(f"model.weights is {weights!r}: there is no trained model of that name here.")
    return folder


def same_shapes(given: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """Whether two states have the same names, each of the same shape."""
    return {key: value.shape for key, value in given.items()} == {key: value.shape for key, value in own.items()}


def begin_encoder(encoder: nn.Module, folder: Path) -> None:
    """Copy the encoder of a trained model, whatever stands on it there."""
    load_weights(encoder, trained_part(folder, "encoder."), f"{folder / WEIGHTS} (encoder)")


def begin_head(model: Any, folder: Path) -> None:
    """Copy the encoder, and the head on it where its kind and classes are the same (a probe starts fine-tuning).

    Otherwise the head starts from scratch, which is said where the folder has one.
    """
    begin_encoder(model.encoder, folder)
    config, head = read_config(folder), trained_part(folder, "head.")
    if config.get("classes") == model.classes and same_shapes(head, model.head.state_dict()):
        load_weights(model.head, head, f"{folder / WEIGHTS} (head)")
    elif head:
        say(f"The encoder is that of {folder}; its head has other classes or layers, so the head starts from scratch.")


def begin_masked(model: MaskedFinola, name: str) -> None:
    """Copy a masked model of the same parts; the size of its images may be another, since no part depends on it."""
    given, own = read_weights(folder_of(name) / WEIGHTS), model.state_dict()
    if not same_shapes(given, own):
        raise InputError(
            f"{model.config} cannot begin with the weights of {name}: that is no masked model of its parts."
        )
    load_weights(model, given, name)


def begin(model: Autoencoder, name: str) -> list[str]:
    """Initialise `model` from a trained one, and return the names of what was copied.

    From a model of the same name everything is copied; from an autoencoder with another encoder, the recurrence and
    the decoder; from a masked model, a classifier or MoCo, those of encoder, pooling and recurrence that it has. The
    last is how the appendix compares FINOLA and masked FINOLA. Each part is copied completely or InputError is raised;
    which parts start from scratch is said.
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
        fits = _parts(read_weights(folder / WEIGHTS), own, f"{model.config}", name)
    load_weights(model, own | fits, name)
    copied, parts = ({key.partition(".")[0] for key in keys} for keys in (fits, own))
    if parts - copied:
        say(f"From {name}: {', '.join(sorted(copied))}. From scratch: {', '.join(sorted(parts - copied))}.")
    return sorted(fits)


def _parts(given: dict[str, Tensor], own: dict[str, Tensor], model: str, name: str) -> dict[str, Tensor]:
    """Encoder, pooling and recurrence of `given`, each with exactly the names and shapes that `own` has."""
    fits: dict[str, Tensor] = {}
    for part in ("encoder.", "pool.", "transition."):
        theirs, ours = ({k: v for k, v in state.items() if k.startswith(part)} for state in (given, own))
        if (theirs or part == "encoder.") and not same_shapes(theirs, ours):
            raise InputError(f"the {part.rstrip('.')} of {name} does not fit {model}.")
        fits |= theirs
    return fits


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

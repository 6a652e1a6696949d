"""Initialise models from trained weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from finola.autoencoder import Autoencoder
from finola.errors import InputError, MissingFileError
from finola.hub import WEIGHTS, encoder_name, read_config, resolve
from finola.model_zoo import load
from finola.recipes.recipe import Recipe
from finola.recipes.sections import ModelSection
from finola.serialization import load_weights, read_weights
from finola.training.devices import print_on_rank_zero
from finola.wave.initialisation import wave_basis

R = TypeVar("R", bound=Recipe)


def resolve_encoder(recipe: R) -> R:
    """Complete a recipe without `model.name` with the name of the encoder in `model.weights`."""
    section = recipe.model
    if section.name or section.weights is None:
        return recipe
    return replace(recipe, model=replace(section, name=encoder_name(find_weights_folder(section.weights))))


def find_weights_folder(weights: str) -> Path:
    """Folder of the trained model given by `model.weights`."""
    folder = resolve(weights)
    if folder is None:
        raise MissingFileError(f"model.weights is {weights!r}, but no trained model of that name or path exists.")
    return folder


def same_shapes(given: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """Whether two state dictionaries have the same names and shapes."""
    return {key: value.shape for key, value in given.items()} == {key: value.shape for key, value in own.items()}


def initialise_encoder(encoder: nn.Module, section: ModelSection) -> Path | None:
    """Initialise an encoder from the trained model in `model.weights`, of any kind, and return its folder."""
    if section.weights is None:
        return None
    folder = find_weights_folder(section.weights)
    if (name := encoder_name(folder)) != section.name:
        raise InputError(
            f"model.name is {section.name}, but the encoder in model.weights={section.weights} is {name}. "
            "Leave model.name out, or choose other weights."
        )
    load_weights(encoder, read_weights(folder / WEIGHTS, "encoder."), f"{folder / WEIGHTS} (encoder)")
    return folder


def initialise_head(model: Any, section: ModelSection, kind: str) -> None:
    """Initialise the encoder from `model.weights`, and the head if its kind and classes match.

    This allows fine-tuning to start from a probe. Otherwise the head is randomly initialised, and a message reports
    it if the trained model has a head. `kind` is the name of the head for this message.
    """
    folder = initialise_encoder(model.encoder, section)
    if folder is None:
        return
    config, head = read_config(folder), read_weights(folder / WEIGHTS, "head.")
    if config.get("classes") == model.classes and same_shapes(head, model.head.state_dict()):
        load_weights(model.head, head, f"{folder / WEIGHTS} (head)")
    elif head:
        theirs = f"{config.get('head')} for {len(config.get('classes', []))} classes"
        print_on_rank_zero(
            f"Encoder initialised from {folder}. Its head ({theirs}) has other layers or classes than this one "
            f"({kind} for {len(model.classes)} classes), which starts from scratch."
        )


def initialise_autoencoder(model: Autoencoder, name: str) -> None:
    """Initialise parts of `model` from a trained one.

    From a model of the same name, all parts are copied; from an autoencoder with another encoder, the recurrence and
    the decoder; from a masked model, a classifier or MoCo, its encoder, pooling and recurrence as far as it has them
    (as in the appendix's comparison of FINOLA and masked FINOLA). Each part is copied completely, or InputError is
    raised. A message lists the parts that are trained from scratch.
    """
    folder, own = resolve(name), model.state_dict()
    parts: tuple[str, ...] = ("encoder", "pool", "transition")
    fits: dict[str, Tensor] = {}
    if folder is None or read_config(folder)["type"] == "autoencoder":
        trained = load(name)
        given, theirs = trained.state_dict(), trained.config
        if str(theirs) == str(model.config):
            parts, fits = (), given  # without a check of shapes, because those of a wave encoder depend on its waves
        elif replace(theirs, encoder=model.config.encoder, decoder=model.config.decoder) == model.config:
            parts = ("transition", "grower", "decoder")
            if hasattr(model, "wave_encoder") and (basis := wave_basis(trained)) is not None:
                fits = {f"wave_encoder.basis.{key}": value for key, value in basis.state_dict().items()}
        else:
            raise InputError(
                f"{model.config} cannot be initialised from {theirs}: the models differ in more than the encoder."
            )
    else:
        given = read_weights(folder / WEIGHTS)
        if model.config.flat:  # its linear layer belongs to the map of one image size; a masked model sees a quarter
            parts = ("encoder", "transition")
    for part in parts:
        copied, replaced = ({k: v for k, v in state.items() if _part(k) == part} for state in (given, own))
        if (copied or part == "encoder") and not same_shapes(copied, replaced):
            raise InputError(f"The {part} of {name} does not match the names and shapes of that of {model.config}.")
        fits |= copied
    load_weights(model, own | fits, name)
    initialised, all_parts = ({_part(key) for key in state} for state in (fits, own))
    if scratch := ", ".join(sorted(all_parts - initialised)):
        print_on_rank_zero(f"Initialised from {name}: {', '.join(sorted(initialised))}. From scratch: {scratch}.")


def _part(key: str) -> str:
    """The part of a model that a tensor belongs to, such as `encoder`."""
    return key.partition(".")[0]

"""Runs that begin with the weights of another run."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from finola.autoencoder import Autoencoder
from finola.decoders.waves import ConvRefinement, WaveDecoder
from finola.heads import Classifier
from finola.names import nearest
from finola.training.recipe import ModelSection
from finola.zoo import encoder_name, find_trained, load, read_config


def encoder_of(section: ModelSection) -> tuple[str, Path | None]:
    """The encoder that a recipe's model section means, and the folder of its trained weights, where it has one."""
    if section.weights is None:
        return section.name, None
    folder = find_trained(section.weights)
    if folder is None:
        raise FileNotFoundError(f"model.weights is {section.weights!r}: there is no trained model of that name here.")
    name = encoder_name(folder)
    if section.name not in ("", name):
        raise ValueError(f"model.name is {section.name}, but the encoder in {section.weights} is {name}.")
    return name, folder


def begin_encoder(encoder: nn.Module, folder: Path) -> None:
    """Copy the encoder of a trained model, whatever stands on it there."""
    _copy(encoder, _part(load_file(folder / "model.safetensors"), "encoder."))


def begin_head(model: Classifier, folder: Path) -> bool:
    """Copy the encoder; where a head of the same kind and size stands on it, that too (a probe starts fine-tuning)."""
    state = load_file(folder / "model.safetensors")
    _copy(model.encoder, _part(state, "encoder."))
    head = _part(state, "head.")
    own = model.head.state_dict()
    fits = head.keys() == own.keys() and all(own[key].shape == value.shape for key, value in head.items())
    if fits:
        _copy(model.head, head)
    return fits


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _copy(module: nn.Module, state: dict[str, Tensor]) -> None:
    own = module.state_dict()
    module.load_state_dict({key: value.to(own[key].dtype) if key in own else value for key, value in state.items()})


def begin(model: Autoencoder, name: str) -> list[str]:
    """Begin with a trained model by name; of one that draws no pictures, with its encoder, pooling and recurrence.

    The last is how the appendix compares FINOLA and masked FINOLA: those three are kept, the decoder is new.
    """
    folder = find_trained(name)
    if folder is None or ("variant" not in (config := read_config(folder)) and "name" in config):
        return begin_from(model, load(name))
    own, state = model.state_dict(), load_file(folder / "model.safetensors")
    fits = {
        key: value.to(own[key].dtype)
        for key, value in state.items()
        if key.startswith(("encoder.", "pool.", "transition.")) and key in own and own[key].shape == value.shape
    }
    if not any(key.startswith("encoder.") for key in fits):
        raise ValueError(f"the encoder of {name} does not fit {model.config}.")
    model.load_state_dict(own | fits)
    return sorted(fits)


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """Parameters whose names match a pattern such as `encoder.*` are not trained."""
    for pattern in patterns:
        found = [parameter for name, parameter in model.named_parameters() if fnmatchcase(name, pattern)]
        if not found:
            hint = nearest(pattern.strip("*."), [name for name, _ in model.named_parameters()])
            raise ValueError(f"model.frozen has {pattern}, which is no parameter of the model: {hint}")
        for parameter in found:
            parameter.requires_grad_(False)


def begin_from(model: Autoencoder, trained: Autoencoder) -> list[str]:
    """Copy the weights of a trained model of the same name; of another wave model, the refinements that fit.

    A refinement looks at pixels, not at waves, so it means the same with more or fewer of them. The names of what was
    copied are returned.
    """
    own, given = model.state_dict(), trained.state_dict()
    if str(model.config) == str(trained.config):
        model.load_state_dict(given)
        return sorted(given)
    if not (model.config.is_waves and trained.config.is_waves):
        raise ValueError(f"{model.config} cannot begin with the weights of {trained.config}, another model.")
    fits = {
        name: value
        for name, value in given.items()
        if ".refinement." in name and not name.startswith("encoder.refinement.last.") and name in own
        if own[name].shape == value.shape
    }
    first = "decoder.refinement.on_map.0.weight"
    if first in own and first in given and first not in fits and model.config.cell == trained.config.cell:
        fits[first] = _seen_through(trained.decoder, model.decoder)  # type: ignore[arg-type]
    if not fits:
        raise ValueError(f"no refinement of {trained.config} fits {model.config}: nothing to begin with.")
    model.load_state_dict(own | fits)
    return sorted(fits)


@torch.no_grad()
def _seen_through(trained: WaveDecoder, model: WaveDecoder) -> Tensor:
    """The first layer of a refinement, as mixtures of the pixels that its read-out draws, for another read-out."""
    assert isinstance(trained.refinement, ConvRefinement)
    first = trained.refinement.on_map[0]
    weight = first.weight[:, :, 0, 0].double()  # type: ignore[index]
    pixels = torch.linalg.lstsq(trained.read_out.linear.weight.double().T, weight.T).solution.T  # (width, 3·h·w)
    seen: Tensor = pixels @ model.read_out.linear.weight.double()
    return seen.float()[:, :, None, None]

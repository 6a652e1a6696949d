"""Runs that begin with the weights of another run."""

from __future__ import annotations

import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.decoders.waves import ConvRefinement, WaveDecoder


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
    weight = first.weight[:, :, 0, 0].double()  # type: ignore[union-attr, index]
    pixels = torch.linalg.lstsq(trained.read_out.linear.weight.double().T, weight.T).solution.T  # (width, 3·h·w)
    seen: Tensor = pixels @ model.read_out.linear.weight.double()
    return seen.float()[:, :, None, None]

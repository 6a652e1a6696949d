"""Wave initialisation: the untrained recurrence is a sum of plane waves that reconstructs the image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from finola.config import ModelConfig
from finola.decoders.waves import AddedDecoder, ConvRefinement, WaveDecoder
from finola.encoders.elastic import ElasticEncoder
from finola.encoders.waves import WaveEncoder
from finola.errors import InputError
from finola.layers import AttentionPool
from finola.serialization import weights_follow
from finola.transitions import NormLinear
from finola.wave.basis import WaveBasis
from finola.wave.spectrum import Spectrum

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder


@torch.no_grad()
def initialise_waves(model: Autoencoder, spectrum: Spectrum | None = None) -> Autoencoder:
    """Initialise A, B, A₋, B₋, the read-out and the wave encoder of `model` from plane waves.

    Refinements do not change the output before training. `spectrum` selects the waves (see `measure_spectrum`; None:
    the bundled spectrum). A model with the wave encoder reconstructs images without training. A model with another
    encoder keeps it and also gets the wave encoder as `model.wave_encoder`, to whose q it can be fitted; its decoder is
    added to the read-out with a zero last layer.

    >>> import finola
    >>> model = initialise_waves(finola.create("mf-w720/64x1@8:32"))
    >>> model.wave_encoder(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 1, 64])
    """
    config = model.config
    if config.is_exact:
        return _set_exact_waves(model, spectrum)
    _check_transition(model)
    if isinstance(model.encoder, WaveEncoder):
        wave_encoder = model.encoder
        if spectrum is not None:
            wave_encoder.set_spectrum(spectrum)
    else:
        wave_encoder = model.wave_encoder = WaveEncoder(config, spectrum, stored=False).requires_grad_(False)
    if not isinstance(model.decoder, WaveDecoder):
        model.decoder = WaveDecoder(config, AddedDecoder(model.decoder))
    # Written by save_pretrained, so that loading builds the same modules.
    model.arguments["init"] = None if config.is_waves else "waves"
    if not weights_follow():
        _set_values(model, wave_encoder)
    return model


@torch.no_grad()
def initialise_matrices(model: Autoencoder) -> Autoencoder:
    """Initialise only A, B, A₋, B₋ of `model` from plane waves; its encoder and decoder stay randomly initialised."""
    _check_transition(model)
    if not weights_follow():
        _set_matrices(model, WaveBasis(model.config))
    return model


def _check_transition(model: Autoencoder) -> None:
    """Raise InputError if a model has no unconstrained A and B."""
    config = model.config
    if not isinstance(getattr(model, "transition", None), NormLinear):
        kind = f"{config.speeds} speeds" if config.speeds != "complex" else config.transition
        raise InputError(f"{config} has {kind}, but wave initialisation needs norm+linear with unconstrained A and B.")


def _set_matrices(model: Autoencoder, basis: WaveBasis) -> None:
    for name, matrix in basis.coefficients()._asdict().items():
        getattr(model.transition, name).copy_(matrix)


def _set_exact_waves(model: Autoencoder, spectrum: Spectrum | None) -> Autoencoder:
    """Set the fixed matrices and the fixed read-out to those of the plane waves of the encoder."""
    encoder = model.encoder
    assert isinstance(encoder, WaveEncoder | ElasticEncoder)
    if spectrum is not None:
        encoder.set_spectrum(spectrum)
    if not weights_follow():
        _set_matrices(model, encoder.basis)
        model.decoder.read_out.weight.copy_(encoder.basis.read_out())  # type: ignore[union-attr, operator]
    return model


def _set_values(model: Autoencoder, wave_encoder: WaveEncoder) -> None:
    """Set the matrices, the read-out and the biases to those of the plane waves."""
    basis, decoder = wave_encoder.basis, model.decoder
    if isinstance(model.pool, AttentionPool):  # centre the output on the q of a grey image
        grey = torch.full((1, 3, *model.config.image_size), 0.5)
        model.pool.attention.out_proj.bias.copy_(wave_encoder(grey).mean((0, 1)))
    _set_matrices(model, basis)
    assert isinstance(decoder, WaveDecoder)
    linear = decoder.read_out.linear
    linear.weight.copy_(basis.read_out())
    nn.init.constant_(linear.bias, 0.5)
    if isinstance(decoder.refinement, ConvRefinement):
        decoder.refinement.look_through(decoder.read_out)


def wave_basis(model: Autoencoder) -> WaveBasis | None:
    """Plane waves that a model was initialised from, or None."""
    for encoder in (model.encoder, getattr(model, "wave_encoder", None)):
        basis = getattr(encoder, "basis", None)
        if isinstance(basis, WaveBasis):
            return basis
    return None


@torch.no_grad()
def measure_radius(
    spectrum: Spectrum, batches: Iterable[Tensor], counts: Sequence[int] = (256, 1024, 3072)
) -> Spectrum:
    """Return the spectrum with a radius that covers the amplitudes of 99 % of the images for every C in `counts`.

    The radius is at least √(3/2), the bound for images in [0, 1] if the waves are orthogonal, so that white images fit.
    """
    side = spectrum.side
    configs = [ModelConfig("waves", channels, 1, (1, 1), (side, side)) for channels in counts]
    encoders = [WaveEncoder(config, spectrum) for config in configs]
    norms = [
        torch.stack([encoder.analyse(images).norm(dim=1) / encoder.basis.gain for encoder in encoders])
        for images in batches
    ]
    largest = torch.cat(norms, dim=1).amax(0)
    radius = float(largest.kthvalue(max(1, math.ceil(0.99 * len(largest)))).values)
    return replace(spectrum, radius=max(math.sqrt(1.5), radius))

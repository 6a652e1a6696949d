"""Wave initialisation: before any training the recurrence is a sum of plane waves that draws the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from finola.config import ModelConfig
from finola.decoders.waves import AddedDecoder, ConvRefinement, WaveDecoder
from finola.encoders.waves import WaveEncoder
from finola.pooling import AttentionPool
from finola.transitions import NormLinear
from finola.wave.basis import WaveBasis
from finola.wave.spectrum import Spectrum

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder


@torch.no_grad()
def initialise_waves(model: Autoencoder, spectrum: Spectrum | None = None) -> Autoencoder:
    """Set A, B, A₋, B₋, the read-out and the analysis of `model` to plane waves; its refinements then change nothing.

    `spectrum` says which waves carry the energy (`measure_spectrum` on your photos; None: the bundled one). A model
    with the wave encoder draws at once. One with another encoder keeps it, and gets the wave encoder beside it as
    `model.wave_encoder`, whose q it can be fitted to; its decoder is added to the read-out with a zeroed last layer.

    >>> import finola
    >>> model = initialise_waves(finola.create("mf-w720/64x1@8:32"))
    >>> model.wave_encoder(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 1, 64])
    """
    config = model.config
    if not isinstance(getattr(model, "transition", None), NormLinear):
        kind = f"{config.speeds} speeds" if config.speeds != "complex" else config.transition
        raise ValueError(
            f"{config} has {kind}: a wave start needs norm+linear with free A and B, whose channel pairs can rotate."
        )
    if isinstance(model.encoder, WaveEncoder):
        wave_encoder = model.encoder
        if spectrum is not None:
            wave_encoder.set_spectrum(spectrum)
    else:
        wave_encoder = model.wave_encoder = WaveEncoder(config, spectrum=spectrum, stored=False).requires_grad_(False)
        if isinstance(model.pool, AttentionPool):  # around the vector of a grey image, from where all others are near
            grey = torch.full((1, 3, *config.image_size), 0.5)
            model.pool.attention.out_proj.bias.copy_(wave_encoder(grey).mean((0, 1)))
    basis = wave_encoder.basis
    for name, matrix in basis.coefficients()._asdict().items():
        getattr(model.transition, name).copy_(matrix)
    if not isinstance(model.decoder, WaveDecoder):
        model.decoder = WaveDecoder(config, AddedDecoder(model.decoder))
    linear = model.decoder.read_out.linear
    linear.weight.copy_(basis.read_out())
    nn.init.constant_(linear.bias, 0.5)
    if isinstance(model.decoder.refinement, ConvRefinement):
        model.decoder.refinement.look_through(model.decoder.read_out)
    # What save_pretrained writes, so that the model is built the same way when it is loaded.
    model._hub_mixin_config = {"name": str(config), "init": None if config.is_waves else "waves"}
    return model


def wave_basis(model: Autoencoder) -> WaveBasis | None:
    """The plane waves a model was started from, or None."""
    for encoder in (model.encoder, getattr(model, "wave_encoder", None)):
        basis = getattr(encoder, "basis", None)
        if isinstance(basis, WaveBasis):
            return basis
    return None


@torch.no_grad()
def measure_radius(
    spectrum: Spectrum, batches: Iterable[Tensor], counts: Sequence[int] = (256, 1024, 3072)
) -> Spectrum:
    """The spectrum with a radius that holds 99 % of these images' amplitudes, whichever of `counts` C is.

    It is at least √(3/2), which no picture in [0, 1] exceeds where its waves are orthogonal: a white sky fits, too.
    """
    side = spectrum.side
    configs = [ModelConfig("waves", channels, 1, (1, 1), (side, side)) for channels in counts]
    encoders = [WaveEncoder(config, spectrum=spectrum) for config in configs]
    norms = [
        torch.stack([encoder.analyse(images).norm(dim=1) / encoder.basis.gain for encoder in encoders])
        for images in batches
    ]
    widest = torch.cat(norms, dim=1).amax(0)
    radius = float(widest.kthvalue(max(1, math.ceil(0.99 * len(widest)))).values)
    return replace(spectrum, radius=max(math.sqrt(1.5), radius))

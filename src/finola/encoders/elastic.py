"""Elastic wave encoder: a network on pixels, then the projection of every tile onto the waves, with q of any length."""

from __future__ import annotations

from torch import Tensor, nn

from finola.checks import check_values
from finola.config import ModelConfig
from finola.errors import InputError
from finola.pixel_net import PixelNet
from finola.wave.basis import WaveBasis
from finola.wave.codebook import Codebook
from finola.wave.spectrum import Spectrum

WIDTH, BLOCKS = 48, 3  # of the network before the analysis


class ElasticEncoder(nn.Module):
    """Encode tiles (T, 3, H, W) to q (T, 1, C). `prefilter` runs on whole photos before they are cut into tiles."""

    returns_q = True  # needs no pooling

    def __init__(self, config: ModelConfig, spectrum: Spectrum | None = None) -> None:
        super().__init__()
        self.config = config
        self.basis = WaveBasis(config, spectrum)
        self.codebook = Codebook(self.basis, config.elastic)
        self.prefilter = PixelNet(WIDTH, BLOCKS, config.image_size)
        # The method is not annotated in torch.
        self.register_load_state_dict_post_hook(lambda encoder, _: encoder.set_basis())  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        self.basis.check_state(state_dict, f"{prefix}basis.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def set_spectrum(self, spectrum: Spectrum) -> None:
        """Use the waves of this spectrum."""
        self.basis = WaveBasis(self.config, spectrum).to(self.basis.gain.device)
        self.set_basis()

    def set_basis(self) -> None:
        """Recompute the tensors that follow from the waves."""
        self.basis.set_waves(self.basis.waves, self.basis.means)
        self.codebook.set_basis(self.basis)

    def to_q(self, p: Tensor) -> Tensor:
        """Coordinates p (T, D) in the span of the waves → q (T, 1, C)."""
        return self.basis.complete(p @ self.codebook.to_waves)[:, None]

    def forward(self, tiles: Tensor) -> Tensor:
        """Encode tiles as separate images, each with all its latents."""
        check_values(tiles, training=self.training)
        return self.to_q(self.codebook.coordinates(self.prefilter(tiles)))


def elastic_encoder(model: nn.Module) -> ElasticEncoder:
    """Encoder of an elastic model; raises InputError for other models."""
    if not isinstance(model.encoder, ElasticEncoder):
        raise InputError(f"{model.config} has q of a fixed length; this needs an elastic model, such as tile32.")
    return model.encoder

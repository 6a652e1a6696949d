"""Encoders by name. Mobile-Former, `residual-map-w…` and timm backbones give feature maps; `waves` and `residual-w…`
give q.
"""

from __future__ import annotations

from torch import Tensor, nn

from finola.config import RESIDUAL, RESIDUAL_MAP, ModelConfig
from finola.encoders.backbone import Backbone, nearest_names
from finola.encoders.elastic import BLOCKS, WIDTH, ElasticEncoder
from finola.encoders.mobile_former import SPECS, MobileFormer
from finola.encoders.residual import ResidualEncoder, ResidualMap
from finola.encoders.waves import ConvRefiner, PooledRefiner, WaveEncoder
from finola.errors import InputError, UnknownNameError
from finola.pixel_net import PixelNet


def build_encoder(name: str, image_size: tuple[int, int], config: ModelConfig | None = None) -> nn.Module:
    """Build an encoder by name: `mf-w720` … `mf-w5760`, `residual-map-wWIDTH`, a timm model,
    `residual-wWIDTH`, or `waves` with an optional `+REFINEMENT`.

    It is randomly initialised, except for the wave encoder. The last two also need the configuration of their model.

    >>> build_encoder("mf-w720", image_size=(256, 256)).channels
    720
    """
    kind, _, refinement = name.partition("+")
    residual = RESIDUAL.fullmatch(name)
    if (kind == "waves" or residual) and config is None:
        raise InputError(f"{name} computes q without a feature map, which is needed here. Choose another encoder.")
    if residual and config is not None:
        return ResidualEncoder(config, width=int(residual[1]), linear=residual[2] is not None)
    if kind == "waves" and config is not None:
        if config.elastic:
            return ElasticEncoder(config)
        encoder = WaveEncoder(config, stored=not config.is_exact)
        if config.is_exact:
            encoder.requires_grad_(False).prefilter = PixelNet(WIDTH, BLOCKS)
            return encoder
        if refinement:
            encoder.refinement = build_refinement(refinement, config, encoder.basis.size)
        return encoder
    if name in SPECS:
        return MobileFormer(name)
    if residual_map := RESIDUAL_MAP.fullmatch(name):
        return ResidualMap(int(residual_map[1]))
    import timm

    import finola.encoders.registry  # noqa: F401  (registers Mobile-Former in timm)

    if timm.is_model(name):
        return Backbone(name, image_size=image_size)
    nearest = ", ".join(nearest_names(name, [*SPECS, *timm.list_models()]))
    raise UnknownNameError(f"Unknown encoder {name!r}. Did you mean one of {nearest}?")


def build_refinement(name: str, config: ModelConfig, size: int) -> ConvRefiner | PooledRefiner:
    """Build a refinement of the wave encoder by name, `conv` or that of an encoder, with a zero last layer."""
    refiner: ConvRefiner | PooledRefiner
    if name == "conv":
        refiner = ConvRefiner(config.image_size, config.paths, size)
    else:
        refiner = PooledRefiner(build_encoder(name, config.image_size), config.paths, size)
    nn.init.zeros_(refiner.last.weight)
    nn.init.zeros_(refiner.last.bias)
    return refiner


def pretrained_state(name: str, image_size: tuple[int, int]) -> dict[str, Tensor]:
    """State dict of the encoder `name` with timm's pretrained weights, downloaded on first use."""
    if name in SPECS or name.startswith(("waves", "residual-")):
        raise InputError(f"Encoder {name} has no pretrained weights; pretrained=True needs a timm model.")
    return Backbone(name, pretrained=True, image_size=image_size).state_dict()

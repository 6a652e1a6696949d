"""Decoders from the map z to pixels."""

from __future__ import annotations

from torch import nn

from finola.config import TRANSFORMER, ModelConfig, show_size
from finola.decoders.conv_ae import MAP_CHANNELS
from finola.decoders.patch import PatchDecoder, TransformerDecoder
from finola.decoders.residual import ResidualDecoder
from finola.decoders.upsampling import UpsamplingDecoder
from finola.decoders.waves import ConvRefinement, ExactDecoder, WaveDecoder
from finola.errors import InputError


def build_decoder(config: ModelConfig) -> nn.Module:
    """Build the decoder of a configuration. That of wave models is the read-out, refined if their encoder is."""
    channels = MAP_CHANNELS // config.slim if config.transition == "conv-ae" else config.channels
    if config.is_exact:
        return ExactDecoder(config)
    if config.is_waves:
        return WaveDecoder(config, ConvRefinement(channels, config.cell) if "+" in config.encoder else None)
    if config.decoder == "patch":
        return PatchDecoder(channels, config.cell)
    if config.decoder == "refined":
        return WaveDecoder(config, ConvRefinement(channels, config.cell))
    if config.decoder.startswith("residual"):
        return ResidualDecoder(channels, config.cell, width=int(config.decoder.removeprefix("residual")))
    if transformer := TRANSFORMER.fullmatch(config.decoder):
        return TransformerDecoder(channels, config.cell, int(transformer[1]), width=int(transformer[2] or 512))
    height, width = config.cell
    if height != width:
        raise InputError(
            f"Model name {config}: the upsampling decoder needs square cells, got {show_size(config.cell)}. Use +patch."
        )
    return UpsamplingDecoder(channels, height, config.slim)

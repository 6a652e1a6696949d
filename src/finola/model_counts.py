"""Parameters and multiply–adds of models by name: bundled ones, one-line names, and models for recognition."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.config import ModelConfig
from finola.hub import WEIGHTS_FOLDER, bundled_models, full_name, read_config

if TYPE_CHECKING:
    from torch import Tensor, nn

COUNTS = Path(__file__).with_suffix(".json")
_RECIPE = re.compile(r"(?P<kind>masked/[eb]|probe/(lin|tran1|tran4)|detection/dec-(211|522))-w(?P<width>720|1440|2880)")


@dataclass(frozen=True)
class Count:
    """Parameters of one part of a model and its multiply–adds per image."""

    parameters: int
    multiply_adds: int


def sizes(name: str) -> dict[str, Count]:
    """`count`, from the counts stored in the package if it has them: fast for every name of `finola models`.

    >>> sizes("tile32")["encoder"] == count("tile32")["encoder"]
    True
    """
    stored = _stored_counts().get(name)
    return count(name) if stored is None else {part: Count(*numbers) for part, numbers in stored.items()}


@cache
def _stored_counts() -> dict[str, dict[str, list[int]]]:
    counts: dict[str, dict[str, list[int]]] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return counts


def count(name: str) -> dict[str, Count]:
    """Count the parameters and multiply–adds of each part of a model.

    The parts of an autoencoder are encoder, pooling, propagation and decoder; those of a classifier or detector are
    encoder and head. Multiply–adds are those of convolutions and matrix products. Propagation is 2·C²·(H·W − 1) per
    path, both orders; in masked FINOLA-B it is half a map of steps to each of the three positions that a visible one
    predicts.

    >>> count("mf-w2880/1024x16@64")["propagation"].parameters
    4194304
    """
    if name in bundled_models("classifier"):
        stored = read_config(WEIGHTS_FOLDER / name)
        return count_classifier(stored["encoder"], stored["head"], len(stored["classes"]), stored["image_size"])
    if match := _RECIPE.fullmatch(name):
        kind, backbone = match["kind"], f"mf-w{match['width']}"
        if kind.startswith("masked/"):
            variant = kind[-1]
            return count_masked(f"{backbone}/512x1@16+{'patch' if variant == 'e' else 'tran4'}", variant)
        if kind.startswith("probe/"):
            return count_classifier(backbone, kind.removeprefix("probe/").replace("tran", "tran-"), 1000, 224)
        return _count_detector(backbone, kind.replace("detection/dec", "mf-dec"))
    config = ModelConfig.parse(full_name(name))
    import torch

    from finola.decoders import build_decoder
    from finola.decoders.conv_ae import build_grower
    from finola.layers import build_pool
    from finola.transitions import build_transition

    encoder, encoding, feature_map = _encoder(config.encoder, config.image_size, config if config.returns_q else None)
    with torch.device("meta"):
        q = torch.empty(1, config.paths, config.channels)
        z = torch.empty(1, config.channels, *config.map_size)
        pooling = _count(build_pool(encoder, config, config.image_size), feature_map.to("meta"))[0]
        grower = build_grower(config)
        if grower is not None:
            propagation, z = _count(grower, q)
        else:
            transition = build_transition(config.transition, config.speeds, config.channels)
            products = {"repetition": 0, "norm-mlp": 2}.get(config.transition, 1)
            positions = config.map_size[0] * config.map_size[1] - 1
            multiply_adds = 2 * products * config.channels**2 * positions * config.paths
            propagation = Count(sum(p.numel() for p in transition.parameters()), multiply_adds)
        decoder = _count(build_decoder(config), z)[0]
    return {"encoder": encoding, "pooling": pooling, "propagation": propagation, "decoder": decoder}


def count_masked(name: str, variant: str) -> dict[str, Count]:
    """Counts of masked FINOLA, whose encoder sees a quarter of the image; `variant` is e or b."""
    import torch

    from finola.masked import MaskedFinola, half

    with torch.device("meta"):
        model = MaskedFinola(name, variant)
        channels, (height, width) = model.config.channels, model.map_size
        encoder, seen = _count(model.encoder, torch.empty(1, 3, *half(model.config.image_size)))
        z = torch.empty(1, channels, height, width)
        decoder = _count(model.decoder, z)[0]
        matrices = sum(p.numel() for p in model.transition.parameters())
        if variant == "e":
            pooling = {"pooling": _count(model.pool, seen)[0]}
            products = 2 * (height * width - 1)
        else:
            pooling = {"embedding": _count(model.embed, seen.flatten(2).transpose(1, 2))[0]}
            tall, wide = half(model.map_size)
            products = tall * wide * 2 * (tall + wide)
    return {"encoder": encoder} | pooling | {"propagation": Count(matrices, products * channels**2), "decoder": decoder}


def count_classifier(encoder_name: str, head_name: str, classes: int, side: int) -> dict[str, Count]:
    """Counts of an encoder and a head on square images."""
    import torch

    from finola.heads import build_head

    encoder, encoding, feature_map = _encoder(encoder_name, (side, side), None)
    with torch.device("meta"):
        head = build_head(head_name, int(encoder.channels), classes)  # type: ignore[arg-type]
        return {"encoder": encoding, "head": _count(head, feature_map)[0]}


def _count_detector(encoder_name: str, head_name: str) -> dict[str, Count]:
    """Detector of 80 classes on 1333×800 pixels, padded to multiples of 32."""
    import torch

    from finola.heads.detector import decoder_channels
    from finola.heads.mf_decoder import MobileFormerDecoder

    size = (800, 1344)
    encoder, encoding, _ = _encoder(encoder_name, size, None)
    channels = decoder_channels(encoder, encoder_name)
    with torch.device("meta"):
        maps = [torch.empty(1, c, size[0] // cell, size[1] // cell) for c, cell in zip(channels, (8, 16), strict=True)]
        head = _count(MobileFormerDecoder(head_name, channels, classes=80), *maps)[0]
    return {"encoder": encoding, "head": head}


@cache
def _encoder(name: str, image_size: tuple[int, int], config: ModelConfig | None) -> tuple[nn.Module, Count, Tensor]:
    """Encoder, its counts and its output, on the meta device, or on the CPU if its shapes depend on a spectrum."""
    import torch

    from finola.encoders import build_encoder

    with torch.device("cpu" if config is not None and config.is_waves else "meta"):
        encoder = build_encoder(name, image_size, config)
        return encoder, *_count(encoder, torch.full((1, 3, *image_size), 0.5))


def _count(module: nn.Module, *inputs: Tensor) -> tuple[Count, Any]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module.eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = module(*inputs)
    return Count(sum(p.numel() for p in module.parameters()), counter.get_total_flops() // 2), out

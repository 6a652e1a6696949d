"""Parts of models that are exported as graphs: modules with example inputs, and the axes that may vary.

The graphs of an autoencoder work on photos whose sides are multiples of the tile, as `rows` × `columns` tiles:

    encoder   images (N, 3, H, W) → q (N, rows, columns, M, C)
    decoder   q → images: propagation and decoder, across tile borders
    model     images → images

An elastic model has its latents in place of q. Its encoder gives the components of every tile in every basis of the
codebook, and the squared error of every basis and length. The choice among them is left to the caller
(`finola.wave.codebook.share_out`). Its decoder takes the components in the chosen basis, zero beyond the chosen length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from finola.autoencoder import Autoencoder
from finola.encoders.elastic import elastic_encoder
from finola.encoders.waves import WaveEncoder
from finola.errors import InputError
from finola.heads import Classifier
from finola.heads.detector import Detector
from finola.masked import MaskedFinola

MAX_TILES = 4096  # per side of a photo
MAX_BATCH = 65_536


@dataclass(frozen=True)
class Part:
    """A graph to export: name, module, example inputs by name, axes that may vary, and names of the outputs.

    `axes` maps an input to its variable axes; the size of an axis is a multiple of the number beside its name.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, tuple[str, int]]]
    outputs: tuple[str, ...]

    def dynamic_shapes(self) -> dict[str, dict[int, Any]]:
        """Variable axes as `torch.export` takes them."""
        found: dict[str, Any] = {}
        shapes: dict[str, dict[int, Any]] = {}
        for name, axes in self.axes.items():
            shapes[name] = {}
            for axis, (label, multiple) in axes.items():
                largest = MAX_BATCH if label == "batch" else MAX_TILES
                dim = found.setdefault(label, torch.export.Dim(label, min=1, max=largest))
                shapes[name][axis] = dim if multiple == 1 else multiple * dim
        return shapes


@dataclass
class Description:
    """The parts of a model, and what a caller has to know about them besides shapes."""

    parts: list[Part]
    facts: dict[str, Any] = field(default_factory=dict)


class _Call(nn.Module):
    """Module whose forward is a method of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model


class _Encoder(_Call):
    def forward(self, images: Tensor) -> Tensor:
        (p,) = self.model.space.analyse(images)
        q: Tensor = p.unflatten(3, (self.model.config.paths, -1))
        return q


class _Decoder(_Call):
    def forward(self, q: Tensor) -> Tensor:
        images: Tensor = self.model.space.render(q.flatten(0, 2).flatten(1), (q.shape[1], q.shape[2]))
        return images


class _Chain(nn.Module):
    """The encoder, then the decoder."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(images))
        return out


class _ElasticEncoder(_Call):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        own, filtered = self.model.space.analyse(images)
        codebook = elastic_encoder(self.model).codebook
        return codebook.rotated(filtered), codebook.errors(codebook.rotated(own))


class _ElasticDecoder(_Call):
    def forward(self, values: Tensor, bases: Tensor) -> Tensor:
        matrices = elastic_encoder(self.model).codebook.bases
        chosen = (bases.flatten()[:, None] == torch.arange(len(matrices), device=bases.device)).to(values)  # (T, G)
        p = torch.einsum("tg,td,gkd->tk", chosen, values.flatten(0, 2), matrices)
        images: Tensor = self.model.space.render(p, (values.shape[1], values.shape[2]))
        return images


class _Features(_Call):
    def forward(self, images: Tensor) -> Tensor:
        feature_map: Tensor = self.model(images)
        return feature_map


class _Detections(_Call):
    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        height, width = images.shape[2:]
        fractions = sizes / torch.tensor([height, width], dtype=sizes.dtype, device=sizes.device)
        predictions = self.model.head(*self.model.maps(images), fractions)
        scores, labels = predictions.logits[-1].softmax(-1)[..., :-1].max(-1)
        x, y, w, h = predictions.boxes[-1].unbind(-1)
        corners = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1).clamp(0, 1)
        return corners * sizes.flip(1).repeat(1, 2)[:, None], scores, labels


def describe(model: nn.Module) -> Description:
    """The parts of a model. Raises InputError for a model that cannot be exported.

    >>> import finola
    >>> [part.name for part in describe(finola.load("waves/16x1@4:16")).parts]
    ['encoder', 'decoder', 'model']
    """
    if isinstance(model, Autoencoder):
        return _elastic_autoencoder(model) if model.config.elastic else _autoencoder(model)
    if isinstance(model, MaskedFinola):
        size = model.config.image_size
        return Description([_features(model.encoder, size)], {"kind": "encoder", "size": list(size)})
    if isinstance(model, Classifier):
        return _classifier(model)
    if isinstance(model, Detector):
        return _detector(model)
    kinds = "an autoencoder, a masked model, a classifier or a detector"
    raise InputError(f"A {type(model).__name__} cannot be exported; use {kinds}.")


def _photo_axes(tile: tuple[int, int]) -> dict[int, tuple[str, int]]:
    return {0: ("batch", 1), 2: ("rows", tile[0]), 3: ("columns", tile[1])}


GRID_AXES = {0: ("batch", 1), 1: ("rows", 1), 2: ("columns", 1)}


def _autoencoder(model: Autoencoder) -> Description:
    tile = model.config.image_size
    encoder, decoder = _Encoder(model), _Decoder(model)
    images = torch.rand(2, 3, 2 * tile[0], 3 * tile[1])
    with torch.no_grad():
        if isinstance(model.encoder, WaveEncoder):
            model.encoder.prepare_export()
        q = encoder(images)
    facts = {
        "kind": "fixed",
        "tile": list(tile),
        "context": {"encoder": model.space.context, "decoder": model.space.near},
    }
    parts = [
        Part("encoder", encoder, {"images": images}, {"images": _photo_axes(tile)}, ("q",)),
        Part("decoder", decoder, {"q": q}, {"q": GRID_AXES}, ("reconstruction",)),
        Part("model", _Chain(encoder, decoder), {"images": images}, {"images": _photo_axes(tile)}, ("reconstruction",)),
    ]
    return Description(parts, facts)


def _elastic_autoencoder(model: Autoencoder) -> Description:
    tile, codebook = model.config.image_size, elastic_encoder(model).codebook
    images = torch.rand(2, 3, 2 * tile[0], 3 * tile[1])
    values, bases = torch.rand(2, 2, 3, codebook.bases.shape[1]), torch.zeros(2, 2, 3, dtype=torch.int64)
    outputs = ("components", "errors")
    parts = [
        Part("encoder", _ElasticEncoder(model), {"images": images}, {"images": _photo_axes(tile)}, outputs),
        Part(
            "decoder",
            _ElasticDecoder(model),
            {"values": values, "bases": bases},
            {"values": GRID_AXES, "bases": GRID_AXES},
            ("reconstruction",),
        ),
    ]
    facts = {
        "kind": "elastic",
        "tile": list(tile),
        "context": {"encoder": model.space.context, "decoder": model.space.near},
        "lengths": codebook.lengths.tolist(),
        "bases": len(codebook.bases),
    }
    return Description(parts, facts)


def _features(encoder: nn.Module, size: tuple[int, int]) -> Part:
    return Part(
        "encoder",
        _Features(encoder),
        {"images": torch.rand(2, 3, *size)},
        {"images": {0: ("batch", 1)}},
        ("feature_map",),
    )


def _classifier(model: Classifier) -> Description:
    images = torch.rand(2, 3, *model.image_size)
    with torch.no_grad():
        feature_map = model.encoder(images)
    batch = {0: ("batch", 1)}
    parts = [
        _features(model.encoder, model.image_size),
        Part("head", model.head, {"feature_map": feature_map}, {"feature_map": batch}, ("logits",)),
        Part("model", model, {"images": images}, {"images": batch}, ("logits",)),
    ]
    return Description(parts, {"kind": "classifier", "size": list(model.image_size), "classes": model.classes})


STRIDE = 32
"""Sides of the images of a detector are multiples of this number of pixels."""


def _detector(model: Detector) -> Description:
    images = torch.rand(2, 3, 4 * STRIDE, 6 * STRIDE)
    sizes = torch.tensor([[4 * STRIDE, 6 * STRIDE - 8], [4 * STRIDE - 8, 6 * STRIDE]], dtype=torch.float32)
    axes = {"images": {0: ("batch", 1), 2: ("rows", STRIDE), 3: ("columns", STRIDE)}, "sizes": {0: ("batch", 1)}}
    outputs = ("boxes", "scores", "labels")
    part = Part("model", _Detections(model), {"images": images, "sizes": sizes}, axes, outputs)
    facts = {"kind": "detector", "short_side": model.size[0], "max_long_side": model.size[1], "classes": model.classes}
    return Description([part], facts)

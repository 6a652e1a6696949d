"""FINOLA autoencoder: image → encoder → attention pooling → q → propagation → z → decoder → image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finola.checks import check_images, check_values
from finola.config import INITIALISATIONS, ModelConfig, show_size
from finola.decoders import build_decoder
from finola.decoders.conv_ae import build_grower
from finola.encoders import build_encoder
from finola.errors import InputError, UnknownNameError
from finola.latents import CodebookSpace, Space
from finola.layers import build_pool, fold_norms
from finola.propagation import Order, propagate, start_positions
from finola.serialization import Pretrained
from finola.tiling import cut, join
from finola.transitions import DIRECTIONS, Transition, build_transition, check_named, prepared
from finola.wave.initialisation import initialise_matrices, initialise_waves


class Autoencoder(nn.Module, Pretrained, tags=["finola", "image-reconstruction"]):
    """FINOLA model built from its one-line name. Images are (N, 3, H, W) in [0, 1].

    `model.transition` may be replaced by any module called as `transition(z, direction) -> z_next` on tensors whose
    last axis is C. Such a model can be used and trained as usual, but its name no longer describes it, so
    `save_pretrained` raises InputError.

    >>> model = Autoencoder("mf-w720/64x1@8:64")
    >>> q = model.encode(torch.rand(2, 3, 64, 64)); q.shape
    torch.Size([2, 1, 64])
    >>> model.decode(model.propagate(q)).shape
    torch.Size([2, 3, 64, 64])
    """

    model_type = "autoencoder"
    transition: nn.Module
    position: Tensor  # (1, C, H, W)

    def __init__(self, name: str, init: str | None = None) -> None:
        super().__init__()
        if init not in (None, *INITIALISATIONS):
            known = ", ".join(map(repr, INITIALISATIONS))
            raise UnknownNameError(f"Unknown initialisation init={init!r}; use {known} or None.")
        self.config = config = ModelConfig.parse(name)
        self.label = str(config)  # name in titles; `finola.load` sets the name that was given
        starts = start_positions(config.start, config.map_size, config.paths)  # raises if outside the map
        self.checkpointing = False
        grower = build_grower(config)
        if grower is not None:
            self.grower = grower
        else:
            transition = build_transition(config.transition, config.speeds, config.channels)
            self._freeze_unused(transition, starts)
            self.transition = transition
        self.encoder = build_encoder(config.encoder, config.image_size, config)
        self.pool = build_pool(self.encoder, config, config.image_size)
        self.decoder = build_decoder(config)
        if config.position:
            embedding = position_embedding(config.channels, config.map_size)[None]
            self.register_buffer("position", embedding.contiguous(memory_format=torch.channels_last), persistent=False)
        if config.is_waves or init == "waves":
            initialise_waves(self)
        elif init == "wave-matrices":
            initialise_matrices(self)
        if config.is_exact:  # the matrices are not stored: they follow from the waves
            self.register_load_state_dict_post_hook(_set_waves)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Device of the weights, on which images must be."""
        return next(self.parameters()).device

    def _freeze_unused(self, transition: Transition, starts: list[tuple[int, int]]) -> None:
        """Freeze parameters of unused directions, such as left and up when starting at the top-left corner."""
        height, width = self.config.map_size
        rows, columns = [y for y, _ in starts], [x for _, x in starts]
        used = {"right": min(columns) < width - 1, "left": max(columns) > 0}
        used |= {"down": min(rows) < height - 1, "up": max(rows) > 0}
        for direction in DIRECTIONS:
            if not used[direction]:
                for parameter in transition.parameters_of(direction):
                    parameter.requires_grad_(False)

    @property
    def space(self) -> Space:
        """Space of the latents of photos, which `finola.encode` and `finola.decode` use."""
        return CodebookSpace(self) if self.config.elastic else Space(self)

    def encode(self, images: Tensor) -> Tensor:
        """Encode images of the model's image size to q (N, M, C)."""
        self._check_images(images)
        if tuple(images.shape[-2:]) != self.config.image_size:
            raise InputError(
                f"{self.config} encodes images of size {show_size(self.config.image_size)}, got "
                f"{show_size((images.shape[-2], images.shape[-1]))}. Use finola.encode(model, photo) for other sizes."
            )
        q: Tensor = self.pool(self.encoder(images))
        return q

    def propagate(self, q: Tensor, order: Order = "mean") -> Tensor:
        """Propagate q (N, M, C) to z (N, C, H, W) and add the position embedding if the model has one."""
        config = self.config
        expected = (config.paths, config.channels)
        if q.ndim == 3 and tuple(q.shape[1:]) != expected:
            raise InputError(
                f"q has {q.shape[1]} x {q.shape[2]} (paths x channels), but {config} needs "
                f"{expected[0]} x {expected[1]}."
            )
        if "transition" not in self._modules:  # Conv-AE and other controls
            grown: Tensor = self.grower(q)
            return grown
        step = prepared(self.transition)
        z = propagate(q, step, config.map_size, config.start, order=order, checkpointing=self.checkpointing)
        if config.position:
            z = z + self.position
        return z

    def decode(self, z: Tensor) -> Tensor:
        """Decode z (N, C, H, W), the map of one tile or the joined maps of several, to images."""
        images: Tensor = self.decoder(z)
        return images

    def forward(self, images: Tensor) -> Tensor:
        """Reconstruct images: `decode(propagate(encode(images)))`, with gradients.

        Images of another size than the model's are cut into tiles, each with a q of its own, and the maps of all tiles
        are joined before decoding. For photos, `finola.encode` and `finola.decode` bound the memory, and elastic models
        have a budget there; here every tile has all its latents.
        """
        self._check_images(images)
        height, width = images.shape[-2:]
        if (height, width) == self.config.image_size:
            return self.decode(self.propagate(self.encode(images)))
        tiles, grid = cut(images, self.config.image_size)
        return self.decode(join(self.propagate(self.encode(tiles)), grid))[..., :height, :width]

    def check_saveable(self) -> None:
        config = self.config
        check_named(self._modules.get("transition"), config.transition, config.speeds, config.channels)

    def _check_images(self, images: Tensor) -> None:
        check_images(images)
        check_values(images, training=self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing, which recomputes activations in the backward pass to save memory."""
        self.checkpointing = enable
        if hasattr(self.encoder, "set_grad_checkpointing"):
            self.encoder.set_grad_checkpointing(enable)  # type: ignore[operator]

    def for_inference(self) -> Autoencoder:
        """Return a faster copy for inference: evaluation mode, batch norms folded, channels-last weights.

        >>> model = Autoencoder("mf-w720/64x1@8:64").eval()
        >>> images = torch.rand(1, 3, 64, 64)
        >>> torch.allclose(model.for_inference()(images), model(images), atol=1e-4)
        True
        """
        return fold_norms(self)


def _set_waves(model: nn.Module, _: object) -> None:
    assert isinstance(model, Autoencoder)
    initialise_waves(model)


def position_embedding(channels: int, size: tuple[int, int]) -> Tensor:
    """Fixed sinusoidal position embedding (C, H, W): the first half of the channels encodes y, the second half x.

    >>> position_embedding(6, (4, 5)).shape
    torch.Size([6, 4, 5])
    """
    half = channels - channels // 2
    rows = _sinusoids(torch.arange(size[0]), half)[:, :, None].expand(-1, -1, size[1])
    columns = _sinusoids(torch.arange(size[1]), half)[:, None, :].expand(-1, size[0], -1)
    return torch.cat([rows, columns[: channels // 2]])


def _sinusoids(position: Tensor, channels: int) -> Tensor:
    frequency = 10_000 ** (-torch.arange(0, channels, 2) / max(channels, 1))
    angle = frequency[:, None] * position[None, :]  # (ceil(channels / 2), L)
    return torch.cat([angle.sin(), angle.cos()])[:channels]

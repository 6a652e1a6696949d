"""Masked FINOLA (§5, appendix B): encode one unmasked quadrant and predict the rest by propagation.

The map z has h × w positions, 1/16 of the image's resolution. One block of h/2 × w/2 positions is unmasked, and only
its pixels are encoded. Its place is the map position (y, x) of its top-left corner, y in 0 … h/2 and x in 0 … w/2.

- Element-wise (E): the block is pooled to one q at the block's centre, from which the whole map is propagated.
- Block-wise (B): without pooling, each visible position is propagated by half the map horizontally, vertically and
  both, which predicts three masked positions. Positions in the left half are propagated to the right, others to the
  left; those in the upper half down, others up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from finola.checks import check_values
from finola.config import ModelConfig, show_size
from finola.decoders import build_decoder
from finola.encoders import build_encoder
from finola.errors import InputError, UnknownNameError
from finola.layers import build_pool
from finola.propagation import Direction, Position, Step, propagate
from finola.serialization import Pretrained
from finola.transitions import build_transition, check_named, prepared

VARIANTS = ("e", "b")


class Prediction(NamedTuple):
    """Reconstructed images and the mask of the pixels that were not encoded."""

    images: Tensor  # (N, 3, H, W)
    masked: Tensor  # (N, 1, H, W), bool


class MaskedFinola(nn.Module, Pretrained, tags=["finola", "masked-image-modelling"]):
    """Masked FINOLA model by name: encoder, channels and decoder as in `Autoencoder`; `variant` is "e" or "b".

    >>> model = MaskedFinola("mf-w720/32x1@4:64+patch", "b")
    >>> places = random_places(2, model.map_size)
    >>> model(torch.rand(2, 3, 64, 64), places).images.shape
    torch.Size([2, 3, 64, 64])
    """

    model_type = "masked"

    def __init__(self, name: str, variant: str = "b", *, one_jump: bool = False) -> None:
        super().__init__()
        self.config = config = ModelConfig.parse(name)
        if variant not in VARIANTS:
            raise UnknownNameError(f"Unknown variant {variant!r}; use {' or '.join(VARIANTS)}.")
        if config.returns_q or config.paths != 1:
            raise InputError(f"{name}: masked FINOLA needs one path and an encoder with a feature map.")
        if config.start != "center" or config.position:
            raise InputError(
                f"{name}: masked FINOLA has neither a start position nor a position embedding. Remove those options."
            )
        if config.flat and variant == "b":
            raise InputError(f"{name}: block-wise masked FINOLA does not pool. Remove +flat.")
        if variant == "e" and config.transition == "batch-norm":
            raise InputError(
                f"{name}: variant e propagates each image from its own start, so batch norm has no lines of the whole "
                "batch. Use variant b or remove +batchnorm."
            )
        self.variant, self.one_jump = variant, one_jump
        self.encoder = build_encoder(config.encoder, half(config.image_size))
        channels, reduction = int(self.encoder.channels), int(self.encoder.reduction)  # type: ignore[arg-type]
        if config.cell != (reduction, reduction) or any(side % 2 for side in config.map_size):
            side = 2 * reduction
            raise InputError(
                f"{name}: masked FINOLA needs a map of 1/{reduction} of the image size and image sides that are "
                f"multiples of {side}."
            )
        pooled = variant == "e"
        self.pool: nn.Module = build_pool(self.encoder, config, half(config.image_size)) if pooled else nn.Identity()
        same_width = pooled or channels == config.channels
        self.embed: nn.Module = nn.Identity() if same_width else nn.Linear(channels, config.channels)
        self.transition: nn.Module = build_transition(config.transition, config.speeds, config.channels)
        self.decoder = build_decoder(config)

    def check_saveable(self) -> None:
        check_named(self.transition, self.config.transition, self.config.speeds, self.config.channels)

    @property
    def map_size(self) -> Position:
        return self.config.map_size

    def forward(self, images: Tensor, places: Tensor) -> Prediction:
        """Reconstruct images (N, 3, H, W) from the blocks at `places` (N, 2).

        `places` stay on the CPU, where they are drawn: on another device, variant B has to wait for their values.
        """
        check_values(images, training=self.training)  # the whole image, since the visible block may be dark
        if tuple(images.shape[-2:]) != self.config.image_size:
            given = show_size((images.shape[-2], images.shape[-1]))
            raise InputError(f"{self.config} needs images of {show_size(self.config.image_size)}, got {given}.")
        z = self.grow(self.see(images, places), places)
        return Prediction(self.decoder(z), self.masked_pixels(places.to(images.device, non_blocking=True)))

    def see(self, images: Tensor, places: Tensor) -> Tensor:
        """Encode the block of each image to (N, channels, h/2, w/2). Pixels outside the block are not used."""
        corners = places * places.new_tensor(self.config.cell)
        blocks = windows(images, corners.to(images.device, non_blocking=True), half(self.config.image_size))
        seen: Tensor = self.encoder(blocks)
        return seen

    def grow(self, seen: Tensor, places: Tensor) -> Tensor:
        """Propagate the encoded blocks to the whole map z (N, C, h, w)."""
        step = prepared(self.transition)
        if self.variant == "e":
            return grow_from_centres(self.pool(seen), step, self.map_size, places)
        tokens = self.embed(seen.flatten(2).transpose(1, 2))  # (N, h/2·w/2, C)
        steps = (1, 1) if self.one_jump else half(self.map_size)
        return grow_from_block(tokens, step, self.map_size, places, steps)

    def masked_pixels(self, places: Tensor) -> Tensor:
        """Mask (N, 1, H, W) of the pixels that the loss is computed on."""
        masked = ~visible(places, self.map_size)
        return masked[:, None].repeat_interleave(self.config.cell[0], 2).repeat_interleave(self.config.cell[1], 3)


def masked_loss(prediction: Prediction, images: Tensor) -> Tensor:
    """Mean squared error over the masked pixels."""
    squares = (prediction.images - images).square() * prediction.masked  # faster than indexing by the mask
    return squares.sum() / (images.shape[1] * prediction.masked.sum())


def half(size: Position) -> Position:
    return size[0] // 2, size[1] // 2


def random_places(count: int, map_size: Position, generator: torch.Generator | None = None) -> Tensor:
    """Draw the place of one block per image uniformly: (count, 2)."""
    height, width = half(map_size)
    y = torch.randint(height + 1, (count,), generator=generator)
    x = torch.randint(width + 1, (count,), generator=generator)
    return torch.stack([y, x], 1)


def visible(places: Tensor, map_size: Position) -> Tensor:
    """Mask of the positions covered by the blocks: (N, h, w), bool."""
    (height, width), (tall, wide) = map_size, half(map_size)
    y, x = torch.arange(height, device=places.device), torch.arange(width, device=places.device)
    top, left = places[:, :1], places[:, 1:]
    inside_y, inside_x = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
    return inside_y[:, :, None] & inside_x[:, None, :]


def positions(places: Tensor, map_size: Position) -> tuple[Tensor, Tensor]:
    """Coordinates y and x of the visible positions in row-major order: (N, h/2·w/2) each."""
    tall, wide = half(map_size)
    rows, columns = torch.arange(tall, device=places.device), torch.arange(wide, device=places.device)
    y = places[:, :1, None] + rows[None, :, None] + 0 * columns
    x = places[:, 1:, None] + columns + 0 * rows[None, :, None]
    return y.flatten(1), x.flatten(1)


def windows(maps: Tensor, corners: Tensor, size: Position) -> Tensor:
    """Crop a window of `size` from each map (N, C, H, W); `corners` (N, 2) are the top-left positions (y, x)."""
    device = maps.device
    image = torch.arange(len(maps), device=device)[:, None, None]
    rows = corners[:, :1, None] + torch.arange(size[0], device=device)[:, None]  # (N, h, 1)
    columns = corners[:, 1:, None] + torch.arange(size[1], device=device)  # (N, 1, w)
    return maps.permute(0, 2, 3, 1)[image, rows, columns].permute(0, 3, 1, 2)


def grow_from_centres(q: Tensor, step: Step, map_size: Position, places: Tensor) -> Tensor:
    """Variant E: propagate q (N, 1, C) from the centres of the blocks to (N, C, h, w)."""
    return propagate(q, step, map_size, places + places.new_tensor(half(half(map_size))))


def grow_from_block(tokens: Tensor, step: Step, map_size: Position, places: Tensor, steps: Position) -> Tensor:
    """Variant B: propagate the visible tokens (N, h/2·w/2, C) to (N, C, h, w); each predicts three masked positions.

    The diagonal position is the mean of both orders, as in propagation.
    """
    n, _, channels = tokens.shape
    (height, width), (tall, wide) = map_size, half(map_size)
    y, x = (axis.flatten() for axis in positions(places, map_size))
    # A block at (top, left) has h/2 − top rows in the upper half of the map and w/2 − left columns in the left half.
    lower, right = (sum(axis) for axis in zip(*places.tolist(), strict=True))
    along_x = _Walk(step, ("right", "left"), x < wide, tall * (n * wide - right), steps[1])
    along_y = _Walk(step, ("down", "up"), y < tall, wide * (n * tall - lower), steps[0])
    z = tokens.flatten(0, 1)  # (N·h/2·w/2, C)
    across, down = along_x(z), along_y(z)
    diagonal = 0.5 * (along_y(across) + along_x(down))
    image = torch.arange(n, device=places.device).repeat_interleave(tall * wide)
    there_y, there_x = (y + tall) % height, (x + wide) % width  # the same position for both signs of the offset
    at = [(image * height + rows) * width + columns for rows in (y, there_y) for columns in (x, there_x)]
    order = torch.cat(at).argsort().to(tokens.device, non_blocking=True)
    return torch.cat([z, across, down, diagonal])[order].view(n, height, width, channels).permute(0, 3, 1, 2)


class _Walk:
    """Apply `steps` steps to tokens (T, C), in direction `ways[0]` where `ahead` (T,) is true, else `ways[1]`.

    `count` tokens are ahead. It is given because the device would have to be waited for to read it.
    """

    def __init__(self, step: Step, ways: tuple[Direction, Direction], ahead: Tensor, count: int, steps: int) -> None:
        self.step, self.ways, self.steps = step, ways, steps
        self.sizes = [count, len(ahead) - count]
        self.order = ahead.argsort(descending=True, stable=True)
        self.back = self.order.argsort()

    def __call__(self, z: Tensor) -> Tensor:
        order, back = (index.to(z.device, non_blocking=True) for index in (self.order, self.back))
        moved = []
        for way, own in zip(self.ways, z[order].split(self.sizes), strict=True):
            for _ in range(self.steps if len(own) else 0):
                own = self.step(own, way)
            moved.append(own)
        return torch.cat(moved)[back]

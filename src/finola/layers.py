"""Pooling of a feature map to q (appendix A.2), residual blocks, batch norms folded for inference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from finola.config import ModelConfig
from finola.kernels.stepwise import transformed

Module = TypeVar("Module", bound=nn.Module)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
MEAN, STD = 0.45, 0.25  # of the pixels of photos, about; inputs and outputs of residual networks are scaled by them


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Context in which operations on `device` run in the precision of their inputs."""
    return torch.autocast(device.type, enabled=False) if autocast_enabled(device) else nullcontext()


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is enabled for `device`; False for devices without it, such as meta."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def hard_sigmoid(x: Tensor) -> Tensor:
    """`F.hardsigmoid` with second derivatives, which PyTorch's does not have."""
    return F.relu6(x + 3) / 6


def channels_last(images: Tensor) -> Tensor:
    """Images in channels-last memory, except under function transforms, which have no memory formats."""
    return images if transformed(images) else images.contiguous(memory_format=torch.channels_last)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention, by a kernel that function transforms can differentiate if one is active."""
    with differentiable_attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout)


def differentiable_attention(*tensors: Tensor) -> AbstractContextManager[object]:
    """Context in which attention supports function transforms and forward-mode derivatives of `tensors`."""
    if not transformed(*tensors):
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: AbstractContextManager[object] = sdpa_kernel(SDPBackend.MATH)
    return context


def at_least_float32(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Change of a tensor, for `nn.Module._apply`, that keeps float32 where the result would have a lower precision."""

    def precise(tensor: Tensor) -> Tensor:
        result = change(tensor)
        low = result.is_floating_point() and torch.finfo(result.dtype).bits < 32
        return tensor.to(result.device, torch.float32) if low else result

    return precise


class AttentionPool(nn.Module):
    """Multi-head attention layer with M learnable queries and the feature map as keys and values.

    >>> AttentionPool(in_channels=24, channels=16, paths=4)(torch.randn(2, 24, 8, 8)).shape
    torch.Size([2, 4, 16])
    """

    def __init__(self, in_channels: int, channels: int, paths: int = 1) -> None:
        super().__init__()
        heads = next(h for h in (8, 4, 2, 1) if channels % h == 0)
        self.queries = nn.Parameter(torch.empty(paths, channels))
        self.attention = nn.MultiheadAttention(channels, heads, kdim=in_channels, vdim=in_channels, batch_first=True)
        nn.init.normal_(self.queries, std=0.02)

    def forward(self, feature_map: Tensor) -> Tensor:
        tokens = feature_map.flatten(2).transpose(1, 2)  # (N, H·W, in_channels)
        queries = self.queries.expand(tokens.shape[0], -1, -1)  # (N, M, C)
        # The explicit weights, which are few, have derivatives of any order.
        q: Tensor = self.attention(queries, tokens, tokens, average_attn_weights=False)[0]
        return q


class FlatPool(nn.Module):
    """Linear layer from a whole feature map of fixed size to q. In small models it learns faster than attention.

    >>> FlatPool(24, (8, 8), channels=16, paths=4)(torch.randn(2, 24, 8, 8)).shape
    torch.Size([2, 4, 16])
    """

    def __init__(self, in_channels: int, map_size: tuple[int, int], channels: int, paths: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels * map_size[0] * map_size[1], paths * channels)
        self.paths = paths

    def forward(self, feature_map: Tensor) -> Tensor:
        q: Tensor = self.linear(feature_map.flatten(1)).unflatten(1, (self.paths, -1))
        return q


def build_pool(encoder: nn.Module, config: ModelConfig, image_size: tuple[int, int]) -> nn.Module:
    """Pooling of the map of `encoder` for images of `image_size`, or the identity if the encoder computes q itself."""
    if config.returns_q:
        return nn.Identity()
    channels, reduction = int(encoder.channels), int(encoder.reduction)  # type: ignore[arg-type]
    if config.flat:
        map_size = -(-image_size[0] // reduction), -(-image_size[1] // reduction)
        return FlatPool(channels, map_size, config.channels, config.paths)
    return AttentionPool(channels, config.channels, config.paths)


class ResidualBlock(nn.Module):
    """x + conv(gelu(conv(norm(x)))) with 3×3 convolutions, the identity before training.

    The layer norm is over the channels of each position, so that the output does not depend on the size of the map.

    >>> x = torch.randn(1, 8, 5, 6)
    >>> torch.equal(ResidualBlock(8)(x), x)
    True
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        change: Tensor = self.last(F.gelu(self.first(normed)))
        return x + change


def fold_norms(module: Module) -> Module:
    """Return a copy in evaluation mode with each batch norm folded into its convolution and channels-last weights.

    The output is the same up to rounding. The copy cannot be trained, or saved under the name of the original model.

    >>> net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)), nn.ReLU())
    >>> folded = fold_norms(net)
    >>> [type(layer).__name__ for layer in folded[0]]
    ['Conv2d', 'Identity']
    """
    folded = copy.deepcopy(module).eval()
    for pair in folded.modules():
        if isinstance(pair, nn.Sequential) and [type(layer) for layer in pair] == [nn.Conv2d, nn.BatchNorm2d]:
            pair[0], pair[1] = fuse_conv_bn_eval(pair[0], pair[1]), nn.Identity()  # type: ignore[arg-type, type-var]
    return folded.requires_grad_(False).to(memory_format=torch.channels_last)

"""Attention pooling of the encoder's feature map to the M initial conditions q (appendix A.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        nn.init.trunc_normal_(self.queries, std=0.02)

    def forward(self, feature_map: Tensor) -> Tensor:
        tokens = feature_map.flatten(2).transpose(1, 2)  # (N, H·W, in_channels)
        queries = self.queries.expand(tokens.shape[0], -1, -1)  # (N, M, C)
        q: Tensor = self.attention(queries, tokens, tokens, need_weights=False)[0]
        return q


def build_pool(encoder: nn.Module, channels: int, paths: int) -> nn.Module:
    """Attention pooling of the feature map of `encoder`, or the identity if the encoder computes q itself."""
    if getattr(encoder, "returns_q", False):
        return nn.Identity()
    return AttentionPool(int(encoder.channels), channels, paths)  # type: ignore[arg-type]

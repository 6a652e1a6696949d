"""Mobile-Former decoder for DETR, Table 19 (table:appendix:od-mf-dec-achs): 100 queries over maps at 1/32 … 1/8.

The table does not specify all details; these choices reproduce the paper's parameter counts. All attention layers have
four projections and eight heads, the FFN has width 1024, and Mobile→Former has a gate. Sine position embeddings and the
query embeddings are added to the queries and keys of the attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.encoders.mobile_former import DyReLU, conv_bn
from finola.errors import UnknownNameError
from finola.layers import attention, hard_sigmoid

QUERIES, WIDTH = 100, 256
DECODERS = {"mf-dec-522": (5, 2, 2), "mf-dec-211": (2, 1, 1)}
"""Blocks at 1/32 (M-F⁺), 1/16 and 1/8 (M-F⁻)."""


class Predictions(NamedTuple):
    """Predictions of L blocks for N images and Q queries; in evaluation mode only of the last block."""

    logits: Tensor  # (L, N, Q, classes + 1), the last class is "no object"
    boxes: Tensor  # (L, N, Q, 4) as centre x, centre y, width, height, as fractions of the image without padding


class Attention(nn.Module):
    """Softmax attention with four projections; `gate` scales the values before the output projection."""

    def __init__(self, dropout: float, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.project = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, inside: Tensor | None = None, gate: Tensor | None = None
    ) -> Tensor:
        """Attend from (N, L, 256) to keys and values (N, S, 256); `inside` (N, S) is false for padding."""
        parts = ((self.query, query), (self.key, key), (self.value, value))
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, x in parts)
        mask = None if inside is None else inside[:, None, None]
        gathered = attention(q, k, v, mask, self.dropout if self.training else 0.0)
        gathered = gathered.transpose(1, 2).flatten(-2)
        projected: Tensor = self.project(gathered if gate is None else gate * gathered)
        return projected


class FeedForward(nn.Module):
    """Post-norm residual FFN of width 1024."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Dropout(dropout), nn.Linear(1024, WIDTH), nn.Dropout(dropout)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x + self.layers(x))
        return normed


class SelfAttention(nn.Module):
    """Post-norm transformer block: Former on the queries, and Mobile of M-F⁺ on the positions of the map."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dropout)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(WIDTH)
        self.ffn = FeedForward(dropout)

    def forward(self, x: Tensor, position: Tensor, inside: Tensor | None = None) -> Tensor:
        query = x + position
        updated: Tensor = self.ffn(self.norm(x + self.dropout(self.attention(query, query, x, inside))))
        return updated


class MobileToFormer(nn.Module):
    """Gated cross-attention from the queries to the map."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dropout)
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(
        self, tokens: Tensor, queries: Tensor, pixels: Tensor, position: Tensor, inside: Tensor | None
    ) -> Tensor:
        gate = 2 * hard_sigmoid(self.gate(tokens))
        update = self.attention(tokens + queries, pixels + position, pixels, inside, gate)
        normed: Tensor = self.norm(tokens + self.dropout(update))
        return normed


class LiteBottlenecks(nn.Module):
    """Mobile in M-F⁻: two lite bottlenecks of expansion 2, with DyReLU slopes computed from the mean of all queries."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.ModuleList(conv_bn(WIDTH, 2 * WIDTH, 3, groups=WIDTH) for _ in range(2))
        self.act = nn.ModuleList(DyReLU(2 * WIDTH, WIDTH) for _ in range(2))
        self.project = nn.ModuleList(conv_bn(2 * WIDTH, WIDTH, 1) for _ in range(2))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        mean = tokens.mean(1, keepdim=True)
        for depthwise, act, project in zip(self.depthwise, self.act, self.project, strict=True):
            x = x + project(act(depthwise(x), mean))
        return x


class DecoderBlock(nn.Module):
    """Block M-F⁺ (`kind` "+"), M-F⁻ ("-"), or the last one ("last"), which does not update the map."""

    def __init__(self, kind: str, dropout: float) -> None:
        super().__init__()
        self.kind = kind
        self.mobile_to_former = MobileToFormer(dropout)
        self.former = SelfAttention(dropout)
        if kind != "last":
            self.mobile = SelfAttention(dropout) if kind == "+" else LiteBottlenecks()
            self.former_to_mobile = Attention(dropout)

    def forward(
        self, x: Tensor, tokens: Tensor, queries: Tensor, position: Tensor, inside: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        pixels = x.flatten(2).transpose(1, 2)  # (N, HW, 256)
        tokens = self.mobile_to_former(tokens, queries, pixels, position, inside)
        tokens = self.former(tokens, queries)
        if self.kind == "last":
            return x, tokens
        if self.kind == "+":
            pixels = self.mobile(pixels, position, inside)
        else:
            pixels = self.mobile(x, tokens).flatten(2).transpose(1, 2)
        pixels = pixels + self.former_to_mobile(pixels + position, tokens + queries, tokens)
        return pixels.transpose(1, 2).reshape_as(x), tokens


class UpConv(nn.Module):
    """Bilinear upsampling to the finer map, depthwise 3×3 and pointwise convolution, plus a lateral connection."""

    def __init__(self, lateral_channels: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(conv_bn(WIDTH, WIDTH, 3, groups=WIDTH), conv_bn(WIDTH, WIDTH, 1))
        self.lateral = conv_bn(lateral_channels, WIDTH, 1)

    def forward(self, x: Tensor, finer: Tensor) -> Tensor:
        x = F.interpolate(x, size=finer.shape[-2:], mode="bilinear", align_corners=False)
        raised: Tensor = self.conv(x) + self.lateral(finer)
        return raised


class MobileFormerDecoder(nn.Module):
    """MF-Dec-522 or MF-Dec-211 on the feature maps of an encoder at 1/8 and 1/16.

    >>> decoder = MobileFormerDecoder("mf-dec-211", (48, 720), classes=3)
    >>> decoder(torch.rand(2, 48, 8, 12), torch.rand(2, 720, 4, 6)).logits.shape
    torch.Size([4, 2, 100, 4])
    """

    def __init__(self, name: str, channels: tuple[int, int], classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        if name not in DECODERS:
            raise UnknownNameError(f"Unknown detection head {name!r}; use {' or '.join(DECODERS)}.")
        coarse, middle, fine = DECODERS[name]
        eighth, sixteenth = channels
        self.queries = nn.Parameter(torch.empty(QUERIES, WIDTH))
        self.down = nn.Sequential(
            conv_bn(sixteenth, sixteenth, 3, stride=2, groups=sixteenth), conv_bn(sixteenth, WIDTH, 1)
        )
        self.up = nn.ModuleList([UpConv(sixteenth), UpConv(eighth)])
        kinds = [["+"] * coarse, ["-"] * middle, ["-"] * (fine - 1) + ["last"]]
        self.blocks = nn.ModuleList(nn.ModuleList(DecoderBlock(kind, dropout) for kind in stage) for stage in kinds)
        self.classify = nn.Linear(WIDTH, classes + 1)
        self.locate = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.queries)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="linear")
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, eighth: Tensor, sixteenth: Tensor, shares: Tensor | None = None) -> Predictions:
        """Predict from maps (N, C, H/8, W/8) and (N, C, H/16, W/16); fractions `shares` (N, 2) are not padding."""
        queries = self.queries.expand(sixteenth.shape[0], -1, -1)
        tokens, outputs = queries, []
        x = self.down(sixteenth)
        for stage, blocks in enumerate(self.blocks):
            if stage:
                x = self.up[stage - 1](x, (sixteenth, eighth)[stage - 1])
            position, inside = sine_positions(x, shares)
            for block in blocks:  # type: ignore[attr-defined]
                x, tokens = block(x, tokens, queries, position, inside)
                outputs.append(tokens)
        tokens = torch.stack(outputs if self.training else outputs[-1:])  # (L, N, Q, 256)
        return Predictions(self.classify(tokens), self.locate(tokens).sigmoid())


def sine_positions(x: Tensor, shares: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Sine position embedding (N, H·W, C) of a map, and the mask (N, H·W) of positions that are not padding.

    Half of the channels encode y, half x; both range from 0 to 2π over the image without padding.
    """
    n, channels, height, width = x.shape
    frequencies = 10000 ** (-torch.arange(channels // 4, device=x.device) / (channels // 4))
    encoded, inside = [], []
    for axis, length in enumerate((height, width)):
        share = torch.ones(n, 1, device=x.device) if shares is None else shares[:, axis, None]
        cells = torch.arange(length, device=x.device) / length  # left or top edge of each cell
        inside.append(cells < share)  # (N, length)
        angles = 2 * torch.pi * ((cells + 0.5 / length) / share)[..., None] * frequencies
        encoded.append(torch.cat([angles.sin(), angles.cos()], -1))  # (N, length, C/2)
    y, x_ = encoded[0][:, :, None].expand(-1, -1, width, -1), encoded[1][:, None].expand(-1, height, -1, -1)
    position = torch.cat([y, x_], -1).flatten(1, 2).to(x.dtype)
    return position, None if shares is None else (inside[0][:, :, None] & inside[1][:, None]).flatten(1)

"""Mobile-Former encoders W720 … W5760: a mobile CNN and six global tokens in parallel, Table 11
(table:appendix:mf-enc-achs).

At 1333×800, `with_tokens` of W720, W1440 and W2880 needs 5.51, 20.24 and 77.43 G multiply–adds, including attention
products (5.6, 20.4 and 77.5 G in the paper).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from finola.checks import check_size, check_values
from finola.errors import UnknownNameError
from finola.layers import BATCH_NORMS, attention, channels_last, hard_sigmoid


@dataclass(frozen=True)
class MobileFormerSpec:
    """One column of the table: per stage, rows (#exp, #out). Stage 1 is bneck-lite, the others M-F↓ followed by M-F."""

    token_dim: int
    stem: int
    channels: int
    stages: tuple[tuple[tuple[int, int], ...], ...]
    last_mobile_to_former: bool = True


_W720 = MobileFormerSpec(
    token_dim=192,
    stem=16,
    channels=720,
    stages=(
        ((32, 16),),
        ((96, 28), (84, 28)),
        ((168, 48), (144, 48), (144, 48)),
        ((240, 80), (320, 88), (480, 88), (528, 120), (720, 120), (720, 120)),
    ),
)
_W2880 = MobileFormerSpec(
    token_dim=256,
    stem=64,
    channels=2880,
    stages=(
        ((128, 64),),
        ((384, 112), (336, 112)),
        ((672, 192), (576, 192), (576, 192)),
        ((1152, 352), (1408, 352), (1408, 352), (2112, 480), (2880, 480), (2880, 480)),
    ),
)


def _scaled(spec: MobileFormerSpec, factor: float, **changes: Any) -> MobileFormerSpec:
    stages = tuple(tuple((int(exp * factor), int(out * factor)) for exp, out in rows) for rows in spec.stages)
    return replace(spec, stem=int(spec.stem * factor), stages=stages, **changes)


# W1440 has half the widths of W2880 in every row. The paper prints 288/96 in the first row of stage 4; 576/176 is used,
# because it matches the printed parameters and multiply–adds. The paper specifies W4320 and W5760 only as W2880 × 1.5
# and × 2. Keeping the last 1×1 convolution at 2880 and omitting the last Mobile→Former is inferred from their sizes.
SPECS = {
    "mf-w720": _W720,
    "mf-w1440": _scaled(_W2880, 0.5, channels=1440),
    "mf-w2880": _W2880,
    "mf-w4320": _scaled(_W2880, 1.5, last_mobile_to_former=False),
    "mf-w5760": _scaled(_W2880, 2.0, last_mobile_to_former=False),
}


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def _attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Softmax attention with scale (C/heads)^-½ on projected sequences (N, L, C)."""
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    return attention(query, key, value).transpose(1, 2).flatten(-2)


class MobileToFormer(nn.Module):
    """Cross-attention from tokens to the feature map, with the unprojected map as keys and values."""

    def __init__(self, channels: int, token_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(token_dim, channels)
        self.gate = nn.Linear(token_dim, channels)
        self.project = nn.Linear(channels, token_dim)
        self.norm = nn.LayerNorm(token_dim)

    def forward(self, feature_map: Tensor, tokens: Tensor) -> Tensor:
        pixels = feature_map.flatten(2).transpose(1, 2)  # (N, HW, C)
        update = _attention(self.query(tokens), pixels, pixels, heads=2)  # (N, T, C)
        tokens = self.norm(tokens + self.project(2 * hard_sigmoid(self.gate(tokens)) * update))
        return tokens


class Former(nn.Module):
    """Post-norm transformer block on the tokens, with the unprojected tokens as keys and values."""

    def __init__(self, token_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(token_dim, token_dim)
        self.project = nn.Linear(token_dim, token_dim)
        self.norm = nn.LayerNorm(token_dim)
        self.ffn = nn.Sequential(nn.Linear(token_dim, 2 * token_dim), nn.GELU(), nn.Linear(2 * token_dim, token_dim))
        self.ffn_norm = nn.LayerNorm(token_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.norm(tokens + self.project(_attention(self.query(tokens), tokens, tokens, heads=4)))
        tokens = self.ffn_norm(tokens + self.ffn(tokens))
        return tokens


class FormerToMobile(nn.Module):
    """Cross-attention from the feature map to the tokens, with the unprojected map as queries."""

    def __init__(self, channels: int, token_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(token_dim, channels)
        self.value = nn.Linear(token_dim, channels)

    def forward(self, feature_map: Tensor, tokens: Tensor) -> Tensor:
        update = _attention(feature_map.flatten(2).transpose(1, 2), self.key(tokens), self.value(tokens), heads=2)
        return feature_map + update.transpose(1, 2).reshape_as(feature_map)


class DyReLU(nn.Module):
    """Dynamic ReLU, max(a₁x, a₂x), with slopes per image and channel computed from the first token."""

    def __init__(self, channels: int, token_dim: int) -> None:
        super().__init__()
        self.slopes = nn.Sequential(
            nn.Linear(token_dim, token_dim // 4), nn.ReLU(), nn.Linear(token_dim // 4, 2 * channels)
        )

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        a = 2 * (hard_sigmoid(self.slopes(tokens[:, 0])) - 0.5)  # (N, 2C) in [-1, 1]
        a1, a2 = a[..., None, None].chunk(2, dim=1)
        # max(sx, tx) = (s + t)/2 · x + |s − t|/2 · |x|, whose backward pass stores no masks
        return torch.addcmul((a1 + 1 + a2) / 2 * x, (a1 + 1 - a2).abs() / 2, x.abs())


class BottleneckLite(nn.Module):
    """bneck-lite: depthwise and pointwise convolution; the tokens are returned unchanged."""

    def __init__(self, inputs: int, exp: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(conv_bn(inputs, exp, 3, groups=inputs), nn.ReLU6(), conv_bn(exp, out, 1))
        self.identity = inputs == out

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return (x + self.conv(x) if self.identity else self.conv(x)), tokens


class InvertedBottleneck(nn.Module):
    """Mobile in M-F: expansion, depthwise 3×3, projection; residual connection only if in = out."""

    def __init__(self, inputs: int, exp: int, out: int, token_dim: int) -> None:
        super().__init__()
        self.expand, self.expand_act = conv_bn(inputs, exp, 1), DyReLU(exp, token_dim)
        self.depthwise, self.depthwise_act = conv_bn(exp, exp, 3, groups=exp), DyReLU(exp, token_dim)
        self.project = conv_bn(exp, out, 1)
        self.identity = inputs == out

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        y: Tensor = self.expand_act(self.expand(x), tokens)
        y = self.project(self.depthwise_act(self.depthwise(y), tokens))
        return x + y if self.identity else y


class DownBottleneck(nn.Module):
    """Mobile in M-F↓: two lite bottlenecks, the first with stride 2, the second with a residual connection."""

    def __init__(self, inputs: int, exp: int, out: int, token_dim: int) -> None:
        super().__init__()
        self.down, self.down_act = conv_bn(inputs, exp, 3, stride=2, groups=inputs), DyReLU(exp, token_dim)
        self.down_project = conv_bn(exp, out, 1)
        self.depthwise, self.depthwise_act = conv_bn(out, 4 * out, 3, groups=out), DyReLU(4 * out, token_dim)
        self.project = conv_bn(4 * out, out, 1)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        x = self.down_project(self.down_act(self.down(x), tokens))
        y: Tensor = self.project(self.depthwise_act(self.depthwise(x), tokens))
        return x + y


class MobileFormerBlock(nn.Module):
    """M-F and M-F↓ block, in which Mobile uses the tokens updated by Former."""

    def __init__(self, inputs: int, exp: int, out: int, token_dim: int, down: bool) -> None:
        super().__init__()
        self.mobile_to_former = MobileToFormer(inputs, token_dim)
        self.former = Former(token_dim)
        self.mobile = (DownBottleneck if down else InvertedBottleneck)(inputs, exp, out, token_dim)
        self.former_to_mobile = FormerToMobile(out, token_dim)

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.former(self.mobile_to_former(x, tokens))
        return self.former_to_mobile(self.mobile(x, tokens), tokens), tokens


@contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Disable updates of running statistics while a block is recomputed, so that a batch is not counted twice."""
    norms = [module for module in block.modules() if isinstance(module, BATCH_NORMS)]
    saved = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, before in zip(norms, saved, strict=True):
            norm.momentum, norm.num_batches_tracked = before


class MobileFormer(nn.Module):
    """Mobile-Former encoder with output stride 16.

    >>> encoder = MobileFormer("mf-w720")
    >>> encoder(torch.rand(1, 3, 256, 256)).shape
    torch.Size([1, 720, 16, 16])
    """

    reduction = 16

    def __init__(self, name: str = "mf-w720", in_channels: int = 3) -> None:
        super().__init__()
        if name not in SPECS:
            raise UnknownNameError(f"Unknown Mobile-Former {name!r}; use one of {', '.join(SPECS)}.")
        spec, d = SPECS[name], SPECS[name].token_dim
        self.channels = spec.channels
        self.stage_channels = [rows[-1][1] for rows in spec.stages[:-1]] + [spec.channels]
        self.grad_checkpointing = False
        self.tokens = nn.Parameter(torch.empty(6, d))
        self.stem = nn.Sequential(conv_bn(in_channels, spec.stem, 3, stride=2), nn.ReLU6())
        (exp, inputs), *_ = spec.stages[0]
        self.blocks, self.stage_ends = nn.ModuleList([BottleneckLite(spec.stem, exp, inputs)]), [0]
        for rows in spec.stages[1:]:
            for row, (exp, out) in enumerate(rows):
                self.blocks.append(MobileFormerBlock(inputs, exp, out, d, down=row == 0))
                inputs = out
            self.stage_ends.append(len(self.blocks) - 1)
        # Used only by `with_tokens`. It is frozen because distributed training fails on parameters without gradients.
        last = MobileToFormer(inputs, d).requires_grad_(False)
        self.last_mobile_to_former = last if spec.last_mobile_to_former else None
        self.last_conv = nn.Sequential(conv_bn(inputs, spec.channels, 1), nn.ReLU6())
        self.reset_parameters()
        self.to(memory_format=torch.channels_last)

    def reset_parameters(self) -> None:
        """Initialise as in the authors' code: linear layers N(0, 0.01²) with zero bias, convolutions by fan-out."""
        nn.init.normal_(self.tokens)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def layer_of(self, name: str) -> int:
        """Layer index of a parameter for layer-wise learning rate decay, from the stem (0) to the last convolution."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return 1 + int(rest.partition(".")[0])
        return 0 if part in ("stem", "tokens") else 1 + len(self.blocks)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing of each block."""
        self.grad_checkpointing = enable

    def _run(self, block: nn.Module, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if not (self.grad_checkpointing and torch.is_grad_enabled()):
            x, tokens = block(x, tokens)
        elif torch.compiler.is_compiling():  # the compiler recomputes without side effects
            x, tokens = checkpoint(block, x, tokens, use_reentrant=False)
        else:
            x, tokens = checkpoint(
                block, x, tokens, use_reentrant=False, context_fn=lambda: (nullcontext(), _frozen_statistics(block))
            )
        return x, tokens

    def _maps_and_tokens(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        check_values(images, training=self.training)
        check_size(images.shape[-2], images.shape[-1], self.reduction)
        # Channels-last: depthwise convolutions are memory-bound, and maps become tokens without a copy.
        x = self.stem(channels_last(images))
        tokens = self.tokens.expand(images.shape[0], -1, -1)  # (N, 6, d)
        maps = []
        for index, block in enumerate(self.blocks):
            x, tokens = self._run(block, x, tokens)
            if index in self.stage_ends:
                maps.append(x)
        return maps, tokens

    def stages(self, images: Tensor) -> list[Tensor]:
        """Feature maps of stages 1 … 4 at 1/2, 1/4, 1/8 and 1/16; the last is the output of `forward`."""
        *finer, last = self._maps_and_tokens(images)[0]
        return [*finer, self.last_conv(last)]

    def forward(self, images: Tensor) -> Tensor:
        """Encode images (N, 3, H, W) to a feature map (N, channels, H/16, W/16)."""
        return self.stages(images)[-1]

    def with_tokens(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output of `forward` and the global tokens (N, 6, d) after the last Mobile→Former."""
        maps, tokens = self._maps_and_tokens(images)
        if self.last_mobile_to_former is not None:
            tokens = self.last_mobile_to_former(maps[-1], tokens)
        return self.last_conv(maps[-1]), tokens

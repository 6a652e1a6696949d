"""Register Mobile-Former in timm: after importing this module, `timm.create_model("mobile_former_w720")` works."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from finola.encoders.mobile_former import SPECS, MobileFormer
from finola.errors import InputError

Indices = int | list[int] | tuple[int, ...] | None


def _resolve(indices: Indices, count: int) -> list[int]:
    """Resolve stage indices as timm does: None selects all, n the last n; a list may contain negative indices."""
    if indices is None or isinstance(indices, int):
        return list(range(count))[-indices if indices else 0 :]
    return [range(count)[index] for index in indices]


class MobileFormerClassifier(MobileFormer):
    """Mobile-Former classifier with timm's interface: average pooling, dropout, linear layer.

    >>> import timm, torch
    >>> timm.create_model("mobile_former_w720", num_classes=10)(torch.rand(1, 3, 224, 224)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self, name: str, num_classes: int = 1000, in_chans: int = 3, global_pool: str = "avg", drop_rate: float = 0.0
    ) -> None:
        super().__init__(name, in_chans)
        self.num_features = self.head_hidden_size = self.channels
        self.drop_rate = drop_rate
        self.feature_info = [
            {"num_chs": channels, "reduction": 2 << index, "module": f"blocks.{end}"}
            for index, (channels, end) in enumerate(zip(self.stage_channels, self.stage_ends, strict=True))
        ]
        self.reset_classifier(num_classes, global_pool)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the linear layer by one for `num_classes`; with 0 the output is the pooled features."""
        if global_pool not in (None, "", "avg"):
            raise InputError(f"Unknown global_pool={global_pool!r}; use 'avg', or '' for no pooling.")
        self.global_pool = getattr(self, "global_pool", "avg") if global_pool is None else global_pool
        if num_classes and not self.global_pool:
            raise InputError(
                f"global_pool='' has no pooled features for a classifier of {num_classes} classes; use 'avg'."
            )
        self.num_classes = num_classes
        self.head: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        if isinstance(self.head, nn.Linear):
            nn.init.normal_(self.head.weight, std=0.01)
            nn.init.zeros_(self.head.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) → (N, num_features, H/16, W/16)."""
        return super().forward(images)

    def forward_head(self, feature_map: Tensor, pre_logits: bool = False) -> Tensor:
        """(N, num_features, h, w) → (N, num_classes), or the pooled (N, num_features) with `pre_logits`."""
        x = feature_map.mean((2, 3)) if self.global_pool else feature_map
        x = F.dropout(x, self.drop_rate, self.training)
        if not pre_logits:
            x = self.head(x)
        return x

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        images: Tensor,
        indices: Indices = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return feature maps of stages, as in timm; `norm` and `stop_early` have no effect."""
        if output_fmt != "NCHW":
            raise InputError(f"Unsupported output_fmt={output_fmt!r}; Mobile-Former supports NCHW only.")
        maps = self.stages(images)
        selected = [maps[index] for index in _resolve(indices, len(maps))]
        return selected if intermediates_only else (maps[-1], selected)

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove layers that no stage in `indices` needs; return the indices as non-negative numbers."""
        selected = _resolve(indices, len(self.stage_ends))
        stages = max(selected) + 1
        if stages < len(self.stage_ends):
            self.stage_ends, self.stage_channels = self.stage_ends[:stages], self.stage_channels[:stages]
            self.blocks = self.blocks[: self.stage_ends[-1] + 1]
            self.last_mobile_to_former, self.last_conv = None, nn.Sequential()
        if prune_head:
            self.reset_classifier(0)
        return selected


def _register(name: str) -> str:
    """Register `mf-w720` in timm as `mobile_former_w720` and return that name."""

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        feature_cfg = {"out_indices": (0, 1, 2, 3), "feature_cls": "getter"}
        return build_model_with_cfg(
            MobileFormerClassifier, create.__name__, pretrained, feature_cfg=feature_cfg, name=name, **kwargs
        )

    create.__name__ = name.replace("mf-", "mobile_former_")
    return register_model(create).__name__


# There are no published weights. Mean 0 and std 1, because Mobile-Former takes images in [0, 1] without normalisation.
default_cfgs = generate_default_cfgs(
    {
        name.replace("mf-", "mobile_former_"): {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "pool_size": (14, 14),
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": (0.0, 0.0, 0.0),
            "std": (1.0, 1.0, 1.0),
            "first_conv": "stem.0.0",
            "classifier": "head",
        }
        for name in SPECS
    }
)
REGISTERED = [_register(name) for name in SPECS]

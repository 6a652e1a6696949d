"""Image → feature map: Mobile-Former, or any timm backbone, under one contract."""

from __future__ import annotations

from torch import nn

from finola.encoders.backbone import Backbone, nearest_names
from finola.encoders.mobile_former import SPECS, MobileFormer


def build_encoder(name: str, image_size: tuple[int, int]) -> nn.Module:
    """The encoder that `name` says, without trained weights: `mf-w720` … `mf-w5760`, or a timm model.

    >>> build_encoder("mf-w720", image_size=(256, 256)).channels
    720
    """
    if name in SPECS:
        return MobileFormer(name)
    import timm

    import finola.encoders.registry  # noqa: F401  (its names become timm's)

    if timm.is_model(name):
        return Backbone(name, image_size=image_size)
    nearest = ", ".join(nearest_names(name, [*SPECS, *timm.list_models()]))
    raise ValueError(f"No encoder is called {name!r}; the nearest names are {nearest}.")

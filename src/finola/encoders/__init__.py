"""Encoders from images to feature maps: Mobile-Former or any timm backbone, with a common interface."""

from __future__ import annotations

from torch import nn

from finola.encoders.backbone import Backbone, nearest_names
from finola.encoders.mobile_former import SPECS, MobileFormer
from finola.errors import UnknownNameError


def build_encoder(name: str, image_size: tuple[int, int]) -> nn.Module:
    """Build a randomly initialised encoder by name: `mf-w720` … `mf-w5760`, or a timm model.

    >>> build_encoder("mf-w720", image_size=(256, 256)).channels
    720
    """
    if name in SPECS:
        return MobileFormer(name)
    import timm

    import finola.encoders.registry  # noqa: F401  (registers Mobile-Former in timm)

    if timm.is_model(name):
        return Backbone(name, image_size=image_size)
    nearest = ", ".join(nearest_names(name, [*SPECS, *timm.list_models()]))
    raise UnknownNameError(f"Unknown encoder {name!r}. Did you mean one of {nearest}?")

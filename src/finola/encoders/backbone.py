"""Encoder from any timm model."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from finola.checks import check_size, check_values
from finola.config import show_size
from finola.errors import InputError, UnknownNameError
from finola.hub import download
from finola.layers import differentiable_attention
from finola.serialization import read_weights


def nearest_names(name: str, known: list[str], count: int = 3) -> list[str]:
    """Known names most similar to `name`, best first."""
    return difflib.get_close_matches(name.lower(), known, n=count, cutoff=0.0)


def pretrained_weights(name: str) -> dict[str, Tensor]:
    """Weights of a timm model, downloaded as safetensors on first use. Files that would be unpickled are not read."""
    import timm

    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.hf_hub_id:
        raise InputError(f"timm has no pretrained weights of {name!r} in safetensors format. Choose another model.")
    file = (cfg.hf_hub_filename or "model.safetensors").replace("pytorch_model.bin", "model.safetensors")
    return read_weights(download(cfg.hf_hub_id, file, f"Pretrained weights of {name} cannot be downloaded"))


class Backbone(nn.Module):
    """timm model up to its deepest stage with a stride of at most 16, or its finest stage if all are coarser.

    Images in [0, 1] are normalised by the mean and std of the model. Models with a fixed input size (ViT, Swin, …) are
    built for `image_size` and accept no other size. With `pretrained` the weights are those of timm.

    >>> Backbone("resnet18")(torch.rand(1, 3, 256, 256)).shape
    torch.Size([1, 256, 16, 16])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, pretrained: bool = False, image_size: tuple[int, int] = (256, 256)) -> None:
        super().__init__()
        import timm

        import finola.encoders.registry  # noqa: F401  (registers Mobile-Former in timm)

        if not timm.is_model(name):
            nearest = ", ".join(nearest_names(name, timm.list_models()))
            raise UnknownNameError(f"Unknown timm model {name!r}. Did you mean one of {nearest}?")
        self.image_size: tuple[int, int] | None = None
        try:
            default_cfg = timm.get_pretrained_cfg(name)
            options: dict[str, Any] = {"features_only": True}
            if default_cfg is not None and default_cfg.fixed_input_size:
                self.image_size = options["img_size"] = image_size
            with torch.device("meta"):
                info: Any = timm.create_model(name, **options).feature_info
            # ViTs have several maps of the same scale; use the deepest of each scale.
            deepest = dict(zip(info.reduction(), info.out_indices, strict=True))
            selected = [index for reduction, index in deepest.items() if reduction <= 16] or [deepest[min(deepest)]]
            if pretrained:
                options["pretrained_cfg_overlay"] = {"state_dict": pretrained_weights(name)}
            model: Any = timm.create_model(name, pretrained=pretrained, out_indices=selected, **options)
        except (RuntimeError, TypeError, AssertionError) as error:
            size = f" at {show_size(image_size)}" if self.image_size else ""
            reason = str(error).rstrip(".")
            raise InputError(f"timm model {name!r} cannot be used as an encoder{size}: {reason}.") from error
        self.model = model
        self.channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        self.stage_channels: list[int] = info.channels(selected)
        self.channels = self.stage_channels[-1]
        self.reduction: int = info.reduction(selected)[-1]
        if self.image_size:
            check_size(*self.image_size, self.reduction)
        self.register_buffer("mean", torch.tensor(model.pretrained_cfg["mean"])[:, None, None])
        self.register_buffer("std", torch.tensor(model.pretrained_cfg["std"])[:, None, None])

    def stages(self, images: Tensor) -> list[Tensor]:
        """Feature maps of the stages, finest first; the last is the output of `forward`."""
        check_values(images, training=self.training)
        height, width = images.shape[-2:]
        check_size(height, width, self.reduction)
        if self.image_size and self.image_size != (height, width):
            built = show_size(self.image_size)
            raise InputError(f"Image size is {show_size((height, width))}, but this backbone was built for {built}.")
        with differentiable_attention(images):
            maps: list[Tensor] = self.model((images - self.mean) / self.std)
        if self.channels_last:
            maps = [z.permute(0, 3, 1, 2) for z in maps]
        if maps[-1].shape[-2:] != (height // self.reduction, width // self.reduction):
            given = show_size((maps[-1].shape[-2], maps[-1].shape[-1]))
            raise InputError(
                f"This backbone has a map of {given} for an image of {show_size((height, width))}, not exactly "
                f"1/{self.reduction}, and cannot be used as an encoder. Choose another backbone."
            )
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """Encode images (N, 3, H, W) to a feature map (N, channels, H/reduction, W/reduction)."""
        return self.stages(images)[-1]

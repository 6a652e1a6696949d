"""Any timm model as an encoder."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from finola.checks import check_size, check_values


def nearest_names(name: str, known: list[str], count: int = 3) -> list[str]:
    """The known names most like `name`, the best first."""
    return difflib.get_close_matches(name.lower(), known, n=count, cutoff=0.0)


class Backbone(nn.Module):
    """A timm model up to its deepest stage at 1/16 or finer, or to its finest where all are coarser.

    Images are in [0, 1] and are normalised here by the model's own mean and std. Models made for one size
    (ViT, Swin, …) are built for `image_size` and take no other.

    >>> Backbone("resnet18")(torch.rand(1, 3, 256, 256)).shape
    torch.Size([1, 256, 16, 16])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, pretrained: bool = False, image_size: tuple[int, int] = (256, 256)) -> None:
        super().__init__()
        import timm

        import finola.encoders.registry  # noqa: F401  (its names become timm's)

        if not timm.is_model(name):
            nearest = ", ".join(nearest_names(name, timm.list_models()))
            raise ValueError(f"timm has no model called {name!r}; the nearest are {nearest}.")
        self.image_size: tuple[int, int] | None = None
        try:
            default_cfg = timm.get_pretrained_cfg(name)
            options: dict[str, Any] = {"features_only": True}
            if default_cfg is not None and default_cfg.fixed_input_size:
                self.image_size = options["img_size"] = image_size
            with torch.device("meta"):
                info: Any = timm.create_model(name, **options).feature_info
            # ViTs offer several maps of one scale: the deepest of each scale is kept.
            deepest = dict(zip(info.reduction(), info.out_indices, strict=True))
            kept = [index for reduction, index in deepest.items() if reduction <= 16] or [deepest[min(deepest)]]
            model: Any = timm.create_model(name, pretrained=pretrained, out_indices=kept, **options)
        except (RuntimeError, TypeError, AssertionError) as error:
            size = f" at {image_size[0]}×{image_size[1]}" if self.image_size else ""
            reason = str(error).rstrip(".")
            raise ValueError(f"The timm model {name!r} cannot be an encoder{size}: {reason}.") from error
        self.model = model
        self.channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        self.stage_channels: list[int] = info.channels(kept)
        self.channels = self.stage_channels[-1]
        self.reduction: int = info.reduction(kept)[-1]
        if self.image_size:
            check_size(*self.image_size, self.reduction)
        self.register_buffer("mean", torch.tensor(model.pretrained_cfg["mean"])[:, None, None])
        self.register_buffer("std", torch.tensor(model.pretrained_cfg["std"])[:, None, None])

    def stages(self, images: Tensor) -> list[Tensor]:
        """The maps of the stages, finest first; the last is `forward`'s."""
        height, width = images.shape[-2:]
        check_values(images)
        check_size(height, width, self.reduction)
        if self.image_size and self.image_size != (height, width):
            built = "×".join(map(str, self.image_size))
            raise ValueError(f"The image is {height}×{width}, but this backbone was built for images of {built}.")
        maps: list[Tensor] = self.model((images - self.mean) / self.std)
        if self.channels_last:
            maps = [z.permute(0, 3, 1, 2) for z in maps]
        if maps[-1].shape[-2:] != (height // self.reduction, width // self.reduction):
            given = "×".join(map(str, maps[-1].shape[-2:]))
            raise ValueError(
                f"This backbone makes a map of {given} from an image of {height}×{width}, not one of exactly "
                f"1/{self.reduction}: it cannot be an encoder."
            )
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) images to an (N, channels, H/reduction, W/reduction) map."""
        return self.stages(images)[-1]

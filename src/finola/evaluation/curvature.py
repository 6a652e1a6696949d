"""Gaussian curvature of the channels of a feature map, each of which is a surface (appendix C.3, Eq. 10).

    κ = (z_xx z_yy − z_xy²) / (1 + z_x² + z_y²)²

The paper ranks channels by the root mean square of their largest positive and negative curvature, and reports a much
larger curvature for masked FINOLA than for FINOLA. κ depends on the scale of z, which the paper does not normalise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from finola.autoencoder import Autoencoder
from finola.errors import InputError
from finola.masked import MaskedFinola, half


def curvature(z: Tensor) -> Tensor:
    """Curvature κ of every surface z (…, H, W) with unit spacing: (…, H − 2, W − 2), float64.

    Derivatives are central differences, so the border has none.

    >>> y, x = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-2.0, 3), indexing="ij")
    >>> float(curvature(x * y)[1, 1]), float(curvature(x + y).abs().max())
    (-1.0, 0.0)
    """
    if z.ndim < 2 or min(z.shape[-2:]) < 3:
        raise InputError(f"Curvature needs a map of at least 3×3 positions, got shape {tuple(z.shape)}.")
    z = z.double()

    def at(dy: int, dx: int) -> Tensor:
        height, width = z.shape[-2:]
        return z[..., 1 + dy : height - 1 + dy, 1 + dx : width - 1 + dx]

    z_x, z_y = (at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2
    z_xx, z_yy = at(0, 1) - 2 * at(0, 0) + at(0, -1), at(1, 0) - 2 * at(0, 0) + at(-1, 0)
    z_xy = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4
    return (z_xx * z_yy - z_xy.square()) / (1 + z_x.square() + z_y.square()).square()


def peaks(kappa: Tensor) -> tuple[Tensor, Tensor]:
    """κ₊ and κ₋: largest positive and negative curvature of every surface (…, H, W), 0 if there is none."""
    flat = kappa.flatten(-2)
    return flat.amax(-1).clamp_min(0), flat.amin(-1).clamp_max(0)


def peak_curvature(kappa: Tensor) -> Tensor:
    """√((κ₊² + κ₋²)/2) of every surface (…, H, W), by which channels are ranked."""
    positive, negative = peaks(kappa)
    return ((positive.square() + negative.square()) / 2).sqrt()


def most_curved(z: Tensor, share: float) -> Tensor:
    """Mean peak curvature of the `share` of channels of a map that have the largest: (…, C, H, W) → (…).

    >>> y, x = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-2.0, 3), indexing="ij")
    >>> [round(float(most_curved(torch.stack([x, x * y]), share)), 4) for share in (0.5, 1.0)]
    [0.7071, 0.3536]
    """
    values = peak_curvature(curvature(z))
    return values.topk(max(1, round(share * values.shape[-1]))).values.mean(-1)


@torch.no_grad()
def feature_map(model: nn.Module, image: Tensor, which: Literal["z", "encoder"] = "z") -> Tensor:
    """Feature map (C, H, W) of one image (3, H, W).

    `z` is the propagated map of an autoencoder, or of a masked model with the centre block visible; the image has the
    model's size. `encoder` is the feature map of the encoder for the whole image; `model` may then be a model of any
    task, or an encoder.
    """
    images = image[None].to(next(model.parameters()))
    if which == "encoder":
        encoder = getattr(model, "encoder", model)
        if isinstance(model, Autoencoder) and model.config.is_waves:
            raise InputError(f"{model.config} has no encoder map, because q is solved for directly. Use the map z.")
        features: Tensor = encoder(images)
        return features[0]
    if not isinstance(model, Autoencoder | MaskedFinola):
        raise InputError(f"{type(model).__name__} has no recurrence, so no map z. Use the map of the encoder.")
    if isinstance(model, MaskedFinola):
        height, width = half(half(model.map_size))
        places = torch.tensor([[height, width]], device=images.device)
        return model.grow(model.see(images, places), places)[0]
    return model.propagate(model.encode(images))[0]


def has_recurrence(model: nn.Module) -> bool:
    """Whether the model has a map z besides that of its encoder."""
    return isinstance(model, Autoencoder | MaskedFinola)


@dataclass(frozen=True)
class CurvatureMap:
    """Feature map of a photo, its curvature, and its channels in order of decreasing curvature."""

    name: str
    z: Tensor  # (C, H, W)
    kappa: Tensor  # (C, H − 2, W − 2)
    order: Tensor  # (C,)

    @classmethod
    def of(cls, name: str, z: Tensor) -> CurvatureMap:
        """Curvature of a feature map z (C, H, W); `name` is shown in plots."""
        kappa = curvature(z.cpu())
        return cls(name, z.cpu(), kappa, peak_curvature(kappa).argsort(descending=True))

    def summary(self, count: int = 16) -> dict[str, Any]:
        """Peak curvature over all channels, and of the `count` most curved ones."""
        values = peak_curvature(self.kappa)
        positive, negative = peaks(self.kappa)
        top = [
            {"channel": c, "rms": float(values[c]), "positive": float(positive[c]), "negative": float(negative[c])}
            for c in self.order[:count].tolist()
        ]
        spread = {"median": float(values.median()), "mean": float(values.mean()), "max": float(values.max())}
        return {"model": self.name, "channels": len(values), "rms_of_peaks": spread, "most_curved": top}

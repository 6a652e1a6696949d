"""Gaussian curvature of a feature map (appendix, "Calculation of Gaussian Curvature"): every channel is a surface.

    κ = (z_xx z_yy − z_xy²) / (1 + z_x² + z_y²)²

The paper ranks channels by the root mean square of their peak positive and peak negative curvature, and finds masked
FINOLA's critical channels far more curved than FINOLA's. κ depends on the scale of z, which the paper leaves as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from finola.masked import MaskedFinola, half

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder


def curvature(z: Tensor) -> Tensor:
    """κ of every surface z (…, H, W), whose positions are one apart: (…, H − 2, W − 2), float64.

    Differences are central, so positions on the border, which have no neighbour on one side, are left out.

    >>> y, x = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-2.0, 3), indexing="ij")
    >>> float(curvature(x * y)[1, 1]), float(curvature(x + y).abs().max())
    (-1.0, 0.0)
    """
    if z.ndim < 2 or min(z.shape[-2:]) < 3:
        raise ValueError(f"a surface of shape {tuple(z.shape)} has no curvature: both its sides are at least 3.")
    z = z.double()

    def at(dy: int, dx: int) -> Tensor:
        height, width = z.shape[-2:]
        return z[..., 1 + dy : height - 1 + dy, 1 + dx : width - 1 + dx]

    z_x, z_y = (at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2
    z_xx, z_yy = at(0, 1) - 2 * at(0, 0) + at(0, -1), at(1, 0) - 2 * at(0, 0) + at(-1, 0)
    z_xy = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4
    return (z_xx * z_yy - z_xy.square()) / (1 + z_x.square() + z_y.square()).square()


def peaks(kappa: Tensor) -> tuple[Tensor, Tensor]:
    """κ₊ and κ₋, the most positive and most negative curvature of every surface (…, H, W), 0 where there is none."""
    flat = kappa.flatten(-2)
    return flat.amax(-1).clamp_min(0), flat.amin(-1).clamp_max(0)


def sharpness(kappa: Tensor) -> Tensor:
    """√((κ₊² + κ₋²)/2) of every surface (…, H, W): what channels are ranked by."""
    positive, negative = peaks(kappa)
    return ((positive.square() + negative.square()) / 2).sqrt()


@torch.no_grad()
def feature_map(model: Autoencoder | MaskedFinola, image: Tensor, which: Literal["z", "encoder"] = "z") -> Tensor:
    """The surfaces (C, H, W) of one image (3, H, W) of the model's own size.

    `z` is the map that the recurrence grows: for a masked model, from the block in the middle. `encoder` is the map of
    the encoder alone, which a masked model is pre-trained for; here it sees the whole image.
    """
    images = image[None].to(next(model.parameters()))
    if which == "encoder":
        if model.config.is_waves:
            raise ValueError(f"{model.config} has no encoder map: its q is solved for at once, so look at z.")
        seen: Tensor = model.encoder(images)
        return seen[0]
    if isinstance(model, MaskedFinola):
        height, width = half(half(model.map_size))
        places = torch.tensor([[height, width]], device=images.device)
        return model.grow(model.see(images, places), places)[0]
    return model.propagate(model.encode(images))[0]


@dataclass(frozen=True)
class Curved:
    """One model's map of a photo, its curvature, and the order of its channels, the sharpest first."""

    name: str
    z: Tensor  # (C, H, W)
    kappa: Tensor  # (C, H − 2, W − 2)
    order: Tensor  # (C,)

    @classmethod
    def measure(cls, name: str, z: Tensor) -> Curved:
        kappa = curvature(z.cpu())
        return cls(name, z.cpu(), kappa, sharpness(kappa).argsort(descending=True))

    def numbers(self, count: int = 16) -> dict[str, Any]:
        """The sharpest channels with their peaks, and how sharp the map is at large."""
        found = sharpness(self.kappa)
        positive, negative = peaks(self.kappa)
        top = [
            {"channel": c, "rms": float(found[c]), "positive": float(positive[c]), "negative": float(negative[c])}
            for c in self.order[:count].tolist()
        ]
        spread = {"median": float(found.median()), "mean": float(found.mean()), "max": float(found.max())}
        return {"name": self.name, "channels": len(found), "rms_of_peaks": spread, "sharpest": top}

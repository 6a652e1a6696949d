"""Gaussian curvature of a feature map (appendix, "Calculation of Gaussian Curvature"): every channel is a surface.

    κ = (z_xx z_yy − z_xy²) / (1 + z_x² + z_y²)²

The paper ranks channels by the root mean square of their peak positive and peak negative curvature, and finds masked
FINOLA's critical channels far more curved than FINOLA's. κ depends on the scale of z, which the paper leaves as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from finola.masked import MaskedFinola, half
from finola.plotting.waves import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from finola.autoencoder import Autoencoder

SHOWN = 4  # surfaces per model
STYLES = ("-", "--", ":", "-.")


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


def plot_curvature(models: Sequence[Curved], image: Tensor, title: str) -> Figure:
    """The sharpest surfaces of every model, shaded by κ, and all channels' ranks beside the photo (3, H, W)."""
    from matplotlib.figure import Figure

    rows = len(models)
    figure = Figure(figsize=(13, 2.9 * rows + 3.1), facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    grid = figure.add_gridspec(rows + 1, SHOWN)
    photo = figure.add_subplot(grid[0, 0])
    photo.imshow(image.permute(1, 2, 0).clamp(0, 1).cpu().numpy())
    photo.set(xticks=[], yticks=[])
    photo.set_title("photo", fontsize=9, color=INK)
    ranks = figure.add_subplot(grid[0, 1:])
    for number, one in enumerate(models):
        values = sharpness(one.kappa)[one.order].clamp_min(1e-12).numpy()
        style = STYLES[number % len(STYLES)]
        ranks.plot(range(1, len(values) + 1), values, style, color=INK, lw=1.5, label=one.name)
        for slot, channel in enumerate(one.order[:SHOWN].tolist()):
            axes = figure.add_subplot(grid[number + 1, slot], projection="3d")
            _surface(axes, one, channel, f"{one.name}\n" if slot == 0 else "\n")
    ranks.set(xscale="log", yscale="log", xlabel="rank of the channel", ylabel="κ₊ and κ₋, rms (position⁻²)")
    ranks.set_title(
        "every channel, the sharpest first; below, the sharpest: lighter where κ > 0, darker where κ < 0",
        fontsize=9,
        color=INK,
    )
    ranks.grid(alpha=0.3, which="both")
    ranks.legend(fontsize=8)
    return figure


def _surface(axes: Any, one: Curved, channel: int, head: str) -> None:
    """z_k as a surface, lighter where κ > 0 (bowls and domes), darker where κ < 0 (saddles); the border as inside."""
    import numpy as np
    from matplotlib import colormaps

    z, kappa = one.z[channel].float().numpy(), np.pad(one.kappa[channel].numpy(), 1, "edge")
    height, width = z.shape
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    reach = float(np.abs(kappa).max()) or 1.0
    corners = (kappa[:-1, :-1] + kappa[1:, :-1] + kappa[:-1, 1:] + kappa[1:, 1:]) / 4  # of every patch
    shade = colormaps["cividis"](0.5 + 0.5 * np.sign(corners) * np.sqrt(np.abs(corners) / reach))
    axes.plot_surface(x, y, z, rstride=1, cstride=1, facecolors=shade, lw=0.2, edgecolor=INK, shade=False)
    positive, negative = peaks(one.kappa[channel])
    axes.set_title(f"{head}channel {channel}: κ from {float(negative):.3g} to {float(positive):.3g}", fontsize=8.5)
    axes.set(xticks=[0, width - 1], yticks=[0, height - 1])
    axes.set_xlabel("x", fontsize=8, labelpad=-10)
    axes.set_ylabel("y", fontsize=8, labelpad=-10)
    axes.tick_params(labelsize=7, pad=-3)
    axes.invert_yaxis()
    axes.view_init(elev=34, azim=-58)
    axes.set_box_aspect((1, 1, 0.7), zoom=1.1)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)
        axis._axinfo["grid"]["color"] = FAINT

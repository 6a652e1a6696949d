"""Plot the most curved channels of feature maps as surfaces, and the ranks of all channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from finola.errors import require
from finola.evaluation.curvature import CurvatureMap, peak_curvature, peaks
from finola.plotting.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 4  # surfaces per model
STYLES = ("-", "--", ":", "-.")


def plot_curvature(models: Sequence[CurvatureMap], image: Tensor, title: str) -> Figure:
    """Plot the photo (3, H, W), the curvature of all channels by rank, and the most curved channels shaded by κ."""
    require("matplotlib")
    from matplotlib import rc_context
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
        values = peak_curvature(one.kappa)[one.order].clamp_min(1e-12).numpy()
        style = STYLES[number % len(STYLES)]
        ranks.plot(range(1, len(values) + 1), values, style, color=INK, lw=1.5, label=one.name)
        for slot, channel in enumerate(one.order[:SHOWN].tolist()):
            with rc_context({"grid.color": FAINT}):
                axes = figure.add_subplot(grid[number + 1, slot], projection="3d")
            _surface(axes, one, channel, f"{one.name}\n" if slot == 0 else "\n")
    ranks.set(xscale="log", yscale="log", xlabel="rank of the channel", ylabel="κ₊ and κ₋, rms (position⁻²)")
    ranks.set_title(
        "all channels by decreasing curvature; below, the first four: lighter where κ > 0, darker where κ < 0",
        fontsize=9,
        color=INK,
    )
    ranks.grid(alpha=0.3, which="both")
    ranks.legend(fontsize=8)
    return figure


def _surface(axes: Any, one: CurvatureMap, channel: int, head: str) -> None:
    """Plot z_k as a surface, lighter where κ > 0, darker where κ < 0; the border repeats the nearest κ."""
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

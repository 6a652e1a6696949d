"""Plot the waves of a model: speeds, some channels of ζ, and the residual of the wave equation on a photo."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.config import ModelConfig
from finola.errors import InputError
from finola.files import plot_path
from finola.photos import decode, encode
from finola.plotting.style import FAINT, INK, save_figure
from finola.propagation import propagate, start_positions
from finola.tiling import cut
from finola.transitions import prepared
from finola.wave.analysis import Quadrant, Waves
from finola.wave.diagonalisation import KINDS
from finola.wave.residuals import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"complex": "#3b6fb6", "real": "#d9792b", "unit": "#2f9e5b", "infinite": "#8d4bb0", "static": "#9aa0a6"}
COLOURS["undefined"] = "#c23b3b"
SURFACES = 4


@torch.no_grad()
def plot_waves(
    waves: Waves, measurement: Measurement, images: Tensor, path: str | Path, quadrant: str = "right-down"
) -> Path:
    """Plot `waves` and the `measurement` on images (N, 3, H, W), of which the first is shown, to a file.

    The suffix of `path` selects the format: .png, .pdf, .svg or .jpg.
    """
    path = plot_path(path)
    if waves.model is None:
        raise InputError("Waves computed from matrices have no images to plot. Use finola.waves(model).")
    return save_figure(_figure(waves, measurement, images[:1], quadrant), path)


def _figure(waves: Waves, measurement: Measurement, image: Tensor, quadrant: str) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    model = waves.model
    assert model is not None
    figure = Figure(figsize=(15, 9.2), facecolor="white", layout="constrained")
    outer = figure.add_gridspec(2, 1, height_ratios=[1.25, 1])
    top = outer[0].subgridspec(1, 4, width_ratios=[1.35, 1, 1, 1.12])
    bottom = outer[1].subgridspec(1, SURFACES)
    figure.get_layout_engine().set(h_pad=0.12)  # type: ignore[union-attr, call-arg]
    figure.suptitle(_headline(waves, measurement, quadrant), x=0.01, ha="left", fontsize=11, color=INK, linespacing=1.5)

    _plane(figure.add_subplot(top[0]), waves[quadrant])
    parameter = next(model.parameters())
    image = image.to(parameter)
    rebuilt = decode(model, encode(model, image)).clamp(0, 1)
    for slot, (title, photo) in enumerate((("photo", image), ("reconstruction", rebuilt)), start=1):
        axes = figure.add_subplot(top[slot])
        axes.imshow(photo[0].permute(1, 2, 0).float().cpu().numpy())
        _frame(axes, title)
    _residuals(figure, figure.add_subplot(top[3]), image, measurement, model.config)

    zeta, start = zeta_of_tile(waves, image, quadrant)
    for slot, channel in enumerate(_strongest(zeta, waves[quadrant])):
        with rc_context({"grid.color": "#e6e9ee"}):
            axes = figure.add_subplot(bottom[slot], projection="3d")
        _surface(axes, zeta[channel], start, caption(waves, quadrant, channel))
    return figure


def _headline(waves: Waves, measurement: Measurement, quadrant: str) -> str:
    model = waves.model
    assert model is not None
    fitted = measurement.explained.fitted
    explained = "" if math.isnan(fitted) else f"explained variance {fitted:.2g}"
    metrics = (
        f"residual {measurement.residual['mean']:.2g} (unrelated differences: 0.71)",
        *filter(None, [explained]),
        f"path inconsistency {measurement.path_inconsistency:.2g}",
        f"σ from {measurement.sigma_min:.4g} to {measurement.sigma_max:.4g}",
        f"varying by {measurement.sigma_spread:.2g} within a map",
    )
    description = waves[quadrant].description
    if waves.basis is not None:
        description += " The waves are fixed by construction: white noise has the same residual."
    description = textwrap.fill(description, 190)
    return f"{model.label}, {quadrant}:  {'   ·   '.join(metrics)}\n{description}"


def _plane(axes: Axes, quadrant: Quadrant) -> None:
    """Plot the speeds in the complex plane, compressed to a disc: |λ| = 1 is at half the radius, |λ| = ∞ on the rim."""
    import numpy as np

    for speed, label in ((1 / 3, "⅓"), (1.0, "|λ| = 1"), (3.0, "3"), (10.0, "10"), (np.inf, "∞")):
        radius = 1 / (1 + 1 / speed)
        rim = speed == np.inf and "infinite" in quadrant.kinds
        width = 3.0 if rim else 1.6 if speed == 1 else 0.7
        axes.add_patch(_circle(radius, COLOURS["infinite"] if rim else FAINT, width))
        place = radius * np.sqrt(0.5)
        box = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.85}
        axes.text(place, -place, label, fontsize=7.5, color="#6b737d", ha="center", va="center", bbox=box, zorder=2)
    axes.axhline(0, color=FAINT, lw=0.7, zorder=0)
    axes.axvline(0, color=FAINT, lw=0.7, zorder=0)

    speeds = quadrant.speeds.numpy()
    kinds = np.array(quadrant.kinds)
    for kind in KINDS:
        count = int((kinds == kind).sum())
        if not count:
            continue
        colour = COLOURS[kind]
        label = f"{count} {kind}"
        if kind not in ("complex", "real", "unit"):
            axes.plot([], [], "o" if kind != "infinite" else "-", color=colour, label=label, ms=5, lw=3)
            continue
        values, many = np.unique(speeds[kinds == kind].round(9), return_counts=True)
        places = values / (1 + np.abs(values))
        axes.scatter(
            places.real, places.imag, s=14 * np.sqrt(many), color=colour, alpha=0.75, lw=0, label=label, zorder=3
        )
    axes.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04), aspect="equal")
    _frame(axes, "speeds λ in the complex plane")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, fontsize=8, frameon=False, handletextpad=0.3)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _circle(radius: float, colour: str, width: float) -> Any:
    from matplotlib.patches import Circle

    return Circle((0, 0), radius, fill=False, ec=colour, lw=width, zorder=1)


def _frame(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, color=INK)
    axes.set(xticks=[], yticks=[])


def _residuals(figure: Figure, axes: Axes, image: Tensor, measurement: Measurement, config: ModelConfig) -> None:
    """Plot the residual of the mean of both orders over the photo in grey."""
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    height, width = image.shape[-2:]
    axes.imshow(image[0].mean(0).float().cpu().numpy(), cmap="gray", vmin=-0.3, vmax=1.3)
    values = measurement.residual_map.numpy()
    known = values[np.isfinite(values) & (values > 0)]
    low, high = np.quantile(known, (0.02, 0.98)) if len(known) else (0.0, 1.0)
    norm = LogNorm(low, high) if low > 0 and high > 30 * low else Normalize(0, max(high, 1e-12))
    squares = [max(1, side - 1) for side in config.map_size]  # differences of a tile, stretched over the tile
    bottom, right = (values.shape[i] // squares[i] * config.image_size[i] - 0.5 for i in (0, 1))
    extent = (-0.5, right, bottom, -0.5)
    drawn = axes.imshow(values, norm=norm, cmap="inferno", alpha=0.6, extent=extent, interpolation="nearest")
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    _frame(axes, "residual of β Δxζ = α Δyζ")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.55, pad=0.02)
    bar.ax.tick_params(labelsize=7)


def zeta_of_tile(waves: Waves, image: Tensor, quadrant: str) -> tuple[Tensor, tuple[int, int]]:
    """ζ (C, H, W) of the tile of highest contrast, and the start of the first path."""
    model = waves.model
    assert model is not None
    config = model.config
    tiles, _ = cut(image.to(next(model.parameters())), config.image_size)
    tile = tiles[int(tiles.flatten(1).var(1).argmax())][None]
    z = propagate(model.encode(tile), prepared(model.transition), config.map_size, config.start)
    return waves.project(z.cpu(), quadrant)[0], start_positions(config.start, config.map_size, config.paths)[0]


def _strongest(zeta: Tensor, quadrant: Quadrant) -> list[int]:
    """Channels of largest variance over the map; those with distinct speeds come first."""
    distinct: dict[tuple[float, float], int] = {}
    repeated: list[int] = []
    for channel in torch.argsort(zeta.flatten(1).var(1), descending=True).tolist():
        speed = complex(quadrant.speeds[channel])
        key = round(speed.real, 6) if math.isfinite(speed.real) else math.inf, round(abs(speed.imag), 6)
        if quadrant.kinds[channel] != "static":
            if key in distinct:
                repeated.append(channel)
            else:
                distinct[key] = channel
        if len(distinct) == SURFACES:
            break
    return [*distinct.values(), *repeated][:SURFACES]


def caption(waves: Waves, quadrant: str, channel: int) -> str:
    speed, kind = complex(waves[quadrant].speeds[channel]), waves[quadrant].kinds[channel]
    value = {"complex": f"{speed:.2f}", "infinite": "∞", "undefined": "undefined"}.get(kind, f"{speed.real:.2f}")
    caption = f"Re ζ, channel {channel}, λ = {value.replace('j', 'i').strip('()')}"
    return f"{caption}\n{waves.describe(channel)}"


def _surface(axes: Any, channel: Tensor, start: tuple[int, int], caption: str) -> None:
    import numpy as np

    values = channel.real.numpy()
    height, width = values.shape
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    reach = float(np.abs(values).max()) or 1.0
    fine = np.meshgrid(*(np.linspace(0, side - 1, 4 * side - 3) for side in (width, height)))
    smooth = F.interpolate(channel.real[None, None], fine[0].shape, mode="bilinear", align_corners=True)[0, 0].numpy()
    colours = {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach}
    axes.plot_surface(*fine, smooth, rcount=128, ccount=128, lw=0, antialiased=False, **colours)
    axes.plot_wireframe(x, y, values, rcount=64, ccount=64, lw=0.25, color=INK, alpha=0.5)
    axes.contourf(*fine, smooth, levels=24, zdir="z", offset=-1.9 * reach, alpha=0.6, **colours)
    row, column = start
    axes.plot([column], [row], [values[row, column]], "o", color="black", ms=4, zorder=10)
    axes.set(zlim=(-1.9 * reach, 1.1 * reach), xticks=[0, width - 1], yticks=[0, height - 1], zticks=[])
    axes.set_xlabel("x", fontsize=8, labelpad=-10)
    axes.set_ylabel("y", fontsize=8, labelpad=-10)
    axes.tick_params(labelsize=7, pad=-4)
    axes.set_title(caption, fontsize=9, color=INK)
    axes.view_init(elev=32, azim=-58)
    axes.invert_yaxis()
    axes.set_box_aspect((1, 1, 0.75), zoom=1.12)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)

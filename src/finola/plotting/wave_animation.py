"""Animate one channel of ζ as a profile over y, with x as time (§3, Δxζ = λ Δyζ)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from finola.errors import InputError, require
from finola.plotting.style import INK, show_as_text
from finola.plotting.waves import caption, zeta_of_tile
from finola.propagation import Position, start_positions
from finola.wave.analysis import waves

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

TRAIL = 4  # previous profiles, drawn with decreasing opacity


@torch.no_grad()
def wave_frames(model: Autoencoder, images: Tensor, channel: int) -> list[Image.Image]:
    """Frames of ζ_k of the first image's tile of highest contrast, one per column away from the start.

    On the left is the real part over the largest quadrant around the start, on the right its profile over y in the
    marked column and in the previous ones. Where ζ satisfies its equation, the profile moves at the speed λ.

    >>> import finola
    >>> frames = wave_frames(finola.load("waves/64x1@8:32"), torch.rand(1, 3, 32, 32), 3)
    >>> len(frames)
    4
    """
    config = model.config
    found = waves(model)
    if not 0 <= channel < len(found.speeds):
        raise InputError(f"channel is {channel}, but {config} has waves in channels 0 to {len(found.speeds) - 1}.")
    quadrant = largest_quadrant(start_positions(config.start, config.map_size, config.paths)[0], config.map_size)
    zeta, (y, x) = zeta_of_tile(found, images[:1], quadrant)
    real = zeta[channel].real.numpy()
    across = real[:, x:] if "right" in quadrant else real[:, x::-1]
    values = across[y:] if "down" in quadrant else across[y::-1]
    title = f"{model.label}, {quadrant}\n{caption(found, quadrant, channel)}"
    return list(_render(values, quadrant, title))


def largest_quadrant(start: Position, size: Position) -> str:
    """Largest quadrant around a start; from the centre, right-down as in the paper.

    >>> largest_quadrant((8, 8), (16, 16)), largest_quadrant((7, 0), (8, 8))
    ('right-down', 'right-up')
    """
    (y, x), (height, width) = start, size
    across = "right" if width - x >= x else "left"
    return f"{across}-{'down' if height - y >= y else 'up'}"


def _render(values: NDArray[np.float64], quadrant: str, title: str) -> Iterator[Image.Image]:
    """Update the marker and the profiles of one figure, which is much faster than a figure per frame."""
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    reach = float(np.abs(values).max()) or 1.0
    across, along = quadrant.split("-")
    figure = Figure(figsize=(7.2, 3.9), dpi=100, facecolor="white", layout="constrained")
    figure.suptitle(title, fontsize=9, color=INK)
    show_as_text(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    drawn = left.imshow(values, cmap="cividis", vmin=-reach, vmax=reach, interpolation="nearest", aspect="auto")
    figure.colorbar(drawn, ax=left, shrink=0.8)
    marks = [left.axvline(0, color="white", lw=3), left.axvline(0, color="black", lw=1.4)]
    ages = [(1 - age / (TRAIL + 1)) ** 2 for age in range(TRAIL + 1)]
    profiles = [right.plot([], [], color=INK, alpha=alpha, lw=2.2 if alpha == 1 else 1.2)[0] for alpha in ages]
    left.set(xlabel=f"steps {across} from the start", ylabel=f"steps {along} from the start", title="Re ζ")
    right.set(xlim=(-1.05 * reach, 1.05 * reach), xlabel="Re ζ", title="its profile in the marked column")
    right.grid(alpha=0.3)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")
    for column in range(values.shape[1]):
        for mark in marks:
            mark.set_xdata([column, column])
        for age, profile in enumerate(profiles[: column + 1]):
            profile.set_data(values[:, column - age], np.arange(len(values)))
        canvas.draw()
        yield Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())

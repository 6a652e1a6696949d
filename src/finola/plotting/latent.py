"""Plots of the latent space of q (appendix A.6), each with the values it shows.

Images are (N, 3, H, W) in [0, 1], all of one size; if it is larger than the model's, they are processed in tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from finola.config import show_size
from finola.errors import require
from finola.evaluation.latent.operations import (
    Encoded,
    contrast,
    correlation,
    decode,
    encode,
    fade,
    interpolate,
    project,
    sample,
)
from finola.evaluation.latent.statistics import Statistics
from finola.metrics import psnr
from finola.plotting.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from finola.autoencoder import Autoencoder

SIDE = 1.55  # inches per image


class Plot(NamedTuple):
    """A figure and the values shown in it."""

    figure: Figure
    values: dict[str, Any]


def plot_mean(model: Autoencoder, statistics: Statistics) -> Plot:
    """Image decoded from the mean q̄, and the variance explained by the first components."""
    image = decode(model, statistics.mean[None])
    explained = statistics.explained()
    values = {
        "std": float(contrast(image)),
        "colour": [round(float(value), 4) for value in image.mean((0, 2, 3))],
        "components_for_90_percent": int((explained < 0.9).sum()) + 1 if explained[-1] >= 0.9 else None,
    }
    figure, (left, right) = _figure(1, 2, (7.2, 3.4), f"The mean of q, {_over(model, statistics)}", [1, 1.35])
    _show(left, image[0], "decoded q̄", f"standard deviation {values['std']:.3f}")
    right.plot(range(1, len(explained) + 1), 100 * explained.numpy(), color=INK, lw=1.6)
    right.set(xscale="log", ylim=(0, 101), xlabel="principal components K", ylabel="explained variance of q, %")
    right.set_title("the first K components", fontsize=9, color=INK)
    right.grid(alpha=0.3, which="both")
    return Plot(figure, values)


def plot_fade(model: Autoencoder, statistics: Statistics, images: Tensor, steps: int = 6, end: float = 1.0) -> Plot:
    """Interpolation from every image to the mean (end = 1), or through it to the mirror 2q̄ − q (end = 2)."""
    at, encoded = torch.linspace(0, end, steps).tolist(), encode(model, images)
    columns = [_decode(model, encoded, fade(encoded.q, statistics, t)) for t in at]
    heads = [_headline(t) for t in at]
    what = "interpolated to the mean" if end == 1 else "through the mean to the mirror 2q̄ − q"
    spread = [contrast(column).tolist() for column in columns]
    captions = [[f"std {value:.3f}" for value in column] for column in spread]
    figure = _sheet([images, *columns], ["photo", *heads], [None, *captions], f"q {what}, {_over(model, statistics)}")
    values: dict[str, Any] = {"t": at, "std": spread}
    if end == 2:
        middle = _decode(model, encoded, fade(encoded.q, statistics, 1.0))
        values["correlation_of_mirror"] = correlation(columns[0] - middle, columns[-1] - middle).tolist()
    return Plot(figure, values)


def plot_interpolation(model: Autoencoder, first: Tensor, second: Tensor, steps: int = 5) -> Plot:
    """Interpolation (1 − t)·q₁ + t·q₂ for two batches of images, above the interpolation of their pixels."""
    at, one, two = torch.linspace(0, 1, steps).tolist(), encode(model, first), encode(model, second)
    blended = [_decode(model, one, interpolate(one.q, two.q, t)) for t in at]
    pixels = [interpolate(blended[0], blended[-1], t) for t in at]
    metrics = torch.stack([psnr(a, b).clamp(max=100) for a, b in zip(blended, pixels, strict=True)])  # (steps, N)
    captions = [
        None if t in (0, 1) else [f"{v:.1f} dB to pixels" for v in row] for t, row in zip(at, metrics, strict=True)
    ]
    columns = [torch.stack([a, b], 1).flatten(0, 1) for a, b in zip(blended, pixels, strict=True)]
    doubled = [None if c is None else [text for caption in c for text in (caption, "")] for c in captions]
    rows = ["interpolated q", "interpolated pixels"] * len(first)
    heads = [f"t = {t:.2f}" for t in at]
    figure = _sheet(columns, heads, doubled, f"(1 − t)·q₁ + t·q₂, {model.label}", rows)
    inner = {f"{t:.2f}": metrics[i].tolist() for i, t in enumerate(at) if 0 < t < 1}
    return Plot(figure, {"psnr_to_pixel_mix": inner})


def plot_samples(model: Autoencoder, statistics: Statistics, count: int = 10, seed: int = 0) -> Plot:
    """Images decoded from samples of the Gaussian with the mean and covariance of q."""
    images = decode(model, sample(statistics, count, torch.Generator().manual_seed(seed)))
    width = min(5, count)
    rows = -(-count // width)
    figure, axes = _figure(
        rows, width, (width * SIDE + 0.3, rows * SIDE + 0.3), f"Samples of q, {_over(model, statistics)}"
    )
    for number, one in enumerate(axes):
        _show(one, images[number] if number < count else None)
    return Plot(figure, {"count": count, "seed": seed, "std": contrast(images).tolist()})


def plot_components(
    model: Autoencoder, statistics: Statistics, images: Tensor, counts: Sequence[int] | None = None
) -> Plot:
    """Every image decoded from its first K principal components, for increasing K."""
    known = len(statistics.components)
    power = known.bit_length() - 1
    counts = list(counts or sorted({*(1 << max(0, power - less) for less in (7, 5, 3, 1)), known}))
    encoded = encode(model, images)
    columns = [_decode(model, encoded, project(encoded.q, statistics, k)) for k in counts]
    metrics = [psnr(column, images) for column in columns]
    captions = [[f"{value:.1f} dB" for value in row] for row in metrics]
    heads = [f"K = {k}" for k in counts]
    title = f"The first K principal components of q, {_over(model, statistics)}"
    figure = _sheet([*columns, images], [*heads, "photo"], [*captions, None], title)
    return Plot(figure, {"components": counts, "psnr": [row.tolist() for row in metrics]})


def plot_neighbours(
    query: Tensor, images: Tensor, similarities: Sequence[float], names: Sequence[str], title: str
) -> Plot:
    """A photo (3, H, W) and its nearest neighbours (N, 3, H, W)."""
    captions = [None, *[[f"{value:.3f}"] for value in similarities]]
    heads = ["query", *[f"number {place}" for place in range(1, len(images) + 1)]]
    figure = _sheet([query[None], *[image[None] for image in images]], heads, captions, title)
    return Plot(
        figure, {"neighbours": [{"photo": n, "similarity": s} for n, s in zip(names, similarities, strict=True)]}
    )


def _decode(model: Autoencoder, encoded: Encoded, q: Tensor) -> Tensor:
    return decode(model, q, encoded.grid, encoded.size)


def _headline(t: float) -> str:
    word = {0.0: "q", 1.0: "q̄", 2.0: "2q̄ − q"}.get(round(t, 6))
    return word or f"t = {t:.2g}"


def _over(model: Autoencoder, statistics: Statistics) -> str:
    size = show_size(model.config.image_size)
    return f"{model.label} over {statistics.count:,} images of {size}"


def _sheet(
    columns: Sequence[Tensor],
    heads: Sequence[str],
    captions: Sequence[Sequence[str] | None],
    title: str,
    rows: Sequence[str] = (),
) -> Figure:
    """Sheet with one column per batch of images (N, 3, H, W)."""
    height, width = len(columns[0]), len(columns)
    aspect = columns[0].shape[-2] / columns[0].shape[-1]
    line = SIDE * aspect + (0.13 if any(captions) else 0.0)
    figure, axes = _figure(height, width, (width * SIDE + 0.3, height * line + 0.5), title)
    for number, one in enumerate(axes):
        row, column = divmod(number, width)
        texts = captions[column]
        _show(one, columns[column][row], heads[column] if row == 0 else "", texts[row] if texts else "")
        if rows and column == 0:
            one.set_ylabel(rows[row], fontsize=9, color=INK)
    return figure


def _figure(
    rows: int, columns: int, size: tuple[float, float], title: str, widths: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    require("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"width_ratios": widths} if widths else None)
    return figure, list(axes.flat)


def _show(axes: Axes, image: Tensor | None, head: str = "", caption: str = "") -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if image is not None:
        axes.imshow(image.permute(1, 2, 0).clamp(0, 1).cpu().numpy())
    axes.set_title(head, fontsize=9, color=INK)
    axes.set_xlabel(caption, fontsize=8, color=INK, labelpad=2)

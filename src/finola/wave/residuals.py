"""How well the one-way wave equations hold on images. The paper assumes that they hold.

With horizontal-first propagation Δx z = A ẑ is exact only on the row of the start, with vertical-first propagation
Δy z = B ẑ only on its column, and the map is the mean of both. The residual, the inconsistency of the two orders and σ
are therefore properties of a model. Paths with the same start are summed and measured together; scattered paths are
measured separately.

The relative residual of two unrelated differences of equal size is 1/√2; `finola.wave.explained` has a scale with a
zero. Exact plane waves satisfy their equations for any q, also for that of white noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from finola.checks import check_images
from finola.errors import InputError
from finola.propagation import EPS, Coefficients, Position, Step, propagate, start_positions
from finola.tiling import cut, join
from finola.transitions import LinearAfterNorm, prepared
from finola.wave.diagonalisation import KINDS, QUADRANTS, condition, reflect, restrict
from finola.wave.explained import QUADRANT, Explained, Moments, explained, model_Q

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.wave.analysis import Quadrant, Waves

ORDERS = ("horizontal", "vertical", "mean")
ELEMENTS = 2**22  # maximum number of elements of the maps in memory


@dataclass(frozen=True)
class Measurement:
    """Result of `measure_waves`. Residuals are between 0, where the equation holds, and 1."""

    images: int
    residual: dict[str, float]  # ‖β Δxζ − α Δyζ‖ / (‖β Δxζ‖ + ‖α Δyζ‖) per order; each (α, β) has unit norm
    explained: Explained
    path_inconsistency: float  # ‖z_h − z_v‖ / ‖z‖
    sigma_min: float  # minimum of √(σ² + ε) over positions, orders, paths and images
    sigma_max: float
    sigma_spread: float  # maximum of (max − min) / mean within one map
    shares: dict[str, float]  # fraction of the speeds of each kind, over the quadrants of the map
    maps: dict[str, list[Tensor]] = field(repr=False)  # per order and image: residual map

    @property
    def residual_map(self) -> Tensor:
        """Residual map of the first image for the mean of both orders: (H−1, W−1), one value per 2×2 positions.

        Each value belongs to exactly one quadrant. Maps of tiles are joined; nan where all differences are zero.
        """
        return self.maps["mean"][0]

    def to_dict(self) -> dict[str, object]:
        """All metrics except the maps, ready for JSON; values that are not finite become None."""

        def plain(value: object) -> object:
            if isinstance(value, dict | Explained):
                return {key: plain(part) for key, part in (value if isinstance(value, dict) else vars(value)).items()}
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {name: plain(value) for name, value in self.__dict__.items() if name != "maps"}


@torch.no_grad()
def measure_waves(found: Waves, images: Tensor | Iterable[Tensor]) -> Measurement:
    """Measure `waves(model)` on images (N, 3, H, W), or one by one (3, H, W), of any size.

    The recurrence runs in the dtype of the model, the measurement in float64. Larger images are split into tiles.

    >>> import finola
    >>> found = measure_waves(finola.waves(finola.create("waves/64x1@8:32")), torch.rand(2, 3, 32, 32))
    >>> found.residual["mean"] < 1e-4, found.path_inconsistency < 1e-4
    (True, True)
    """
    if found.model is None:
        raise InputError(
            "Measuring on images needs a model, but the waves were computed from matrices. Use measure_paths."
        )
    config = found.model.config
    q, grids = [], []
    with _evaluating(found.model):
        for batch in [images] if isinstance(images, Tensor) else (image[None] for image in images):
            tiles, grid = _tiles(found.model, batch)
            q.append(torch.cat([found.model.encode(part) for part in tiles.split(_batch(found.model))]))
            grids += [grid] * len(batch)
    if not grids:
        raise InputError("Measuring needs at least one image, got 0.")
    counts = [math.prod(grid) for grid in grids]
    photo = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    maps, measured = _measure(found, torch.cat(q), photo, config.map_size, config.start)
    joined = {
        order: [join(part[:, None], grid)[0, 0] for part, grid in zip(maps[order].split(counts), grids, strict=True)]
        for order in ORDERS
    }
    return replace(measured, images=len(grids), maps=joined)


@torch.no_grad()
def measure_paths(found: Waves, q: Tensor, size: Position, start: str | Position = "center") -> Measurement:
    """Measure the maps propagated from initial conditions q (N, M, C), in the dtype of q."""
    return _measure(found, q, torch.arange(len(q)), size, start)[1]


def _measure(
    found: Waves, q: Tensor, photo: Tensor, size: Position, start: str | Position
) -> tuple[dict[str, Tensor], Measurement]:
    """Measure q (N, M, C) of tiles; `photo` (N,) is the photo of each. Also return the residual maps (N, H−1, W−1)."""
    sums = _Sums(found)
    maps = {
        order: torch.zeros(len(q), *(max(1, length - 1) for length in size), dtype=torch.float64) for order in ORDERS
    }
    halves = photo % 2 if int(photo.max()) else torch.arange(len(q)) % 2
    shuffled = torch.randperm(len(q), generator=torch.Generator().manual_seed(0))
    batch = max(2, ELEMENTS // (q.shape[1] * q.shape[2] * math.prod(size)))
    for half in (0, 1):
        rows = shuffled[halves[shuffled] == half]
        for part in rows.tensor_split(max(1, len(rows) // batch)) if len(rows) else ():
            for order, values in sums.add(q[part.to(q.device)], size, start, half).items():
                maps[order][part] = values
    return maps, sums.measurement({order: list(part) for order, part in maps.items()})


def order_difference(horizontal: Tensor, vertical: Tensor) -> Tensor:
    """Squared path inconsistency ‖z_h − z_v‖²/‖z‖² of maps of any shape, a differentiable penalty.

    The squares are summed over all images. The equation Δx z = Q Δy z holds for z if both orders agree.

    >>> float(order_difference(torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 4)))
    0.0
    """
    norm = ((horizontal + vertical) / 2).square().sum()
    return (horizontal - vertical).square().sum() / norm.clamp_min(torch.finfo(norm.dtype).tiny)


@torch.no_grad()
def health(model: Autoencoder, images: Tensor) -> dict[str, float]:
    """Metrics for training logs: path_inconsistency, sigma_min, sigma_max, and cond_B if the model has a B.

    The result is empty for a Conv-AE, which has no recurrence.
    """
    transition = getattr(model, "transition", None)
    if transition is None:
        return {}
    config = model.config
    with _evaluating(model):
        q = model.encode(_tiles(model, images)[0])
        step = prepared(transition)
        apart, whole, low, high = 0.0, 0.0, math.inf, 0.0
        for part in q.split(_batch(model)):
            totals: list[Tensor] = []
            for _, phi in _propagate_paths(part, step, config.map_size, config.start):
                sigma = _sigma(phi)
                low, high = min(low, float(sigma.min())), max(high, float(sigma.max()))
                totals.append(phi.sum(2))
            z_h, z_v = torch.stack(totals).sum(0)
            apart, whole = apart + _square(z_h - z_v), whole + _square((z_h + z_v) / 2)
    metrics = {"path_inconsistency": _ratio(apart, whole), "sigma_min": low, "sigma_max": high}
    if isinstance(transition, LinearAfterNorm):
        metrics["cond_B"] = condition(restrict(transition.coefficients().B.detach().cpu().double()))
    return metrics


class _Sums:
    """Sums of squared norms over images, quadrants and groups of paths."""

    def __init__(self, found: Waves) -> None:
        self.waves = found
        self.terms = {order: torch.zeros(3, dtype=torch.float64) for order in ORDERS}  # β Δx − α Δy, β Δx, α Δy
        self.halves = [Moments(len(found.coefficients.A) - 1) for _ in range(2)]
        self.seen: dict[str, Quadrant] = {}
        self.apart = self.whole = 0.0
        self.images = 0
        self.sigma = [math.inf, 0.0, 0.0]

    def add(self, q: Tensor, size: Position, start: str | Position, half: int) -> dict[str, Tensor]:
        """Propagate and measure q (N, M, C) of one half of the photos; return the residual maps of each order."""
        step = cast(Step, Coefficients(*(matrix.to(q) for matrix in self.waves.coefficients)))
        side = [max(1, length - 1) for length in size]
        squares = {order: torch.zeros(3, len(q), *side, dtype=torch.float64) for order in ORDERS}
        totals = []
        for cell, phi in _propagate_paths(q, step, size, start):
            self._add_sigma(_sigma(phi))
            z = phi.sum(2).cpu().double()  # (2, N, H, W, C)
            totals.append(z)
            for name in QUADRANTS:
                self._add_quadrant(name, z, cell, squares, self.halves[half])
        z_h, z_v = torch.stack(totals).sum(0)
        self.apart, self.whole = self.apart + _square(z_h - z_v), self.whole + _square((z_h + z_v) / 2)
        self.images += len(q)
        return {order: _relative(parts) for order, parts in squares.items()}

    def _add_sigma(self, sigma: Tensor) -> None:
        """sigma (2, N, M, H, W)."""
        flat = sigma.flatten(3)
        spread = float(((flat.amax(-1) - flat.amin(-1)) / flat.mean(-1)).max())
        low, high, widest = self.sigma
        self.sigma = [min(low, float(flat.min())), max(high, float(flat.max())), max(widest, spread)]

    def _add_quadrant(self, name: str, z: Tensor, cell: Position, squares: dict[str, Tensor], moments: Moments) -> None:
        (y, x), (horizontal, vertical) = cell, QUADRANTS[name]
        rows = slice(None, y + 1) if vertical == "up" else slice(y, None)
        columns = slice(None, x + 1) if horizontal == "left" else slice(x, None)
        axes = [axis for axis, back in ((2, vertical == "up"), (3, horizontal == "left")) if back]
        part = z[:, :, rows, columns].flip(axes)  # flipped so that the start is at (0, 0)
        if min(part.shape[2:4]) < 2:
            return
        quadrant = self.seen[name] = self.waves[name]
        zeta = quadrant.initial(part)  # (2, N, h, w, C)
        alpha, beta = _unit_pairs(quadrant)
        for order, value in zip(ORDERS, (*zeta, zeta.mean(0)), strict=True):
            dx, dy = _differences(value)
            terms = _squares(beta * dx, alpha * dy)  # (3, N, h−1, w−1)
            self.terms[order] += terms.sum((1, 2, 3))
            inner = slice(None, y) if vertical == "up" else rows, slice(None, x) if horizontal == "left" else columns
            squares[order][:, :, *inner] += terms.flip(axes)
        if name == QUADRANT:
            moments.add(*_differences(reflect(part.mean(0))[..., :-1]), cell)

    def measurement(self, maps: dict[str, list[Tensor]]) -> Measurement:
        quadrants = list(self.seen.values()) or [self.waves["right-down"]]  # a single row or column has no quadrant
        kinds = [kind for quadrant in quadrants for kind in quadrant.kinds]
        nothing = math.nan if "undefined" in kinds else 0.0  # result where both sides are zero
        low, high, spread = self.sigma
        return Measurement(
            images=self.images,
            residual={order: float(_relative(self.terms[order]).nan_to_num(nothing)) for order in ORDERS},
            explained=explained(self.halves, model_Q(self.waves)),
            path_inconsistency=_ratio(self.apart, self.whole),
            sigma_min=low,
            sigma_max=high,
            sigma_spread=spread,
            shares={kind: kinds.count(kind) / max(1, len(kinds)) for kind in KINDS},
            maps=maps,
        )


def _propagate_paths(q: Tensor, step: Step, size: Position, start: str | Position) -> Iterator[tuple[Position, Tensor]]:
    """Yield each distinct start with the maps of its paths, horizontal-first and vertical-first: (2, N, M, H, W, C)."""
    groups: dict[Position, list[int]] = {}
    for path, cell in enumerate(start_positions(start, size, q.shape[1])):
        groups.setdefault(cell, []).append(path)
    for cell, paths in groups.items():
        single = q[:, paths].flatten(0, 1)[:, None]  # (N·M, 1, C)
        orders = [propagate(single, step, size, cell, order=order) for order in ("horizontal", "vertical")]
        yield cell, torch.stack(orders).movedim(2, -1).unflatten(1, (len(q), len(paths)))


def _sigma(phi: Tensor) -> Tensor:
    """Divisor of the normalisation, √(σ² + ε): (…, C) → (…)."""
    return (phi.to(torch.promote_types(phi.dtype, torch.float32)).var(-1, correction=0) + EPS).sqrt()


def _differences(z: Tensor) -> tuple[Tensor, Tensor]:
    """Differences Δx and Δy where both neighbours exist: (N, h, w, C) → (N, h−1, w−1, C) each."""
    here = z[:, :-1, :-1]
    return z[:, :-1, 1:] - here, z[:, 1:, :-1] - here


def _squares(left: Tensor, right: Tensor) -> Tensor:
    """Squared norms of left − right, left and right over the channels: (3, N, h, w)."""
    if left.is_complex():
        left, right = (torch.view_as_real(part).flatten(-2) for part in (left, right))
    return torch.stack([part.square().sum(-1) for part in (left - right, left, right)])


def _relative(squares: Tensor) -> Tensor:
    """Relative residual ‖left − right‖ / (‖left‖ + ‖right‖), nan where both are zero."""
    difference, left, right = squares.sqrt().unbind()
    return difference / (left + right)


def _unit_pairs(quadrant: Quadrant) -> tuple[Tensor, Tensor]:
    """Scale each pair (α, β) to unit norm, so that all channels have the same weight."""
    length = torch.hypot(quadrant.alpha.abs(), quadrant.beta.abs())
    length = torch.where(length == 0, 1, length)
    return quadrant.alpha / length, quadrant.beta / length


def _square(z: Tensor) -> float:
    return float(z.to(torch.promote_types(z.dtype, torch.float32)).square().sum())


def _ratio(above: float, below: float) -> float:
    return math.sqrt(above / below) if below > 0 else 0.0


def _batch(model: Autoencoder) -> int:
    """Number of images whose maps are in memory at a time."""
    config = model.config
    return max(1, ELEMENTS // (config.channels * config.paths * math.prod(config.map_size)))


def _tiles(model: Autoencoder, images: Tensor) -> tuple[Tensor, Position]:
    check_images(images)
    parameter, size = next(model.parameters()), model.config.image_size
    return cut(images.to(parameter), size)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore the mode of each module on exit."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

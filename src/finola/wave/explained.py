"""Explained variance: how much of Δx z is a linear function of Δy z, a scale of the wave equation that has a zero.

Δx z = Q Δy z (Eq. 2) is fitted by least squares to one half of the photos and evaluated on the other half. If it holds
for z, it holds for the deviation of z from the mean map of all photos, which is what is measured: a mean that all
photos share would be explained by anything. Three controls belong to the result: Δy z of another photo
(`Explained.shuffled`), images of white noise, and random A and B (`Waves.random`), which explain much, because Δx z and
Δy z are linear in the same ẑ.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from finola.wave.diagonalisation import complement, restrict

if TYPE_CHECKING:
    from finola.wave.analysis import Waves

QUADRANT = "right-down"  # the paper's; each quadrant has its own Q
NEEDED = 5  # differences per channel and half for least squares; K/(n − K) is the share of variance that it overfits
ROUNDING = 1e-12  # relative second moment below which a direction of Δy z consists of rounding errors of float32


@dataclass(frozen=True)
class Explained:
    """Share of the variance of Δx z that Q Δy z explains: 1 if the equation holds, 0 for Q = 0, negative if worse.

    The variance over photos at each position of the right-down quadrant. z is the mean of both orders, without its mean
    over channels.
    """

    fitted: float  # by the Q of least squares; nan with fewer than `NEEDED` differences per channel in each half
    shuffled: float  # the same for Δy z of another photo at the same position
    model_Q: float  # by Q = AB⁻¹ of the model; waves of infinite speed count as not explained
    differences: int  # number of differences of both halves


class Moments:
    """Second central moments of Δx z and Δy z (…, K) in one half of the photos, which determine all least squares."""

    def __init__(self, size: int) -> None:
        self.xx, self.count = 0.0, 0
        self.yy = torch.zeros(size, size, dtype=torch.float64)
        self.xy = torch.zeros(2, size, size, dtype=torch.float64)  # with Δy z of the same image, and of the next one
        self.sums: dict[Hashable, tuple[int, Tensor, Tensor]] = {}  # number of images, Σ Δx z and Σ Δy z by position

    def add(self, dx: Tensor, dy: Tensor, start: Hashable) -> None:
        """Add differences of different images (N, h, w, K), whose paths start at `start`."""
        number, sum_x, sum_y = self.sums.get(start, (0, 0, 0))
        self.sums[start] = number + len(dx), sum_x + dx.sum(0), sum_y + dy.sum(0)
        self._add(dx, dy, dy.roll(1, 0), 1)
        self.count += dx[..., 0].numel()

    def centre(self) -> None:
        """Turn the moments about zero into moments about the mean of each position; call once, after all `add`."""
        for number, sum_x, sum_y in self.sums.values():
            self._add(sum_x, sum_y, sum_y, -1 / number)

    def _add(self, dx: Tensor, dy: Tensor, other: Tensor, factor: float) -> None:
        x, y, other = (part.flatten(0, -2) for part in (dx, dy, other))
        self.xx += factor * float(x.square().sum())
        self.yy += factor * (y.T @ y)
        self.xy += factor * torch.stack([x.T @ y, x.T @ other])

    def fit(self) -> Tensor:
        """Q of least squares for both pairings: (2, K, K)."""
        inverse: Tensor = torch.linalg.pinv(self.yy, rtol=ROUNDING, hermitian=True)
        return self.xy @ inverse

    def error(self, Q: Tensor, pairing: int = 0) -> float:
        """Sum of ‖Δx z − Q Δy z‖²."""
        return self.xx - 2 * float((Q * self.xy[pairing]).sum()) + float(((Q @ self.yy) * Q).sum())


def explained(halves: Sequence[Moments], Q: Tensor) -> Explained:
    """Explained variance of two halves of the photos, for the Q (K, K) of a model and for that of the other half."""
    first, second = halves
    for half in halves:
        half.centre()
    variance, count = first.xx + second.xx, first.count + second.count
    if not variance > 0:
        return Explained(math.nan, math.nan, math.nan, count)
    model = 1 - (first.error(Q) + second.error(Q)) / variance
    if min(first.count, second.count) < NEEDED * len(Q):
        return Explained(math.nan, math.nan, model, count)
    fits = first.fit(), second.fit()
    fitted, shuffled = (
        1 - (second.error(fits[0][pairing], pairing) + first.error(fits[1][pairing], pairing)) / variance
        for pairing in (0, 1)
    )
    return Explained(fitted, shuffled, model, count)


def model_Q(waves: Waves) -> Tensor:
    """Q = AB⁻¹ of a recurrence on the complement of the all-ones vector (C−1, C−1), AB⁺ if B is singular."""
    horizontal, vertical = waves.coefficients.A, waves.coefficients.B
    if waves.basis is None:
        inverse: Tensor = torch.linalg.pinv(restrict(vertical), rtol=waves.noise)
        return restrict(horizontal) @ inverse
    quadrant, N = waves[QUADRANT], complement(len(horizontal))  # V is orthonormal: faster than the pseudo-inverse
    finite = torch.where(quadrant.speeds.isfinite(), quadrant.speeds, 0)
    V = N.T.to(finite) @ quadrant.eigenvectors
    return torch.view_as_real((V * finite) @ V.mH)[..., 0]

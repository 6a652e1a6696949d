"""Ranking of plane waves by their energy in photographs, measured once and bundled as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from finola.errors import InputError

Size = tuple[int, int]
SIXTEENTHS = 16  # periods are whole numbers of sixteenths of the image's side
PERIOD = 17  # slightly more than the side, so that opposite edges may differ
FINE_PERIOD = 34  # half the frequency spacing, for greedy selection
GREEDY_SIDE = 64  # largest side whose pixel covariance is small enough for greedy selection
# Orthonormal opponent basis of RGB, one colour per row: luma, red against blue, green against magenta.
COLOURS = ("luma", "red-blue", "green-magenta")
OPPONENT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 2.0, -1.0]], dtype=torch.float64)
OPPONENT = OPPONENT / OPPONENT.norm(dim=1, keepdim=True)


@dataclass(frozen=True)
class Spectrum:
    """Waves ranked by energy, and the radius that covers the amplitudes of 99 % of the images.

    `ranking` is (R, 3): cycles per period along x (≥ 0) and along y, colour; in order of decreasing energy.
    """

    side: int  # side of the square images it was measured on
    period: int  # period of the waves in sixteenths of the side
    radius: float
    ranking: Tensor

    @classmethod
    def bundled(cls, image_size: Size, coordinates: int = 0) -> Spectrum:
        """Bundled spectrum whose side is closest to `image_size`, among those with enough waves for `coordinates`.

        >>> Spectrum.bundled((64, 64)).side, Spectrum.bundled((64, 64), coordinates=3070).side
        (64, 128)
        """
        side, wanted = math.sqrt(image_size[0] * image_size[1]), _wave_count(coordinates, image_size)

        def shortage_and_distance(spectrum: Spectrum) -> tuple[float, float]:
            return max(0.0, wanted - spectrum.capacity(image_size)), abs(math.log(spectrum.side / side))

        return min(_bundled(), key=shortage_and_distance)

    def capacity(self, image_size: Size) -> float:
        """Number of waves that images of this size can tell apart.

        Greedy selection ends where the remaining waves are nearly dependent. Their number is proportional to the area.
        With more of them the amplitudes grow past the sphere, and the widely spaced waves of another side are better.
        """
        area = image_size[0] * image_size[1] / self.side**2
        return len(self.ranking) * (min(1.0, area) if self.period == FINE_PERIOD else 1.0)

    def choose(self, coordinates: int, image_size: Size) -> tuple[Tensor, Tensor]:
        """Select the waves of highest energy below the Nyquist frequency that fit into `coordinates`.

        Returns waves (K, 3) sorted by colour, and the colours of the means; one coordinate per mean, two per wave.
        """
        means = torch.arange(min(3, coordinates))
        height, width = image_size
        nyquist = self.period / SIXTEENTHS / 2  # cycles per period and pixel
        below = (self.ranking[:, 0] < nyquist * width) & (self.ranking[:, 1].abs() < nyquist * height)
        waves = self.ranking[below]
        waves = waves[: _wave_count(coordinates, image_size)]
        order = torch.argsort(waves[:, 2], stable=True)
        return waves[order].contiguous(), means

    def to_json(self) -> dict[str, object]:
        """Convert to JSON, with the waves as one string of `x,y,colour` triples."""
        waves = " ".join(f"{x},{y},{colour}" for x, y, colour in self.ranking.tolist())
        return {"side": self.side, "period": self.period, "radius": round(self.radius, 4), "waves": waves}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Spectrum:
        """Create a spectrum from the output of `to_json`."""
        triples = [[int(part) for part in triple.split(",")] for triple in str(data["waves"]).split()]
        side, period, radius = (float(str(data[key])) for key in ("side", "period", "radius"))
        return cls(int(side), int(period), radius, torch.tensor(triples, dtype=torch.int64))

    @classmethod
    def read(cls, path: Path, image_size: Size) -> Spectrum:
        """Read the spectrum whose side is nearest to `image_size` from a file written by `finola spectrum`."""
        try:
            content = json.loads(path.expanduser().read_text(encoding="utf-8"))
            spectra = [cls.from_json(entry) for entry in content["spectra"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"The spectrum {path} is not a file written by finola spectrum: {error}.") from error
        side = math.sqrt(image_size[0] * image_size[1])
        return min(spectra, key=lambda spectrum: abs(math.log(spectrum.side / side)))


def _wave_count(coordinates: int, image_size: Size) -> int:
    """Number of waves, two coordinates each, beside up to three means: no more coordinates than pixel values."""
    height, width = image_size
    return max(0, min(coordinates - 3, 3 * height * width - 3) // 2)


@cache
def _bundled() -> list[Spectrum]:
    text = resources.files("finola.wave").joinpath("spectra.json").read_text(encoding="utf-8")
    return [Spectrum.from_json(entry) for entry in json.loads(text)["spectra"]]


def measure_spectrum(batches: Iterable[Tensor], side: int, keep: int = 2048) -> Spectrum:
    """Rank waves by the energy they take from images (N, 3, side, side) in [0, 1].

    Images up to `GREEDY_SIDE`: greedy forward selection, by the remaining energy. Larger images: each wave separately.

    >>> batches = [torch.rand(4, 3, 16, 16)]
    >>> len(measure_spectrum(batches, side=16, keep=20).ranking)
    20
    """
    colours = (torch.einsum("oc,nchw->onhw", OPPONENT.float(), images - 0.5) for images in batches)
    ranking = _rank_greedily(colours, side, keep) if side <= GREEDY_SIDE else _rank_separately(colours, side, keep)
    return Spectrum(side, FINE_PERIOD if side <= GREEDY_SIDE else PERIOD, math.sqrt(1.5), ranking)


def half_plane(side: int, period: int) -> Tensor:
    """All waves below the Nyquist frequency, (R, 2), one of each ±(u, v) and without the mean."""
    most = int(period / SIXTEENTHS * side / 2)
    grid = torch.cartesian_prod(torch.arange(most + 1), torch.arange(-most, most + 1))
    return grid[(grid[:, 0] > 0) | (grid[:, 1] > 0)]


def _rank_separately(batches: Iterable[Tensor], side: int, keep: int) -> Tensor:
    """Rank waves by |correlation|², computed separably with two matrix products per batch."""
    waves = half_plane(side, PERIOD)
    most = int(waves.max())
    u = 2 * math.pi * torch.arange(-most, most + 1) / (PERIOD / SIXTEENTHS * side)
    E = torch.exp(1j * torch.arange(side)[:, None] * u).to(torch.complex64)  # (side, 2·most + 1)
    energy = torch.zeros(3, 2 * most + 1, most + 1, dtype=torch.float64)  # colour, y, x
    for colours in batches:
        along_x = colours.to(torch.complex64) @ E[:, most:]
        energy += (E.T @ along_x).abs().square().sum(1, dtype=torch.float64)
    by_wave = energy[:, waves[:, 1] + most, waves[:, 0]]  # (3, R)
    colour, index = torch.unravel_index(by_wave.flatten().argsort(descending=True)[:keep], by_wave.shape)
    return torch.cat([waves[index], colour[:, None]], dim=1)


def _rank_greedily(batches: Iterable[Tensor], side: int, keep: int) -> Tensor:
    """Rank waves by forward selection on the pixel covariance of each colour, then sort all colours by gain."""
    covariance = torch.zeros(3, side * side, side * side)
    for colours in batches:
        pixels = colours.flatten(2)
        covariance += pixels.transpose(1, 2) @ pixels
    gains, chosen = [], []
    for colour in range(3):
        waves, gain = _forward_selection(covariance[colour].double(), side, keep)
        gains.append(gain)
        chosen.append(torch.cat([waves, torch.full((len(waves), 1), colour)], dim=1))
    return torch.cat(chosen)[torch.cat(gains).argsort(descending=True)][:keep]


def _forward_selection(covariance: Tensor, side: int, keep: int, candidates: int = 900) -> tuple[Tensor, Tensor]:
    """Select up to `keep` waves, each with the largest share of the remaining energy; also return these gains."""
    waves = half_plane(side, FINE_PERIOD)
    position = torch.arange(side, dtype=torch.float64) - side / 2
    y, x = (t.flatten() for t in torch.meshgrid(position, position, indexing="ij"))

    def columns(some: Tensor) -> Tensor:
        phase = 2 * math.pi / (FINE_PERIOD / SIXTEENTHS * side) * (some[:, :1] * x + some[:, 1:] * y)
        return torch.stack([phase.cos(), phase.sin()], dim=1)  # (R, 2, pixels)

    energy = torch.cat([((c @ covariance) * c).sum((1, 2)) for c in map(columns, waves.split(256))])
    waves = waves[energy.argsort(descending=True)[:candidates]]
    Phi = torch.cat([torch.ones(1, side * side, dtype=torch.float64), columns(waves).flatten(0, 1)])
    G, S = Phi @ Phi.T, Phi @ covariance @ Phi.T  # residual Gram matrix of the waves, residual energy of the images
    c = 1 + 2 * torch.arange(len(waves))
    order, gains = [], []
    taken = torch.tensor([0])  # start with the mean
    for _ in range(min(keep, len(waves))):
        H = torch.linalg.pinv(G[taken][:, taken])
        g, s = G[:, taken] @ H, S[:, taken]
        S = S - s @ g.T - g @ s.T + g @ S[taken][:, taken] @ g.T
        G = G - g @ G[taken]
        cc, cs, ss = G[c, c], G[c, c + 1], G[c + 1, c + 1]
        determinant = cc * ss - cs * cs
        gain = (ss * S[c, c] - 2 * cs * S[c, c + 1] + cc * S[c + 1, c + 1]) / determinant.clamp_min(1e-9)
        gain[determinant < 1e-3 * side**4] = -1  # nearly dependent on the selected waves
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        order.append(best)
        gains.append(gain[best])
        taken = c[best] + torch.arange(2)
    return waves[order], torch.stack(gains) if gains else torch.zeros(0, dtype=torch.float64)

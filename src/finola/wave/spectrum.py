"""Which plane waves carry the energy of photographs: measured on a folder once, shipped as a small JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch
from torch import Tensor

Size = tuple[int, int]
PERIOD = 17 / 16  # of the waves, in image sides: slightly above 1, so that opposite edges need not match
# An orthonormal opponent basis of RGB, one colour a row: luma, red against blue, green against magenta.
COLOURS = ("luma", "red-blue", "green-magenta")
OPPONENT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 2.0, -1.0]], dtype=torch.float64)
OPPONENT = OPPONENT / OPPONENT.norm(dim=1, keepdim=True)


@dataclass(frozen=True)
class Spectrum:
    """Waves ranked by energy, and the radius within which 99 % of the photos' amplitudes lie.

    `ranking` is (R, 3): cycles per period along x (≥ 0) and along y, colour; the strongest first.
    """

    side: int  # of the square images it was measured on
    radius: float
    ranking: Tensor

    @classmethod
    def bundled(cls, image_size: Size) -> Spectrum:
        """The shipped spectrum whose side is nearest to `image_size`."""
        spectra = _bundled()
        side = math.sqrt(image_size[0] * image_size[1])
        return min(spectra, key=lambda spectrum: abs(math.log(spectrum.side / side)))

    def choose(self, coordinates: int, image_size: Size) -> tuple[Tensor, Tensor]:
        """The strongest waves that fit into `coordinates` and below Nyquist, and the colours that have a mean.

        Returns waves (K, 3) sorted by colour and the means' colours; one coordinate per mean, two per wave.
        """
        means = torch.arange(min(3, coordinates))
        height, width = image_size
        below = (self.ranking[:, 0] < PERIOD * width / 2) & (self.ranking[:, 1].abs() < PERIOD * height / 2)
        waves = self.ranking[below]
        most = (3 * height * width - 3) // 2  # no more coordinates than pixels
        waves = waves[: min((coordinates - len(means)) // 2, most)]
        order = torch.argsort(waves[:, 2], stable=True)
        return waves[order].contiguous(), means

    def to_json(self) -> dict[str, object]:
        """Compact: one string of `x,y,colour` triples."""
        waves = " ".join(f"{x},{y},{colour}" for x, y, colour in self.ranking.tolist())
        return {"side": self.side, "radius": round(self.radius, 4), "waves": waves}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Spectrum:
        """The way back from `to_json`."""
        triples = [[int(part) for part in triple.split(",")] for triple in str(data["waves"]).split()]
        return cls(int(str(data["side"])), float(str(data["radius"])), torch.tensor(triples, dtype=torch.int64))


@cache
def _bundled() -> list[Spectrum]:
    text = resources.files("finola.wave").joinpath("spectra.json").read_text()
    return [Spectrum.from_json(entry) for entry in json.loads(text)["spectra"]]


def phases(count: int, length: int, origin: float = 0.0) -> Tensor:
    """e^{iu(x − origin)} for 0 … count−1 cycles per period: (length, count), complex128."""
    u = 2 * math.pi * torch.arange(count, dtype=torch.float64) / (PERIOD * length)
    return torch.exp(1j * (torch.arange(length, dtype=torch.float64) - origin)[:, None] * u)


def measure_spectrum(batches: Iterable[Tensor], side: int, keep: int = 2048) -> Spectrum:
    """Rank waves by their energy over batches of images (N, 3, side, side) in [0, 1].

    >>> batches = [torch.rand(4, 3, 16, 16)]
    >>> len(measure_spectrum(batches, side=16, keep=20).ranking)
    20
    """
    count = int(PERIOD * side / 2) + 1
    E = phases(count, side).to(torch.complex64)
    energy = torch.zeros(3, 2 * count - 1, count, dtype=torch.float64)  # colour, y, x
    norms, images = [], 0
    for batch in batches:
        colours = torch.einsum("oc,nchw->nohw", OPPONENT.float(), batch - 0.5)
        along_x = colours.to(torch.complex64) @ E  # (N, 3, H, x)
        down, up = (torch.einsum("nohx,hy->noyx", along_x, F) for F in (E, E.conj()))
        both = torch.cat([up[:, :, 1:].flip(2), down], dim=2)  # y from −(count−1) to count−1
        energy += both.abs().square().double().sum(0)
        # Parseval: the mean colour and, for waves of amplitude a, half of a² each make up the mean square.
        mean = colours.mean((2, 3))
        variance = (colours - mean[..., None, None]).square().mean((1, 2, 3)) * 3
        norms.append((mean.square().sum(1) + 2 * variance).sqrt())
        images += len(batch)
    if not images:
        raise ValueError("a spectrum needs at least one image.")
    y, x = torch.arange(-(count - 1), count), torch.arange(count)
    half_plane = (x[None, :] > 0) | (y[:, None] > 0)  # ±(u, v) are one wave, and 0 is the mean
    energy = torch.where(half_plane, energy, -1.0)
    strongest = torch.argsort(energy.flatten(), descending=True)[:keep]
    strongest = strongest[energy.flatten()[strongest] >= 0]
    colour, row, column = (t for t in torch.unravel_index(strongest, energy.shape))
    ranking = torch.stack([column, row - (count - 1), colour], dim=1)
    return Spectrum(side, float(torch.quantile(torch.cat(norms), 0.99)), ranking)

"""Waves of a model: their energy in a photo, and the image of a single wave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.app.models import Opened, open_model
from finola.app.photos import Photo, shrunk
from finola.evaluation.latent import encode
from finola.tiling import join
from finola.wave.analysis import Quadrant, Waves
from finola.wave.analysis import waves as analyse
from finola.wave.basis import WaveBasis

SIDE = 512
SAMPLES = 4096  # positions used to measure energies


@dataclass(frozen=True)
class Wave:
    """One wave: a channel of ζ, which also represents the channel with the conjugate speed."""

    channel: int
    speed: complex
    words: str

    def place(self) -> tuple[float, float]:
        """Position of the speed in a unit disc: |λ| = 1 at half the radius, infinity on the rim."""
        size = abs(self.speed)
        if math.isinf(size):
            return 1.0, 0.0
        return self.speed.real / (1 + size), self.speed.imag / (1 + size)


@cache
def analysed(name: str) -> Waves:
    """Wave analysis of a model of the page."""
    return analyse(open_model(name).model)


@cache
def waves_of(name: str) -> tuple[Wave, ...]:
    """All moving waves of a model, one per pair of conjugate speeds."""
    found = analysed(name)
    quadrant = found["right-down"]
    channels = found.basis.pairs.tolist() if found.basis is not None else _upper(quadrant)
    speeds = quadrant.speeds.tolist()
    kinds = quadrant.kinds
    return tuple(
        Wave(channel, speeds[channel], found.describe(channel).replace("luma", "brightness"))
        for channel in channels
        if kinds[channel] not in ("static", "undefined")
    )


def _upper(quadrant: Quadrant) -> list[int]:
    """Channels whose speed has a non-negative imaginary part."""
    speeds = quadrant.speeds.tolist()
    return [channel for channel, speed in enumerate(speeds) if not speed.imag < 0]


@cache
def groups(name: str) -> tuple[tuple[int, ...], ...]:
    """Indices of waves, grouped by position in the complex plane."""
    by_position: dict[tuple[float, float], list[int]] = {}
    for number, wave in enumerate(waves_of(name)):
        x, y = wave.place()
        by_position.setdefault((round(x, 4), round(abs(y), 4)), []).append(number)
    return tuple(tuple(numbers) for numbers in by_position.values())


@torch.inference_mode()
def strongest_first(photo: Photo, opened: Opened) -> list[tuple[int, float]]:
    """Index and fraction of energy of every wave in the photo's map z, largest first."""
    quadrant = analysed(opened.name)["right-down"]
    channels = [wave.channel for wave in waves_of(opened.name)]
    z = _map(photo, opened)[0].flatten(1)  # (C, positions)
    z = z[:, :: max(1, z.shape[1] // SAMPLES)]
    energy = _zeta(quadrant.inverse[channels], z).abs().square().mean(1)
    shares = (energy / energy.sum().clamp_min(1e-30)).tolist()
    return sorted(enumerate(shares), key=lambda one: -one[1])


@torch.inference_mode()
def wave_picture(photo: Photo, opened: Opened, number: int) -> tuple[Tensor, Tensor]:
    """Return the displayed photo, uint8 (3, h, w), and one wave, (h, w) in [−1, 1].

    For models initialised with plane waves, this is the wave's contribution to brightness or colour; for other models,
    the real part of its channel of ζ.
    """
    image = shrunk(photo.pixels, SIDE)
    found, channel = analysed(opened.name), waves_of(opened.name)[number].channel
    z = _map(photo, opened)
    cell = opened.model.config.cell
    if found.basis is not None:
        colours = added(found.basis, [channel, channel + 1], z, cell)
        shown = colours[int(colours.square().sum((1, 2)).argmax())]  # the three colours differ only in scale
    else:
        zeta = _zeta(found["right-down"].inverse[channel][None], z[0].flatten(1)).real.reshape(1, 1, *z.shape[-2:])
        shown = F.interpolate(zeta, scale_factor=[float(side) for side in cell], mode="bilinear")[0, 0]
    shown = shown[: image.shape[-2], : image.shape[-1]]
    return image, shown / shown.abs().max().clamp_min(1e-12)


def added(basis: WaveBasis, channels: list[int], z: Tensor, cell: tuple[int, int]) -> Tensor:
    """Contribution of these coordinates, two per plane wave, to the image of z (1, C, H, W): (3, H·cell, W·cell)."""
    vectors = basis.vectors()[:, channels]  # (C, n)
    read = (basis.read_out() @ vectors @ vectors.T).float()  # (3·h·w, C)
    drawn: Tensor = torch.einsum("pc,nchw->nphw", read, z).unflatten(1, (3, *cell))
    return drawn.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)[0]


def _zeta(rows: Tensor, z: Tensor) -> Tensor:
    """Rows of V⁻¹ times z (C, n), in single precision, which suffices for display."""
    rows = rows.to(torch.complex64)
    return torch.complex(rows.real @ z, rows.imag @ z)


def _map(photo: Photo, opened: Opened) -> Tensor:
    """Map z (1, C, H, W) of the downscaled photo, joined over tiles."""
    q, grid, _ = encode(opened.model, shrunk(photo.pixels, SIDE)[None])
    return join(opened.model.propagate(q), grid)

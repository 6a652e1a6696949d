"""Plane waves for wave initialisation: their frequencies and the matrices A, B, A₋, B₋ that propagate them.

Each channel pair (c, s) represents one plane wave of frequency (u, v) and one colour, which contributes
c·cos(u i + v j) + s·sin(u i + v j) to the pixel at offset (i, j) from the cell's origin. One step right rotates the
pair by u·cell, one step down by v·cell, so

    A = √(σ₀² + ε) · V (R_x − I) Vᵀ        B = √(σ₀² + ε) · V (R_y − I) Vᵀ        A₋, B₋ with the inverse rotations,

with the columns of V orthonormal and orthogonal to the all-ones vector. Rotations preserve ‖q‖² = C·σ₀² and thus σ, so
the recurrence equals the inverse Fourier sum. The derivation is in docs/waves.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from finola.config import ModelConfig
from finola.errors import CorruptFileError, InputError
from finola.propagation import EPS, Coefficients, Direction, start_positions
from finola.wave.diagonalisation import reflect
from finola.wave.spectrum import COLOURS, OPPONENT, SIXTEENTHS, Spectrum

ELASTIC_RADIUS = 32.0
"""Radius of the sphere of elastic models, whose coordinates have no ridge: some tiles have large amplitudes."""


class WaveBasis(nn.Module):
    """Plane waves of one model. Coordinates are ordered by colour: the mean, then (c, s) of each pair.

    Frequencies are whole numbers of cycles per period, stored as integers so that a change of dtype is lossless.
    """

    waves: Tensor  # (K, 3): cycles per period along x and along y, colour; sorted by colour
    means: Tensor  # colours that have a mean component
    period: Tensor  # in sixteenths of the image side
    gain: Tensor  # factor from pixel amplitudes to coordinates of q
    pairs: Tensor  # (K,): index of the coordinate c of each wave; s is the next coordinate
    phases: Tensor  # (2, M, K): cosine and sine of the phase at the start of each path, relative to the first path
    share: Tensor  # (M, 1): fraction of the image represented by each path

    def __init__(self, config: ModelConfig, spectrum: Spectrum | None = None) -> None:
        super().__init__()
        if config.channels < 3:
            raise InputError(
                f"Model name {config}: wave initialisation needs at least 3 channels, got {config.channels}."
            )
        self.config = config
        spectrum = spectrum or Spectrum.bundled(config.image_size, config.channels - 2)
        self.register_buffer("period", torch.tensor(spectrum.period))
        self.set_waves(*spectrum.choose(config.channels - 2, config.image_size))
        radius = ELASTIC_RADIUS if config.elastic else spectrum.radius
        gain = math.sqrt(config.channels) / radius
        # Rounded to bfloat16, so that the value is the same in every dtype.
        self.register_buffer("gain", torch.tensor(gain, dtype=torch.bfloat16).to(torch.float32))

    def set_waves(self, waves: Tensor, means: Tensor) -> None:
        """Set the waves and compute the buffers that depend on them."""
        config = self.config
        self.register_buffer("waves", waves)
        self.register_buffer("means", means)
        self.counts = waves[:, 2].bincount(minlength=3).tolist()  # waves of each colour
        self.has_mean = means.bincount(minlength=3).tolist()
        self.register_buffer("pairs", _pairs(waves, means), persistent=False)
        cells = torch.tensor(start_positions(config.start, config.map_size, config.paths)).double()
        down, right = (cells - cells[0]).T[:, :, None]  # (M, 1) each
        theta = right * self.angles("right") + down * self.angles("down")  # (M, K)
        self.register_buffer("phases", torch.stack([theta.cos(), theta.sin()]).float(), persistent=False)
        share = torch.arange(1.0, config.paths + 1)
        self.register_buffer("share", (share / share.sum())[:, None], persistent=False)

    def check_state(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Raise CorruptFileError if the waves to be loaded are invalid for this model."""
        own = {"waves": self.waves, "means": self.means, "period": self.period}
        waves, means, period = (state_dict.get(prefix + key, tensor) for key, tensor in own.items())
        integers = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in (waves, means, period))
        shapes = waves.ndim == 2 and waves.shape[1:] == (3,) and means.ndim == 1 and period.ndim == 0
        if not (integers and shapes and int(period) > 0):
            raise CorruptFileError("basis.waves, basis.means and basis.period do not describe plane waves.")
        size, colours = len(means) + 2 * len(waves), waves[:, 2].tolist()
        if size > self.config.channels - 2 or len(set(means.tolist())) != len(means):
            raise CorruptFileError(
                f"basis.waves has {size} coordinates, more than {self.config.channels} channels allow."
            )
        if not set(colours) | set(means.tolist()) <= {0, 1, 2} or colours != sorted(colours):
            raise CorruptFileError(
                "basis.waves and basis.means must have colours 0, 1 and 2, with waves sorted by colour."
            )

    @property
    def size(self) -> int:
        """Number of coordinates of q that represent the image: one per mean, two per wave."""
        return len(self.means) + 2 * len(self.waves)

    def sizes(self) -> list[int]:
        """Number of coordinates of each colour."""
        return [mean + 2 * count for mean, count in zip(self.has_mean, self.counts, strict=True)]

    @property
    def spare(self) -> int:
        """Number of unused dimensions orthogonal to the all-ones vector, excluding the slack; they are zero."""
        return self.config.channels - 2 - self.size

    def frequencies(self) -> Tensor:
        """Frequencies (u, v) of all pairs in radians per pixel: (K, 2), float64."""
        height, width = self.config.image_size
        period = self.period.item() / SIXTEENTHS * torch.tensor([width, height], dtype=torch.float64)
        return 2 * math.pi * self.waves[:, :2].cpu().double() / period

    def angles(self, direction: Direction) -> Tensor:
        """Rotation angle of each pair for one step in `direction`: (K,), float64."""
        height, width = self.config.cell
        u, v = self.frequencies().unbind(1)
        return {"right": u * width, "left": -u * width, "down": v * height, "up": -v * height}[direction]

    def mean_index(self) -> Tensor:
        """Indices of the mean coordinates, those not used by a pair."""
        taken = torch.zeros(self.size, dtype=torch.bool)
        taken[self.pairs.cpu()] = taken[self.pairs.cpu() + 1] = True
        return (~taken).nonzero()[:, 0]

    def reflect(self, coordinates: Tensor) -> Tensor:
        """Convert coordinates (…, C) to channels (…, C) or back; the first C−1 columns of the reflection are V."""
        return reflect(coordinates)

    def vectors(self) -> Tensor:
        """Orthogonal matrix (C, C), float64, whose columns are the image coordinates, slack, unused ones and 1/√C."""
        return self.reflect(torch.eye(self.config.channels, dtype=torch.float64))

    def coefficients(self) -> Coefficients:
        """Matrices A, B, A₋, B₋ in float64."""
        sigma = math.sqrt(1 + EPS)  # σ₀ = 1
        directions: tuple[Direction, ...] = ("right", "down", "left", "up")
        return Coefficients(*(sigma * self._conjugate(self.rotation(d)) for d in directions))

    def rotation(self, direction: Direction) -> Tensor:
        """Matrix R − I of one step in coordinates: (C, C), zero outside the pairs."""
        theta, c = self.angles(direction), self.pairs.cpu()
        R = torch.zeros(self.config.channels, self.config.channels, dtype=torch.float64)
        R[c, c] = R[c + 1, c + 1] = torch.cos(theta) - 1
        R[c, c + 1] = torch.sin(theta)
        R[c + 1, c] = -torch.sin(theta)
        return R

    def _conjugate(self, matrix: Tensor) -> Tensor:
        return self.reflect(self.reflect(matrix).T).T

    def complete(self, picture: Tensor) -> Tensor:
        """Complete image coordinates (…, size) to q (…, C) with ‖q‖² = C by setting the slack coordinate.

        Coordinates outside the sphere are scaled back onto it.
        """
        channels = self.config.channels
        radius = math.sqrt(channels)
        norm = picture.norm(dim=-1, keepdim=True)
        picture = picture * (0.999 * radius / norm.clamp_min(1e-12)).clamp_max(1.0)
        slack = (channels - picture.square().sum(-1, keepdim=True)).clamp_min(1e-6).sqrt()
        rest = picture.new_zeros(*picture.shape[:-1], self.spare + 1)
        return self.reflect(torch.cat([picture, slack, rest], dim=-1))

    def coordinates(self, q: Tensor) -> Tensor:
        """Image coordinates (…, size) of q (…, C), which the codec stores."""
        return self.reflect(q)[..., : self.size]

    def read_out(self) -> Tensor:
        """Weights of the linear layer from channels to the pixels of one cell: (3·cell_h·cell_w, C), float64."""
        height, width = self.config.cell
        u, v = self.frequencies().unbind(1)
        phase = u * torch.arange(width)[None, :, None] + v * torch.arange(height)[:, None, None]  # (h, w, K)
        pixels = torch.zeros(3, height, width, self.config.channels, dtype=torch.float64)
        c = self.pairs.cpu()
        colour = OPPONENT[self.waves[:, 2].cpu()].T[:, None, None, :]  # (3, 1, 1, K)
        pixels[..., c] = colour * torch.cos(phase)
        pixels[..., c + 1] = colour * torch.sin(phase)
        pixels[..., self.mean_index()] = OPPONENT[self.means.cpu()].T[:, None, None, :]
        return self.reflect(pixels.flatten(0, 2) / self.gain.double().cpu())

    def images(self) -> Tensor:
        """The waves of all coordinates as images of unit amplitude: (3·H·W, size), float64."""
        (row, column), *_ = start_positions(self.config.start, self.config.map_size, self.config.paths)
        height, width = self.config.image_size
        x = torch.arange(width, dtype=torch.float64) - column * self.config.cell[1]
        y = torch.arange(height, dtype=torch.float64) - row * self.config.cell[0]
        u, v = self.frequencies().unbind(1)
        phase = u * x[:, None] + v * y[:, None, None]  # (H, W, K)
        images = torch.zeros(3, height, width, self.size, dtype=torch.float64)
        colour = OPPONENT[self.waves[:, 2].cpu()].T[:, None, None, :]
        c = self.pairs.cpu()
        images[..., c], images[..., c + 1] = colour * torch.cos(phase), colour * torch.sin(phase)
        images[..., self.mean_index()] = OPPONENT[self.means.cpu()].T[:, None, None, :]
        return images.flatten(0, 2)

    def by_frequency(self) -> Tensor:
        """Indices of the coordinates in order of increasing frequency, the means first."""
        frequency = torch.zeros(self.size, dtype=torch.float64)
        frequency[self.pairs.cpu()] = frequency[self.pairs.cpu() + 1] = self.frequencies().norm(dim=1)
        return frequency.argsort(stable=True)

    def split(self, picture: Tensor) -> Tensor:
        """Split image coordinates (N, size) into M unequal shares (N, M, size), relative to the start of each path."""
        c, s = picture[:, None, self.pairs], picture[:, None, self.pairs + 1]  # (N, 1, K)
        cos, sin = self.phases
        shares = picture[:, None].repeat(1, self.config.paths, 1)
        shares[..., self.pairs] = (c * cos + s * sin).to(shares)  # autocast leaves products of two dtypes
        shares[..., self.pairs + 1] = (s * cos - c * sin).to(shares)
        return shares * self.share

    def describe(self, index: int) -> str:
        """Description of a wave for tables and plots.

        >>> basis = WaveBasis(ModelConfig.parse("waves/64x1@16:64"))
        >>> basis.describe(0).split(",")[0]
        'luma'
        """
        u, v = self.frequencies()[index].tolist()
        colour = COLOURS[int(self.waves[index, 2])]
        period = 2 * math.pi / math.hypot(u, v)
        return f"{colour}, {period:.1f} px per cycle towards {math.degrees(math.atan2(v, u)):.0f}°"


def _pairs(waves: Tensor, means: Tensor) -> Tensor:
    pairs, position = [], 0
    for colour in range(3):
        position += int((means == colour).any())
        count = int((waves[:, 2] == colour).sum())
        pairs.append(position + 2 * torch.arange(count))
        position += 2 * count
    return torch.cat(pairs)

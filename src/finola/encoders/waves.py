"""Wave encoder: q by separable least squares on the plane waves of a model, plus an optional trainable refinement.

The last layer of a refinement is zero-initialised, so q is unchanged before training.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.checks import can_read, check_values
from finola.config import ModelConfig
from finola.layers import AttentionPool, at_least_float32, without_autocast
from finola.propagation import start_positions
from finola.serialization import weights_follow
from finola.wave.basis import WaveBasis
from finola.wave.spectrum import OPPONENT, Spectrum

WITHIN = 0.995  # fraction of the sphere's radius, to leave room for a refinement
BISECTIONS = 32
RIDGE = 3e-4  # relative to the mean diagonal; adjacent waves are nearly dependent if the period exceeds the image side


class WaveEncoder(nn.Module):
    """Encode images (N, 3, H, W) to q (N, M, C) with ‖q‖² = C.

    Two small matrix products correlate the image with the cosines and sines of all row and column frequencies. Their
    combinations are the correlations with the plane waves, and one matrix per colour, the inverse of the Gram matrix
    of the waves, gives the amplitudes. No matrix with one row per pixel is needed.

    The Gram matrix is ill-conditioned, so the least squares are computed in at least float32: under autocast, and also
    after `model.bfloat16()`, which leaves the waves and their analysis in float32.
    """

    returns_q = True  # needs no pooling
    column_waves: Tensor  # (W, 2·|u|): cosines, then sines, of every distinct u
    row_waves: Tensor  # (2·|v|, H)
    colour_mix: Tensor  # (3, 3)
    terms: Tensor  # (2, size): indices of the two products of each coordinate in the table of all products
    signs: Tensor  # (size,): sign of the second product

    def __init__(
        self,
        config: ModelConfig,
        spectrum: Spectrum | None = None,
        *,
        stored: bool = True,
    ) -> None:
        """With `stored=False` the state dict excludes `analysis.*`, which is recomputed from the loaded waves."""
        super().__init__()
        self.config = config
        self.set_spectrum(spectrum)
        self.stored = stored
        if not stored:
            # The method is not annotated in torch.
            self.register_state_dict_post_hook(_remove_analysis)  # type: ignore[no-untyped-call]
        self.refinement: nn.Module | None = None
        self.prefilter: nn.Module | None = None

    def set_spectrum(self, spectrum: Spectrum | None) -> None:
        """Use the waves of this spectrum (None: the bundled one) and compute their analysis matrices."""
        self.basis = WaveBasis(self.config, spectrum)
        self._prepare()
        matrices = [torch.empty(n, n) for n in self.basis.sizes()] if weights_follow() else self._solved()
        self.analysis = nn.ParameterList(nn.Parameter(matrix) for matrix in matrices)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WaveEncoder:
        precise = at_least_float32(fn)
        for name, part in self.named_children():
            part._apply(precise if name in ("basis", "analysis") else fn)
        super()._apply(precise, recurse=False)  # type: ignore[no-untyped-call]
        return self

    def _solved(self) -> list[Tensor]:
        """Least-squares analysis matrices: the inverse of the Gram matrix of the waves of each colour."""
        return [torch.linalg.inv(gram).float().contiguous() for gram in self.gram()]

    def _prepare(self) -> None:
        """Compute sines and cosines of the distinct frequencies, and the indices of their products per coordinate."""
        self._eigen: tuple[list[Tensor], Tensor] | None = None
        basis = self.basis
        x, y = self._pixels()
        # Frequency 0, that of the means, is prepended.
        u, u_index = F.pad(basis.frequencies()[:, 0], (1, 0)).unique(return_inverse=True)
        v, v_index = F.pad(basis.frequencies()[:, 1], (1, 0)).unique(return_inverse=True)
        columns, rows = x[:, None] * u, v[:, None] * y
        self.register_buffer("column_waves", torch.cat([columns.cos(), columns.sin()], 1).float(), persistent=False)
        self.register_buffer("row_waves", torch.cat([rows.cos(), rows.sin()], 0).float(), persistent=False)
        self.register_buffer("colour_mix", OPPONENT.float(), persistent=False)

        def place(colour: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return (colour * 2 * len(v) + row) * 2 * len(u) + column

        terms, signs = torch.zeros(2, basis.size, dtype=torch.int64), torch.zeros(basis.size)
        colour, u_cos, v_cos, c = basis.waves[:, 2], u_index[1:], v_index[1:], basis.pairs
        u_sin, v_sin = u_cos + len(u), v_cos + len(v)
        terms[:, c] = torch.stack([place(colour, v_cos, u_cos), place(colour, v_sin, u_sin)])  # cos(a+b)
        terms[:, c + 1] = torch.stack([place(colour, v_cos, u_sin), place(colour, v_sin, u_cos)])  # sin(a+b)
        signs[c], signs[c + 1] = -1, 1
        terms[0, basis.mean_index()] = place(basis.means, v_index[0], u_index[0])
        self.register_buffer("terms", terms, persistent=False)
        self.register_buffer("signs", signs, persistent=False)

    def _pixels(self) -> tuple[Tensor, Tensor]:
        """Coordinates x and y of all columns and rows, relative to the start cell of the first path."""
        config = self.config
        row, column = start_positions(config.start, config.map_size, config.paths)[0]
        height, width = config.image_size
        x = torch.arange(width, dtype=torch.float64) - column * config.cell[1]
        y = torch.arange(height, dtype=torch.float64) - row * config.cell[0]
        return x, y

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        """Use the waves of the loaded weights, whose number per colour determines the shapes of `analysis`."""
        self.basis.check_state(state_dict, f"{prefix}basis.")
        waves = state_dict.get(f"{prefix}basis.waves")
        period = state_dict.get(f"{prefix}basis.period", self.basis.period)
        same = waves is None or (
            torch.equal(waves.cpu(), self.basis.waves.cpu()) and torch.equal(period.cpu(), self.basis.period.cpu())
        )
        if waves is not None and not same:
            device = self.column_waves.device
            self.basis.period = period.cpu().clone()
            self.basis.set_waves(waves.cpu().clone(), state_dict[f"{prefix}basis.means"].cpu().clone())
            self._prepare()
            trainable = any(matrix.requires_grad for matrix in self.analysis)
            sizes = self.basis.sizes()
            self.analysis = nn.ParameterList(nn.Parameter(torch.empty(n, n), trainable) for n in sizes)
            self.to(device)
        if not self.stored:
            state_dict |= {f"{prefix}analysis.{colour}": matrix for colour, matrix in enumerate(self._solved())}
        super()._load_from_state_dict(state_dict, prefix, *args)

    def gram(self) -> list[Tensor]:
        """Gram matrix ΦᵀΦ + ridge over all pixels for each colour, float64, computed from one-dimensional sums."""
        x, y = self._pixels()
        frequencies = self.basis.frequencies().split(self.basis.counts)
        grams = []
        for colour in range(3):
            # The mean is the wave of frequency 0, which has only a cosine.
            mean = self.basis.has_mean[colour]
            u, v = (F.pad(frequency, (mean, 0)) for frequency in frequencies[colour].unbind(1))
            minus = _sum_of_phases(u, x, -1) * _sum_of_phases(v, y, -1)  # Σ e^{i((u−u')x + (v−v')y)}
            plus = _sum_of_phases(u, x, +1) * _sum_of_phases(v, y, +1)
            blocks = torch.stack(  # [[cos·cos, cos·sin], [sin·cos, sin·sin]]
                [
                    torch.stack([(minus + plus).real, (plus - minus).imag], -1),
                    torch.stack([(plus + minus).imag, (minus - plus).real], -1),
                ],
                dim=1,
            )  # (K, 2, K, 2)
            G = blocks.flatten(2).flatten(0, 1) / 2
            if mean:
                keep = torch.arange(len(G) - 1) + (torch.arange(len(G) - 1) > 0)  # all but index 1
                G = G[keep][:, keep]
            grams.append(G + RIDGE * G.diagonal().mean() * torch.eye(len(G), dtype=G.dtype) if len(G) else G)
        return grams

    def correlations(self, images: Tensor) -> Tensor:
        """Correlations with the waves, Φᵀ(image − ½): (N, size)."""
        n, _, height, width = images.shape
        along_x = (images.to(self.column_waves) - 0.5).reshape(-1, width) @ self.column_waves  # (N·3·H, 2·|u|)
        mixed = self.colour_mix @ along_x.reshape(n, 3, -1)  # (N, 3, H·2|u|), smaller than the pixels
        table = (self.row_waves @ mixed.reshape(n, 3, height, -1)).flatten(1)  # (N, 3·2|v|·2|u|)
        return table[:, self.terms[0]] + self.signs * table[:, self.terms[1]]

    def analyse(self, images: Tensor) -> Tensor:
        """Least-squares wave coordinates before refinement: (N, size)."""
        with without_autocast(images.device):
            return _by_colour(self.correlations(images), list(self.analysis)) * self.basis.gain

    def synthesise(self, coordinates: Tensor) -> Tensor:
        """Images (N, 3, H, W) of wave coordinates (N, size): what the recurrence and the exact read-out compute.

        The adjoint of `correlations`: two small matrix products instead of a recurrence over the map.

        >>> encoder = WaveEncoder(ModelConfig.parse("waves/64x1@4:16"))
        >>> images = encoder.synthesise(encoder.analyse(torch.rand(1, 3, 16, 16)))
        >>> torch.allclose(encoder.synthesise(encoder.analyse(images)), images, atol=0.02)  # except for the ridge
        True
        """
        rows, columns = len(self.row_waves), self.column_waves.shape[1]
        amplitudes = coordinates / self.basis.gain
        table = amplitudes.new_zeros(amplitudes.shape[0], 3 * rows * columns)
        table = table.index_add(1, self.terms[0], amplitudes)
        table = table.index_add(1, self.terms[1], self.signs * amplitudes)
        along_y = self.row_waves.T @ table.unflatten(1, (3, rows, columns))  # (N, 3, H, 2·|u|)
        mixed = along_y @ self.column_waves.T  # (N, 3, H, W)
        images: Tensor = (self.colour_mix.T @ mixed.flatten(2)).unflatten(2, mixed.shape[2:]) + 0.5
        return images

    def fit_into_sphere(self, picture: Tensor) -> Tensor:
        """Project coordinates (N, size) outside the sphere into it with the smallest change of the image.

        Least squares constrained to a ball is ridge regression: y(μ) = (1 + μ G⁻¹)⁻¹ y, with μ chosen so that y is on
        the sphere. It mainly reduces large amplitudes of nearly dependent waves, which contribute little to the image;
        scaling y would reduce the contrast instead.
        """
        limit = WITHIN * self.config.channels**0.5
        outside = picture.norm(dim=1) > limit
        if not self.training and can_read(outside) and not bool(outside.any()):
            return picture
        with without_autocast(picture.device):
            return torch.where(outside[:, None], self._shrink(picture, limit), picture)

    def _shrink(self, picture: Tensor, limit: float) -> Tensor:
        """Ridge regression whose coordinates have the norm `limit`."""
        vectors, values = self._directions(picture)
        y = _by_colour(picture, vectors)
        squares = y.detach().square()
        low, high = (squares.new_full((y.shape[0], 1), edge) for edge in (-12.0, 12.0))  # log₁₀ μ
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            norm = (squares / (1 + 10**middle * values).square()).sum(1, keepdim=True).sqrt()
            low, high = torch.where(norm > limit, middle, low), torch.where(norm > limit, high, middle)
        y = y / (1 + 10**high * values)
        return _by_colour(y, [E.T for E in vectors])

    def prepare_export(self) -> None:
        """Compute what must not be computed while a graph is traced."""
        self._directions(self.column_waves)

    def _directions(self, like: Tensor) -> tuple[list[Tensor], Tensor]:
        """Eigenvectors of the Gram matrix of each colour, and all inverse eigenvalues, scaled to a maximum of 1."""
        if like.is_meta and type(like) is Tensor:
            sizes = self.basis.sizes()
            return [like.new_empty(n, n) for n in sizes], like.new_empty(sum(sizes))
        if self._eigen is None:
            found = [torch.linalg.eigh(gram) for gram in self.gram()]
            inverse = torch.cat([1 / values for values, _ in found])
            self._eigen = [vectors.float() for _, vectors in found], (inverse / inverse.max()).float()
        vectors, values = self._eigen
        if (values.device, values.dtype) != (like.device, like.dtype):
            vectors, values = [E.to(like) for E in vectors], values.to(like)
            if type(like) is Tensor:  # copied to the device once, not in every forward
                self._eigen = vectors, values
        return vectors, values

    def forward(self, images: Tensor) -> Tensor:
        check_values(images, training=self.training)
        if self.prefilter is not None:
            images = self.prefilter(images)
        picture = self.basis.split(self.fit_into_sphere(self.analyse(images)))  # (N, M, size)
        if self.refinement is not None:
            picture = picture + self.refinement(images)
        return self.basis.complete(picture).to(images)


class DepthwiseBlock(nn.Module):
    """Residual block of a depthwise 5×5 and two pointwise convolutions, with group norm instead of batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width),
            nn.GroupNorm(1, width),
            nn.Conv2d(width, 2 * width, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class ConvRefiner(nn.Module):
    """Small depthwise CNN from images to an update (N, M, size) of the wave coordinates."""

    def __init__(self, image_size: tuple[int, int], paths: int, size: int, width: int = 64) -> None:
        super().__init__()
        side = min(image_size)
        stem = 4 if side >= 32 else 2 if side >= 16 else 1
        layers: list[nn.Module] = [nn.Conv2d(3, width, stem, stride=stem), DepthwiseBlock(width)]
        side //= stem
        while side > 4:
            wider = min(2 * width, 256)
            layers += [nn.Conv2d(width, wider, 3, stride=2, padding=1), DepthwiseBlock(wider)]
            width, side = wider, -(-side // 2)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(side), nn.Flatten())
        self.last = nn.Linear(width * side * side, paths * size)
        self.paths = paths

    def forward(self, images: Tensor) -> Tensor:
        coordinates: Tensor = self.last(self.features(images - 0.5)).unflatten(1, (self.paths, -1))
        return coordinates


class PooledRefiner(nn.Module):
    """Encoder (Mobile-Former or timm backbone), attention pooling and a linear layer."""

    def __init__(self, encoder: nn.Module, paths: int, size: int, width: int = 512) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = AttentionPool(encoder.channels, width, paths)  # type: ignore[arg-type]
        self.last = nn.Linear(width, size)

    def forward(self, images: Tensor) -> Tensor:
        coordinates: Tensor = self.last(self.pool(self.encoder(images)))
        return coordinates


def _remove_analysis(encoder: nn.Module, state: dict[str, Tensor], prefix: str, _: object) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}analysis.")]:
        del state[key]


def _by_colour(y: Tensor, matrices: list[Tensor]) -> Tensor:
    """Multiply the coordinates of each colour by its matrix."""
    parts = y.split([len(matrix) for matrix in matrices], dim=1)
    return torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)], dim=1)


def _sum_of_phases(u: Tensor, x: Tensor, sign: int) -> Tensor:
    """Sum of phases Σₓ e^{i(u_k + sign·u_l)x}: (K, K), complex128."""
    E = torch.exp(1j * u[:, None] * x)  # (K, X)
    return E @ (E.T if sign > 0 else E.conj().T)

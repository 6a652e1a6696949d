"""One-way waves of a recurrence (§3): speeds Λ, eigenvectors V, and the ζ space, where each channel is one wave.

    Δx z = Q Δy z,  Q = AB⁻¹ = VΛV⁻¹  (Eq. 2)        ζ = V⁻¹z,  β Δxζ = α Δyζ  with  Λ = α/β  (Eq. 4)

The layer norm removes the mean over channels, so A + u·1ᵀ and B + v·1ᵀ are the same recurrence for all u and v, while
AB⁻¹ has another spectrum. The speeds are therefore those on the complement of the all-ones vector: with an orthonormal
basis N (C, C−1) of it, the C − 1 generalised eigenvalues of the pencil (NᵀAN, NᵀBN). `waves(model, printed=True)`
gives the C speeds of AB⁻¹ as Eq. 2 prints it, a convention that depends on u and v (docs/speeds.md).

The paper states the equations for steps right and down; each of the other three quadrants around the start has its
own pair of matrices and therefore its own waves. All results are float64 or complex128, whatever the model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.errors import InputError, UnknownNameError
from finola.propagation import EPS, Coefficients, Direction
from finola.transitions import LinearAfterNorm, NormLinear, Propagation, RealSpeeds
from finola.wave.diagonalisation import (
    KINDS,
    QUADRANTS,
    Diagonalised,
    complement,
    condition,
    diagonalise,
    identical,
    proportional,
    restrict,
    rotating,
    speeds,
)

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.wave.basis import WaveBasis
    from finola.wave.residuals import Measurement


@dataclass(frozen=True)
class Quadrant:
    """Waves of one quadrant. `A` and `B` are the matrices of its two directions.

    There are K waves: C − 1 on the complement of the all-ones vector, where V and V⁻¹ have zero mean over channels;
    C for the printed form of Eq. 2 and for the parametrisation of real speeds by Eq. 8.
    """

    name: str
    A: Tensor  # (C, C) float64
    B: Tensor  # (C, C) float64
    alpha: Tensor  # (K,) complex128
    beta: Tensor  # (K,) complex128
    eigenvectors: Tensor  # V (C, K) complex128
    inverse: Tensor  # V⁻¹ (K, C) complex128
    Q: Tensor | None  # AB⁻¹ (C, C) float64, zero on the all-ones vector unless printed; None if B is singular
    cond_B: float
    cond_V: float
    kinds: list[str]  # per speed: complex, real, unit, infinite, static, or undefined
    description: str  # one-sentence description of the method and the result

    @cached_property
    def speeds(self) -> Tensor:
        """Speeds Λ = α/β (K,): inf where infinite, nan where static or undefined."""
        return speeds(self.alpha, self.beta)

    @cached_property
    def H_A(self) -> Tensor:
        """V⁻¹A (Eq. 7)."""
        return self.inverse @ self.A.to(self.inverse)

    @cached_property
    def H_B(self) -> Tensor:
        """V⁻¹B (Eq. 7)."""
        return self.inverse @ self.B.to(self.inverse)

    def shares(self) -> dict[str, float]:
        """Fraction of the speeds of each kind."""
        return {kind: self.kinds.count(kind) / len(self.kinds) for kind in KINDS}

    def sizes(self, quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)) -> list[float]:
        """Quantiles of |λ| over the waves that move, infinite ones included; nan without any."""
        sizes = self.speeds.abs()
        sizes = sizes[~sizes.isnan()]
        points = torch.tensor(quantiles, dtype=torch.float64)
        return sizes.quantile(points, interpolation="nearest").tolist() if len(sizes) else [math.nan] * len(quantiles)

    @cached_property
    def commutator(self) -> float:
        """Relative commutator ‖ab − ba‖ / (‖a‖ ‖b‖) of a = NᵀAN and b = NᵀBN: 0 if they commute."""
        a, b = restrict(self.A), restrict(self.B)
        return float((a @ b - b @ a).norm() / (a.norm() * b.norm()).clamp_min(1e-300))

    @cached_property
    def identity(self) -> list[tuple[float, float]]:
        """Multiple μ of the identity closest to NᵀAN, and its share of the norm ‖μI‖ / ‖NᵀAN‖; then those of B."""
        parts = [restrict(matrix) for matrix in (self.A, self.B)]
        means = [float(part.trace()) / max(1, len(part)) for part in parts]
        return [
            (mean, abs(mean) * math.sqrt(len(part)) / max(float(part.norm()), 1e-300))
            for mean, part in zip(means, parts, strict=True)
        ]

    def initial(self, q: Tensor) -> Tensor:
        """Transform q, or any vector of z space, (…, C) to V⁻¹q (…, K), the initial condition in ζ space."""
        return _apply(self.inverse, q)

    def project(self, z: Tensor) -> Tensor:
        """Transform z to ζ = V⁻¹z: (N, C, H, W) → complex (N, K, H, W)."""
        return _apply(self.inverse, z.movedim(1, -1)).movedim(-1, 1)

    def unproject(self, zeta: Tensor) -> Tensor:
        """Transform ζ to z = Vζ, real and without its mean over channels: (N, K, H, W) → (N, C, H, W)."""
        return _apply(self.eigenvectors, zeta.movedim(1, -1)).movedim(-1, 1).real

    def psi_hat(self, psi: Tensor) -> Tensor:
        """ψ̂ = (CI − J)Vψ / √(ψᵀVᵀ(CI − J)Vψ) for ψ = V⁻¹φ (…, K), plain transposes (Eqs. 7 and 11–13).

        The root is C·σ. Because normalisation divides by √(σ² + ε), C²ε is added under the root here; then
        H_A ψ̂ = V⁻¹Aφ̂ = Δxψ.
        """
        phi = _apply(self.eigenvectors, psi)
        C = phi.shape[-1]
        centred = C * phi - phi.sum(-1, keepdim=True)  # (CI − J)Vψ
        return centred / ((phi * centred).sum(-1, keepdim=True) + C**2 * EPS).sqrt()


class Waves:
    """Waves of one recurrence. Attributes are those of the right-down quadrant, as in the paper.

    The waves of all quadrants are indexed by name, `waves["left-up"]`, and computed on first access.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        transition: nn.Module | None = None,
        model: Autoencoder | None = None,
        printed: bool = False,
    ) -> None:
        exact = all(matrix.dtype == torch.float64 for matrix in coefficients)
        self.noise = 1e-10 if exact else 1e-6  # relative threshold below which a singular value counts as zero
        self.transition, self.model, self.printed = transition, model, printed
        self.coefficients = Coefficients(*(matrix.detach().double().cpu() for matrix in coefficients))
        self.basis = self._initial_basis()
        self._quadrants: dict[str, Quadrant] = {}

    def __getitem__(self, quadrant: str) -> Quadrant:
        if quadrant not in QUADRANTS:
            raise UnknownNameError(f"Unknown quadrant {quadrant!r}; use one of {', '.join(QUADRANTS)}.")
        if quadrant not in self._quadrants:
            self._quadrants[quadrant] = self._solve(quadrant)
        return self._quadrants[quadrant]

    def _initial_basis(self) -> WaveBasis | None:
        """Plane waves that the model was initialised from, if its matrices have not changed since."""
        from finola.wave.initialisation import wave_basis

        basis = wave_basis(self.model) if self.model is not None else None
        if basis is None:
            return None
        pairs = zip(self.coefficients, basis.coefficients(), strict=True)
        return basis if all((ours - theirs).norm() <= 1e-4 * theirs.norm() for ours, theirs in pairs) else None

    def _solve(self, name: str) -> Quadrant:
        horizontal, vertical = QUADRANTS[name]
        A, B = self.coefficients.matrix(horizontal), self.coefficients.matrix(vertical)
        constructed = self._constructed(horizontal, vertical)
        whole = self.printed or constructed is not None
        a, b = (A, B) if whole else (restrict(A), restrict(B))
        cond_B = math.inf if self.basis is not None else condition(b)  # plane waves: B maps those with v = 0 to 0
        found = constructed
        if found is None:
            found = identical(a, self.noise) if torch.equal(a, b) else diagonalise(a, b, self.noise, cond_B)
        alpha, beta, V, inverse, cond_V, names, description = found
        Q = torch.linalg.solve(b, a, left=False) if cond_B * self.noise < 1 else None
        if not whole:
            N = complement(len(A))
            V, inverse = N.to(V) @ V, inverse @ N.T.to(V)
            Q = None if Q is None else N @ Q @ N.T
            description = f"{description[:-1]}; on the complement of the all-ones vector."
        elif constructed is None:
            description = f"{description[:-1]}; printed form of Eq. 2, which the recurrence does not determine."
        return Quadrant(name, A, B, alpha, beta, V, inverse, Q, cond_B, cond_V, names, description)

    def _constructed(self, horizontal: Direction, vertical: Direction) -> Diagonalised | None:
        """Waves of matrices that are parametrised by their waves: exact plane waves, and real speeds (Eq. 8)."""
        if self.basis is not None:
            vectors = self.basis.vectors()[:, :-1]  # without the all-ones vector
            angles = self.basis.angles(horizontal), self.basis.angles(vertical)
            return rotating(vectors, self.basis.pairs.cpu(), *angles, math.sqrt(1 + EPS))
        if isinstance(self.transition, RealSpeeds):
            return proportional(*_diagonals(self.transition, horizontal, vertical))
        return None

    @property
    def speeds(self) -> Tensor:
        """Λ = α/β (K,): inf where infinite, nan where static or undefined."""
        return self["right-down"].speeds

    @property
    def eigenvectors(self) -> Tensor:
        """Eigenvectors V (C, K), one per column."""
        return self["right-down"].eigenvectors

    @property
    def kinds(self) -> list[str]:
        """Kind of each speed: complex, real, unit, infinite, static or undefined."""
        return self["right-down"].kinds

    @property
    def description(self) -> str:
        """One-sentence description of how the speeds were computed."""
        return self["right-down"].description

    def project(self, z: Tensor, quadrant: str = "right-down") -> Tensor:
        """ζ = V⁻¹z: (N, C, H, W) → complex (N, K, H, W)."""
        return self[quadrant].project(z)

    def describe(self, channel: int) -> str:
        """Description of the plane wave in a channel of ζ; empty if the model was not initialised from waves."""
        if self.basis is not None:
            for index, c in enumerate(self.basis.pairs.tolist()):
                if channel in (c, c + 1):
                    return self.basis.describe(index)
        return ""

    def random(self, seed: int = 231012976) -> Waves:
        """Waves of the same model with random A, B, A₋, B₋ of the scale at initialisation, a control for `residual`.

        The seed is not one of those that models are initialised with.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            coefficients = NormLinear(len(self.coefficients.A)).coefficients()
        return Waves(coefficients, model=self.model)

    def residual(self, images: Tensor | Iterable[Tensor]) -> Measurement:
        """Measure how well the wave equations hold on images; see `finola.wave.residuals.measure_waves`."""
        from finola.wave.residuals import measure_waves

        return measure_waves(self, images)


def waves(model: Autoencoder | LinearAfterNorm | Propagation | Coefficients, *, printed: bool = False) -> Waves:
    """Analyse the one-way waves of a model, a transition, a `Propagation` or four matrices, `finola.Coefficients`.

    There are C − 1 speeds, the same for all matrices that give the same recurrence. `printed`: the C speeds of AB⁻¹
    as in Eq. 2 instead, which A + u·1ᵀ and B + v·1ᵀ change. Exact plane waves and real speeds (Eq. 8) are
    parametrised by their waves, which are reported in both cases.

    >>> from finola.transitions import NormLinear
    >>> found = waves(NormLinear(8))
    >>> found.speeds.shape, found["left-up"].kinds.count("static")
    (torch.Size([7]), 0)
    """
    if isinstance(model, Coefficients | Propagation):
        return Waves(_checked(model.coefficients() if isinstance(model, Propagation) else model), printed=printed)
    transition = getattr(model, "transition", model)
    if not isinstance(transition, LinearAfterNorm):
        name = getattr(model, "config", type(model).__name__)
        raise InputError(
            f"Wave analysis needs a norm+linear transition with matrices A and B, which {name} does not have. "
            "Four matrices are given as finola.Coefficients(A, B, A_minus, B_minus)."
        )
    whole = None if transition is model else model
    return Waves(_checked(transition.coefficients()), transition, whole, printed)  # type: ignore[arg-type]


def _checked(coefficients: Coefficients) -> Coefficients:
    for name, matrix in coefficients._asdict().items():
        if matrix.ndim != 2 or matrix.shape != (len(coefficients.A),) * 2 or not len(matrix):
            raise InputError(
                f"{name} has shape {tuple(matrix.shape)}; all four matrices must be C x C with the same C."
            )
        if matrix.is_meta or not bool(torch.isfinite(matrix).all()):
            raise InputError(
                f"{name} is on the meta device or has NaN or infinite values; wave analysis needs finite values."
            )
    return coefficients


def _diagonals(real: RealSpeeds, horizontal: Direction, vertical: Direction) -> tuple[Tensor, Tensor, Tensor]:
    """Matrix P and diagonals α, β (Eq. 8) of one quadrant."""
    diagonals = {"right": real.alpha, "down": real.beta, "left": real.alpha_minus, "up": real.beta_minus}
    P, alpha, beta = (t.detach().double().cpu() for t in (real.P, diagonals[horizontal], diagonals[vertical]))
    return P, alpha, beta


def _apply(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Multiply vectors on the last axis by `matrix`, in complex128."""
    matrix = matrix.to(vectors.device)
    if vectors.is_complex():
        return F.linear(vectors.to(torch.complex128), matrix)
    vectors = vectors.double()
    return torch.complex(F.linear(vectors, matrix.real), F.linear(vectors, matrix.imag))

"""The one-way waves in a recurrence (§3): speeds Λ, eigenvectors V, and the ζ space in which every channel is one wave.

    Δx z = Q Δy z,  Q = AB⁻¹ = VΛV⁻¹  (Eq. 2)        ζ = V⁻¹z,  β Δxζ = α Δyζ  with  Λ = α/β  (Eq. 4)

The paper writes it for steps right and down; each of the other three quadrants around the start has its own pair of
matrices, and so its own waves. Everything here is float64 or complex128, whatever the model's dtype.
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

from finola.propagation import EPS, Coefficients, Direction
from finola.transitions import LinearAfterNorm, RealSpeeds
from finola.wave.diagonalisation import (
    KINDS,
    QUADRANTS,
    Diagonalised,
    condition,
    diagonalise,
    identical,
    proportional,
    rotating,
    speeds,
)

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.wave.basis import WaveBasis
    from finola.wave.residuals import Measurement


@dataclass(frozen=True)
class Quadrant:
    """The waves of one quadrant. `A` and `B` are the matrices of its two directions."""

    name: str
    A: Tensor  # (C, C) float64
    B: Tensor  # (C, C) float64
    alpha: Tensor  # (C,) complex128
    beta: Tensor  # (C,) complex128
    eigenvectors: Tensor  # V (C, C) complex128
    inverse: Tensor  # V⁻¹ (C, C) complex128
    Q: Tensor | None  # AB⁻¹ (C, C) float64; None where B has no inverse
    cond_B: float
    cond_V: float
    kinds: list[str]  # per speed: complex, real, unit, infinite, static, or undefined
    words: str  # what was done, in one sentence

    @cached_property
    def speeds(self) -> Tensor:
        """Λ = α/β (C,): inf where infinite, nan where static or undefined."""
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
        """Which part of the speeds is of which kind."""
        return {kind: self.kinds.count(kind) / len(self.kinds) for kind in KINDS}

    def initial(self, q: Tensor) -> Tensor:
        """q (…, C), or any vector of z space, → V⁻¹q (…, C): the transformed initial condition."""
        return _apply(self.inverse, q)

    def project(self, z: Tensor) -> Tensor:
        """ζ = V⁻¹z: (N, C, H, W) → complex (N, C, H, W)."""
        return _apply(self.inverse, z.movedim(1, -1)).movedim(-1, 1)

    def unproject(self, zeta: Tensor) -> Tensor:
        """z = Vζ, real: (N, C, H, W) → (N, C, H, W)."""
        return _apply(self.eigenvectors, zeta.movedim(1, -1)).movedim(-1, 1).real

    def psi_hat(self, psi: Tensor) -> Tensor:
        """ψ̂ = (CI − J)Vψ / √(ψᵀVᵀ(CI − J)Vψ) for ψ = V⁻¹φ (…, C), plain transposes (Eqs. 7 and 11–13).

        The root is C·σ. The package's norm divides by √(σ² + ε), so C²ε joins it here, and H_A ψ̂ = V⁻¹Aφ̂ = Δxψ.
        """
        phi = _apply(self.eigenvectors, psi)
        C = phi.shape[-1]
        centred = C * phi - phi.sum(-1, keepdim=True)  # (CI − J)Vψ
        return centred / ((phi * centred).sum(-1, keepdim=True) + C**2 * EPS).sqrt()


class Waves:
    """The waves of one recurrence, a quadrant at a time; its own attributes are those of the paper's one, right-down.

    A quadrant is computed when first asked for: `waves["left-up"]`.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        transition: nn.Module | None = None,
        model: Autoencoder | None = None,
    ) -> None:
        exact = all(matrix.dtype == torch.float64 for matrix in coefficients)
        self.noise = 1e-10 if exact else 1e-6  # below it, relatively, a singular value is rounding
        self.transition, self.model = transition, model
        self.coefficients = Coefficients(*(matrix.detach().double().cpu() for matrix in coefficients))
        self.basis = self._kept_basis()
        self._quadrants: dict[str, Quadrant] = {}

    def __getitem__(self, quadrant: str) -> Quadrant:
        if quadrant not in QUADRANTS:
            raise ValueError(f"quadrant {quadrant!r} is not known: use {', '.join(QUADRANTS)}.")
        if quadrant not in self._quadrants:
            self._quadrants[quadrant] = self._solve(quadrant)
        return self._quadrants[quadrant]

    def _kept_basis(self) -> WaveBasis | None:
        """The plane waves that the model was started from, while its matrices still are theirs."""
        from finola.wave.initialisation import wave_basis

        basis = wave_basis(self.model) if self.model is not None else None
        if basis is None:
            return None
        pairs = zip(self.coefficients, basis.coefficients(), strict=True)
        return basis if all((ours - theirs).norm() <= 1e-4 * theirs.norm() for ours, theirs in pairs) else None

    def _solve(self, name: str) -> Quadrant:
        horizontal, vertical = QUADRANTS[name]
        A, B = self.coefficients.matrix(horizontal), self.coefficients.matrix(vertical)
        found: Diagonalised | None = None
        cond_B = math.inf  # of a constructed basis: the all-ones vector does not move
        if self.basis is not None:
            basis, turns = self.basis, (self.basis.angles(horizontal), self.basis.angles(vertical))
            found = rotating(basis.vectors(), basis.pairs.cpu(), *turns, math.sqrt(1 + EPS))
        else:
            cond_B = condition(B)
            if isinstance(self.transition, RealSpeeds):
                found = proportional(*_diagonals(self.transition, horizontal, vertical))
            elif torch.equal(A, B):
                found = identical(A, self.noise)
        if found is None:
            found = diagonalise(A, B, self.noise, cond_B)
        Q = torch.linalg.solve(B, A, left=False) if cond_B * self.noise < 1 else None
        alpha, beta, V, inverse, cond_V, names, words = found
        return Quadrant(name, A, B, alpha, beta, V, inverse, Q, cond_B, cond_V, names, words)

    @property
    def speeds(self) -> Tensor:
        """Λ = α/β (C,): inf where infinite, nan where static or undefined."""
        return self["right-down"].speeds

    @property
    def alpha(self) -> Tensor:
        """α (C,)."""
        return self["right-down"].alpha

    @property
    def beta(self) -> Tensor:
        """β (C,)."""
        return self["right-down"].beta

    @property
    def eigenvectors(self) -> Tensor:
        """V (C, C), one eigenvector a column."""
        return self["right-down"].eigenvectors

    @property
    def inverse(self) -> Tensor:
        """V⁻¹ (C, C)."""
        return self["right-down"].inverse

    @property
    def Q(self) -> Tensor | None:
        """AB⁻¹ (C, C), or None where B has no inverse."""
        return self["right-down"].Q

    @property
    def H_A(self) -> Tensor:
        """V⁻¹A (C, C)."""
        return self["right-down"].H_A

    @property
    def H_B(self) -> Tensor:
        """V⁻¹B (C, C)."""
        return self["right-down"].H_B

    @property
    def cond_B(self) -> float:
        """Condition number of B."""
        return self["right-down"].cond_B

    @property
    def cond_V(self) -> float:
        """Condition number of V."""
        return self["right-down"].cond_V

    @property
    def kinds(self) -> list[str]:
        """complex, real, unit, infinite, static or undefined, per speed."""
        return self["right-down"].kinds

    @property
    def words(self) -> str:
        """What was done to find the speeds, in one sentence."""
        return self["right-down"].words

    def project(self, z: Tensor, quadrant: str = "right-down") -> Tensor:
        """ζ = V⁻¹z: (N, C, H, W) → complex (N, C, H, W)."""
        return self[quadrant].project(z)

    def unproject(self, zeta: Tensor, quadrant: str = "right-down") -> Tensor:
        """z = Vζ: (N, C, H, W) → (N, C, H, W)."""
        return self[quadrant].unproject(zeta)

    def initial(self, q: Tensor, quadrant: str = "right-down") -> Tensor:
        """q (…, C) → V⁻¹q (…, C)."""
        return self[quadrant].initial(q)

    def psi_hat(self, psi: Tensor, quadrant: str = "right-down") -> Tensor:
        """ψ̂ of ψ (…, C)."""
        return self[quadrant].psi_hat(psi)

    def describe(self, channel: int) -> str:
        """The plane wave that a channel of ζ is, by name; empty where it is none of a wave start."""
        if self.basis is not None:
            for index, c in enumerate(self.basis.pairs.tolist()):
                if channel in (c, c + 1):
                    return self.basis.describe(index)
        return ""

    def residual(self, images: Tensor | Iterable[Tensor]) -> Measurement:
        """How well the wave equation holds on images: see `finola.wave.residuals.measure`."""
        from finola.wave.residuals import measure

        return measure(self, images)


def waves(model: Autoencoder | LinearAfterNorm | Coefficients) -> Waves:
    """The one-way waves of a model, a transition or four matrices.

    >>> from finola.transitions import NormLinear
    >>> found = waves(NormLinear(8))
    >>> found.speeds.shape, found["left-up"].kinds.count("static")
    (torch.Size([8]), 0)
    """
    if isinstance(model, Coefficients):
        return Waves(_checked(model))
    transition = getattr(model, "transition", model)
    if not isinstance(transition, LinearAfterNorm):
        name = getattr(model, "config", type(model).__name__)
        raise ValueError(f"waves are read from the matrices A and B of norm+linear steps, which {name} does not have.")
    whole = None if transition is model else model
    return Waves(_checked(transition.coefficients()), transition, whole)  # type: ignore[arg-type]


def _checked(coefficients: Coefficients) -> Coefficients:
    for name, matrix in coefficients._asdict().items():
        if matrix.ndim != 2 or matrix.shape != (len(coefficients.A),) * 2 or not len(matrix):
            raise ValueError(f"{name} has shape {tuple(matrix.shape)}; all four matrices are C x C, of one C.")
        if matrix.is_meta or not bool(torch.isfinite(matrix).all()):
            raise ValueError(f"{name} holds no numbers, or NaN or infinite ones: no waves can be read from it.")
    return coefficients


def _diagonals(real: RealSpeeds, horizontal: Direction, vertical: Direction) -> tuple[Tensor, Tensor, Tensor]:
    """P, α, β of Eq. 8 for one quadrant."""
    diagonals = {"right": real.alpha, "down": real.beta, "left": real.alpha_minus, "up": real.beta_minus}
    P, alpha, beta = (t.detach().double().cpu() for t in (real.P, diagonals[horizontal], diagonals[vertical]))
    return P, alpha, beta


def _apply(matrix: Tensor, vectors: Tensor) -> Tensor:
    """matrix · v for every v on the last axis, in complex128."""
    matrix = matrix.to(vectors.device)
    if vectors.is_complex():
        return F.linear(vectors.to(torch.complex128), matrix)
    vectors = vectors.double()
    return torch.complex(F.linear(vectors, matrix.real), F.linear(vectors, matrix.imag))

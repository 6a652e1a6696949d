"""Simultaneous diagonalisation of A and B by a basis V of z and a basis W of ẑ,

    A W = V diag(α)        B W = V diag(β)        hence  β Δxζ = α Δyζ  for ζ = V⁻¹z.

A and B are given on the complement of the all-ones vector, as NᵀAN and NᵀBN (`restrict`), because 1ᵀẑ = 0: nothing else
of them drives ẑ (docs/speeds.md). If B is invertible, W = B⁻¹V and this is Q = AB⁻¹ = VΛV⁻¹ with Λ = α/β (§3). If B is
singular, the speeds are the generalised eigenvalues α/β of the matrix pencil (A, B). Directions outside the column
spaces of A and B are static and are split off. The rest is solved with an invertible combination cA + sB:
A(cA + sB)⁻¹ has the same eigenvectors V, and its eigenvalues α/(cα + sβ) are finite even if a speed is infinite.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.propagation import Direction

QUADRANTS: dict[str, tuple[Direction, Direction]] = {
    "right-down": ("right", "down"),  # (A, B), the paper's
    "left-down": ("left", "down"),  # (A₋, B)
    "right-up": ("right", "up"),  # (A, B₋)
    "left-up": ("left", "up"),  # (A₋, B₋)
}

KINDS = ("complex", "real", "unit", "infinite", "static", "undefined")
CONDITION_V = 1e7  # above it V counts as singular; a Jordan block of size 2 with rounding errors has 1/√eps = 7e7
SAME = 1e-8  # relative tolerance for equal speeds


class Diagonalised(NamedTuple):
    """Result of the simultaneous diagonalisation of A and B; α = β = 0 where there is no wave."""

    alpha: Tensor  # (K,) complex128
    beta: Tensor  # (K,) complex128
    V: Tensor  # (K, K) complex128, columns are a basis of z
    V_inverse: Tensor  # (K, K)
    cond_V: float
    kinds: list[str]  # one of KINDS per speed
    description: str  # one-sentence description


def reflect(vectors: Tensor) -> Tensor:
    """Householder reflection e_C ↔ 1/√C of vectors (…, C), in O(C): the all-ones direction becomes the last axis."""
    channels = vectors.shape[-1]
    w: Tensor = vectors.new_full((channels,), -1 / math.sqrt(channels))
    w[-1] += 1
    w = w / w.norm()
    return vectors - 2 * (vectors @ w)[..., None] * w


def complement(channels: int) -> Tensor:
    """Orthonormal basis N (C, C−1) of the complement of the all-ones vector, float64.

    >>> N = complement(4)
    >>> N.shape, bool(N.sum(0).abs().max() < 1e-12)
    (torch.Size([4, 3]), True)
    """
    return reflect(torch.eye(channels, dtype=torch.float64))[:, : channels - 1]


def restrict(matrix: Tensor) -> Tensor:
    """Part of a matrix of the recurrence (C, C) that drives ẑ: NᵀAN (C−1, C−1), the same for A + u·1ᵀ."""
    part = reflect(reflect(matrix).T).T[:-1, :-1]
    return torch.where(part.norm() > 1e-14 * matrix.norm(), part, 0)  # rounding errors of u·1ᵀ alone


def condition(matrix: Tensor) -> float:
    """Condition number σ_max/σ_min, infinite if σ_min is zero up to rounding.

    >>> condition(torch.eye(3))
    1.0
    """
    if not len(matrix):
        return 1.0
    singular_values = torch.linalg.svdvals(matrix)
    largest, smallest = float(singular_values[0]), float(singular_values[-1])
    return largest / smallest if smallest > largest * torch.finfo(matrix.dtype).eps else math.inf


def speeds(alpha: Tensor, beta: Tensor) -> Tensor:
    """Speeds Λ = α/β: infinite where only β is zero, nan where both are."""
    divisor = torch.where(beta == 0, 1, beta)
    real = (alpha.imag == 0) & (divisor.imag == 0)  # real division is exact where complex division rounds
    finite = torch.where(real, (alpha.real / divisor.real).to(alpha), alpha / divisor)
    at_zero = torch.where(alpha == 0, math.nan, math.inf).to(finite)
    return torch.where(beta == 0, at_zero, finite) + 0  # turns −0 into 0


def kinds(alpha: Tensor, beta: Tensor) -> list[str]:
    """Kind of each speed; static where α = β = 0."""
    names = []
    for speed in speeds(alpha, beta).tolist():
        if math.isnan(speed.real):
            names.append("static")
        elif math.isinf(speed.real):
            names.append("infinite")
        elif abs(speed - 1) <= SAME:
            names.append("unit")
        else:
            names.append("real" if abs(speed.imag) <= SAME * abs(speed) else "complex")
    return names


def diagonalise(A: Tensor, B: Tensor, noise: float = 1e-10, cond_B: float | None = None) -> Diagonalised:
    """Diagonalise Q = AB⁻¹, or the matrix pencil (A, B) if B is singular. Never raises.

    `noise` is the relative size below which a singular value counts as zero.

    >>> A, B = torch.eye(2).double() * 2, torch.diag(torch.tensor([1.0, 0.0])).double()
    >>> result = diagonalise(A, B)
    >>> speeds(result.alpha, result.beta).real.round(decimals=9).tolist(), result.kinds
    ([2.0, inf], ['real', 'infinite'])
    """
    cond_B = condition(B) if cond_B is None else cond_B
    if cond_B * noise < 1:
        eigen = _eigenvectors(torch.linalg.solve(B, A, left=False))
        result = _assemble(eigen.values, torch.ones_like(eigen.values), eigen)
        done = "is diagonalised" if all(eigen.good) else "is not fully diagonalisable"
        return _describe(f"Q = AB⁻¹ {done}, cond(B) = {cond_B:.3g}", result)
    method = f"B has no inverse (cond(B) = {cond_B:.3g})"
    found = _solve_pencil(A, B, noise)
    if found is not None:
        return _describe(f"{method}, so the speeds are generalised eigenvalues α/β of the matrix pencil (A, B)", found)
    reached, static = _split(torch.cat([A, B], dim=1), noise)
    V = torch.cat([reached, static], dim=1).to(torch.complex128)
    none = torch.zeros(len(A), dtype=torch.complex128)
    names = ["undefined"] * reached.shape[1] + ["static"] * static.shape[1]
    result = Diagonalised(none, none, V, V.mH, 1.0, names, "")
    return _describe(f"{method} and the matrix pencil (A, B) is singular: Δx z and Δy z have no fixed ratio", result)


def proportional(P: Tensor, alpha: Tensor, beta: Tensor) -> Diagonalised | None:
    """Diagonalise A = P·diag(α), B = P·diag(β) (Eq. 8): V = P, H_A = diag(α). None if P is singular."""
    cond = condition(P)
    if cond > CONDITION_V:
        return None
    method = f"Real speeds α/β of A = P·diag(α) and B = P·diag(β) (Eq. 8); V = P, cond(V) = {cond:.3g}."
    alpha, beta = alpha.to(torch.complex128), beta.to(torch.complex128)
    inverse = torch.linalg.inv(P).to(torch.complex128)
    return Diagonalised(alpha, beta, P.to(torch.complex128), inverse, cond, kinds(alpha, beta), method)


def identical(P: Tensor, noise: float) -> Diagonalised:
    """Diagonalise A = B = P (Eq. 9): all speeds are one, V = P; directions outside the range of P are static."""
    one = torch.ones(len(P), dtype=torch.float64)
    method = "All speeds are one, because A = B (Eq. 9)"
    result = proportional(P, one, one)
    if result is not None:
        return _describe(f"{method}; V = P", result)
    U, S, _ = torch.linalg.svd(P)
    alpha = torch.where(noise * S[0] < S, one, 0).to(torch.complex128)
    U = U.to(torch.complex128)
    result = Diagonalised(alpha, alpha, U, U.mH, 1.0, kinds(alpha, alpha), "")
    return _describe(f"{method}; P has no inverse, so V contains its left singular vectors", result)


def rotating(vectors: Tensor, pairs: Tensor, theta_x: Tensor, theta_y: Tensor, scale: float) -> Diagonalised:
    """Diagonalise wave-initialised matrices, whose steps rotate pairs of orthonormal columns of `vectors`.

    `pairs` (K,) is the first column of each pair; the second is the next column. A pair (c, s) gives two waves
    (c ± is)/√2 with α = scale·(e^{±iθx} − 1) and β = scale·(e^{±iθy} − 1), exactly 0 for whole cycles.
    """
    V = vectors.to(torch.complex128)
    c, s = V[:, pairs], V[:, pairs + 1]
    V[:, pairs], V[:, pairs + 1] = (c + 1j * s) / math.sqrt(2), (c - 1j * s) / math.sqrt(2)

    def steps(theta: Tensor) -> Tensor:
        turn = torch.exp(1j * theta) - 1
        turn = scale * torch.where(turn.abs() < 1e-9, 0, turn)
        step = torch.zeros(V.shape[1], dtype=torch.complex128)
        step[pairs], step[pairs + 1] = turn, turn.conj()
        return step

    alpha, beta = steps(theta_x), steps(theta_y)
    method = (
        f"The {len(pairs)} plane waves this model was initialised from, each with speed (e^{{iu}} − 1)/(e^{{iv}} − 1) "
        "and its conjugate, u and v in radians per step; B has no inverse by construction"
    )
    return _describe(method, Diagonalised(alpha, beta, V, V.mH, 1.0, kinds(alpha, beta), ""))


def _solve_pencil(A: Tensor, B: Tensor, noise: float) -> Diagonalised | None:
    """Diagonalise a matrix pencil with singular B; None if the pencil itself is singular."""
    norm_A, norm_B = (float(torch.linalg.matrix_norm(M, 2)) or 1.0 for M in (A, B))
    A, B = A / norm_A, B / norm_B
    reached, static = _split(torch.cat([A, B], dim=1), noise)  # in z: column space of A and B
    read, _ = _split(torch.cat([A, B]).T, noise)  # in ẑ: row space of A and B
    small_A, small_B = reached.T @ A @ read, reached.T @ B @ read
    if len(small_A) != small_A.shape[1]:
        return None
    c, s, cond = _mixture(small_A, small_B)
    if cond * noise >= 1:
        return None
    eigen = _eigenvectors(torch.linalg.solve(c * small_A + s * small_B, small_A, left=False))
    alpha, beta = eigen.values, (1 - c * eigen.values) / s
    zero = 10 * noise * (alpha.abs() + beta.abs())
    alpha, beta = torch.where(alpha.abs() <= zero, 0, alpha), torch.where(beta.abs() <= zero, 0, beta)

    reached, static = reached.to(eigen.V), static.to(eigen.V)
    still = (0, static.shape[1])  # α = β = 0
    whole = eigen._replace(
        V=torch.cat([reached @ eigen.V, static], dim=1),
        inverse=torch.cat([eigen.inverse @ reached.mH, static.mH]),
        good=F.pad(eigen.good, still, value=True),
    )
    return _assemble(F.pad(norm_A * alpha, still), F.pad(norm_B * beta, still), whole)


def _split(matrix: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of the column space of a (C, 2C) matrix and of its orthogonal complement."""
    U, S, _ = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((noise * S[0] < S).sum())
    return U[:, :rank], U[:, rank:]


def _mixture(A: Tensor, B: Tensor) -> tuple[float, float, float]:
    """Find (c, s) on the unit circle for which cA + sB is best conditioned; also return its 1-norm condition number."""
    best = (1.0, 1.0, math.inf if len(A) else 1.0)
    for k in range(8 if len(A) else 0):
        angle = math.pi * (k + 0.4) / 8
        c, s = math.cos(angle), math.sin(angle)
        mixture = c * A + s * B
        inverse, failed = torch.linalg.inv_ex(mixture)
        if not failed:
            cond = float(torch.linalg.matrix_norm(mixture, 1) * torch.linalg.matrix_norm(inverse, 1))
            best = min(best, (c, s, cond), key=lambda found: found[2])
    return best


class _Eigen(NamedTuple):
    values: Tensor  # (k,)
    V: Tensor  # (k, k), unit columns
    inverse: Tensor
    cond: float
    good: Tensor  # (k,) bool: which eigenvalues are well conditioned


def _eigenvectors(M: Tensor) -> _Eigen:
    """Eigenvalues and eigenvectors of M; ill-conditioned eigenvalues of a non-diagonalisable M are not `good`.

    Their columns of V are replaced by an orthonormal basis of the orthogonal complement of the well-conditioned left
    eigenvectors, so that the well-conditioned channels remain decoupled from the others.
    """
    values, V = torch.linalg.eig(M)
    good = torch.ones(len(M), dtype=torch.bool)
    cond = condition(V)
    if cond < CONDITION_V:
        return _Eigen(values, V, torch.linalg.inv(V), cond, good)
    from scipy.linalg import eig

    values, left, V = (torch.from_numpy(part).to(torch.complex128) for part in eig(M.numpy(), left=True, right=True))
    good = (left.conj() * V).sum(0).abs() > 1 / CONDITION_V  # for unit vectors: 1 / condition number of the eigenvalue
    V[:, ~good] = torch.linalg.qr(left[:, good], mode="complete")[0][:, int(good.sum()) :]
    cond = condition(V)
    if cond >= CONDITION_V:
        good, V, cond = torch.zeros_like(good), torch.eye(len(M), dtype=torch.complex128), 1.0
    return _Eigen(values, V, torch.linalg.inv(V), cond, good)


def _assemble(alpha: Tensor, beta: Tensor, eigen: _Eigen) -> Diagonalised:
    length = torch.hypot(alpha.abs(), beta.abs())
    scale = torch.where(eigen.good & (length > 0), 1 / length.clamp_min(1e-300), 0)
    alpha, beta = alpha * scale, beta * scale
    names = kinds(alpha, beta)
    names = [kind if good else "undefined" for kind, good in zip(names, eigen.good.tolist(), strict=True)]
    return Diagonalised(alpha, beta, eigen.V, eigen.inverse, eigen.cond, names, "")


def _describe(method: str, result: Diagonalised) -> Diagonalised:
    """Set `description`: the method, cond(V), and the number of infinite, static and undefined speeds."""
    meanings = {
        "infinite": "infinite (no change along y)",
        "static": "static (no change at all)",
        "undefined": "undefined (no eigenvector)",
    }
    found = [f"{result.kinds.count(kind)} {meaning}" for kind, meaning in meanings.items() if kind in result.kinds]
    return result._replace(description="; ".join([method, f"cond(V) = {result.cond_V:.3g}", *found]) + ".")

"""Elastic latents: the q of each tile has a length of its own.

The waves of a model span a space of tiles. With the Gram matrix ΦᵀΦ = L Lᵀ, p = L⁻¹ Φᵀ(x − ½) are orthonormal
coordinates of the projection of a tile x onto that space, and L⁻ᵀ p are the amplitudes of its waves. A codebook holds
G orthogonal matrices U_g, fitted to photos such that a few components of U_gᵀ p represent a tile of kind g well. A
tile is described by an index g, a length k, and the first k components of U_gᵀ p; the others are zero. The recurrence,
the slack coordinate and the decoder are the same for all g and k.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from finola.errors import InputError
from finola.serialization import weights_follow
from finola.wave.basis import WaveBasis

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
"""Lengths that a tile may have, besides the full length."""
NUMBER_BITS = 32  # of one latent; side information is counted in numbers of this size
REFERENCE_PIXELS = 256 * 256  # numbers of latents are given for a photo of this size
BISECTIONS = 40
RIDGE = 1e-8  # relative to the mean diagonal of the Gram matrix, for waves that are numerically dependent


class Codebook(nn.Module):
    """Orthonormal coordinates of tiles in the span of the waves of a model, and the codebook of rotations.

    Only the bases are stored; all other tensors follow from the waves.
    """

    bases: Tensor  # (G, D, D): U_g, basis vectors in columns
    images: Tensor  # (3·H·W, D): orthonormal basis of the span, as tiles
    to_waves: Tensor  # (D, D): p → wave coordinates of q

    def __init__(self, basis: WaveBasis, size: int) -> None:
        super().__init__()
        rotation = torch.eye(basis.size)[:, basis.by_frequency()]
        self.register_buffer("bases", rotation.repeat(size, 1, 1))
        if not weights_follow():
            self.set_basis(basis)

    def set_basis(self, basis: WaveBasis) -> None:
        """Compute the orthonormal basis of the span of these waves."""
        Phi = basis.images()  # (3·H·W, D), float64
        gram = Phi.T @ Phi
        L = torch.linalg.cholesky(gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype))
        images = torch.linalg.solve_triangular(L, Phi.T, upper=False).T
        to_waves = torch.linalg.inv(L) * basis.gain.double().cpu()  # row vectors: a = p L⁻¹
        device = self.bases.device
        self.register_buffer("images", images.float().contiguous().to(device), persistent=False)
        self.register_buffer("to_waves", to_waves.float().contiguous().to(device), persistent=False)

    @property
    def lengths(self) -> Tensor:
        """All lengths that a tile may have, ascending: (K,)."""
        full = self.bases.shape[1]
        lengths = [*(length for length in LENGTHS if length < full), full]
        return torch.tensor(lengths, device=self.bases.device)

    @property
    def side_bits(self) -> float:
        """Bits of the index and the length of one tile, with a code of fixed length."""
        return side_bits(len(self.bases), len(self.lengths))

    def coordinates(self, tiles: Tensor) -> Tensor:
        """Project tiles (T, 3, H, W) onto the span of the waves: p (T, D)."""
        return (tiles - 0.5).flatten(1) @ self.images

    def superpose(self, p: Tensor, size: tuple[int, int]) -> Tensor:
        """Tiles (T, 3, *size) as superpositions of the waves with coordinates p (T, D).

        Equals Eq. 1 and the exact read-out, which are linear, but is one matrix product instead of H·W steps.
        """
        return torch.unflatten(p @ self.images.T + 0.5, 1, (3, *size))

    def rotated(self, p: Tensor) -> Tensor:
        """Components of p (…, D) in every basis of the codebook: (…, G, D)."""
        rotated: Tensor = torch.einsum("...d,gdk->...gk", p, self.bases)
        return rotated

    def errors(self, rotated: Tensor) -> Tensor:
        """Squared error within the span for every basis and length: (…, G, K)."""
        beyond = torch.arange(rotated.shape[-1], device=rotated.device)[:, None] >= self.lengths
        return rotated.square() @ beyond.to(rotated)

    @torch.no_grad()
    def choose(self, p: Tensor, *, budget: float | None = None, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Choose the basis and the length of each tile p (T, D) of one photo: two tensors (T,).

        The photo has at most `budget` numbers in all, of which side information (basis and length of each tile) is a
        part, or every tile has `length` numbers.
        """
        errors = self.errors(self.rotated(p))
        if length is not None:
            index = errors[..., self.length_index(length)].argmin(1)
            return index, torch.full_like(index, length)
        return share_out(errors, self.lengths, budget or math.inf)

    def length_index(self, length: int) -> int:
        """Index of a length in `lengths`; raises InputError if a tile cannot have it."""
        possible: list[int] = self.lengths.tolist()
        if length not in possible:
            raise InputError(f"A tile cannot have {length} latents; possible are {', '.join(map(str, possible))}.")
        return possible.index(length)

    def encode(self, p: Tensor, index: Tensor, length: Tensor) -> Tensor:
        """Values (T, D) of tiles p (T, D): the first components in the basis of each tile, then zeros."""
        kept = torch.arange(p.shape[1], device=p.device) < length[:, None]
        return torch.where(kept, self.components(p, index), 0.0)

    def components(self, p: Tensor, index: Tensor) -> Tensor:
        """Components of p (T, D) in the basis `index` (T,) of each tile: (T, D)."""
        return self._by_basis(p, index, self.bases)

    def decode(self, values: Tensor, index: Tensor) -> Tensor:
        """Coordinates p (T, D) of components (T, D) in the basis `index` (T,) of each tile."""
        return self._by_basis(values, index, self.bases.transpose(1, 2))

    def _by_basis(self, rows: Tensor, index: Tensor, matrices: Tensor) -> Tensor:
        """Multiply each row by the matrix of its basis."""
        order = index.argsort(stable=True)
        counts = index.bincount(minlength=len(matrices)).tolist()
        products = [part @ matrix for part, matrix in zip(rows[order].split(counts), matrices, strict=True)]
        return torch.cat(products)[order.argsort()]


def side_bits(bases: int, lengths: int) -> float:
    """Bits of the index and the length of one tile, with a code of fixed length."""
    return math.log2(bases * lengths)


def share_out(errors: Tensor, lengths: Tensor, budget: float) -> tuple[Tensor, Tensor]:
    """Basis and length of each tile (T,) of a photo with at most `budget` numbers, side information included.

    `errors` (T, G, K) are the squared errors of every basis and length, `lengths` (K,) the lengths.
    """
    tiles, bases, count = errors.shape
    side = math.ceil(tiles * side_bits(bases, count) / NUMBER_BITS)
    choice = allocate(errors.flatten(1), lengths.repeat(bases), budget - side)
    return choice // count, lengths[choice % count]


def allocate(errors: Tensor, lengths: Tensor, budget: float) -> Tensor:
    """Choose one of K options for each of T tiles: least total error such that the lengths sum to at most `budget`.

    `errors` is (T, K) and `lengths` (K,). Every tile minimises error + λ·length, and λ is found by bisection, so the
    result is on the convex hull of all allocations.

    >>> errors = torch.tensor([[4.0, 1.0, 0.0], [9.0, 3.0, 0.0]])
    >>> allocate(errors, torch.tensor([1, 2, 3]), budget=5).tolist()
    [1, 2]
    """
    errors = errors.to(torch.promote_types(errors.dtype, torch.float32))  # bfloat16 cannot count latents
    cost = lengths.to(errors)
    choice = errors.argmin(1)  # λ = 0
    if float(cost[choice].sum()) <= budget:
        return choice
    shortest = torch.where(cost == cost.min(), errors, math.inf).argmin(1)
    if float(cost[shortest].sum()) > budget:
        raise InputError(
            f"{budget:.0f} latents are too few for {len(errors)} tiles: each needs at least {int(cost.min())}. "
            "Raise the number of latents."
        )
    low, high = -30.0, 30.0  # log₂ λ
    choice = shortest
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        tried = (errors + 2.0**middle * cost).argmin(1)
        if float(cost[tried].sum()) > budget:
            low = middle
        else:
            high, choice = middle, tried
    return choice

"""Fit the codebook of an elastic model to photos: G orthonormal bases, each adapted to one kind of tile.

Alternates two steps, as k-means does: every tile chooses the basis and length that minimise its error plus λ·length,
with one λ for each photo such that its tiles share the latents of the photo; every basis becomes the KLT (the
eigenvectors of the second moments) of the tiles that chose it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finola.wave.codebook import Codebook, allocate

LATENTS = 64  # mean number per tile, which fixes λ
PRIOR = 0.01  # weight of the second moments of all tiles in each basis, so that rare kinds keep a sensible order
PATTERN = 64  # leading components whose relative magnitudes give the first clusters
CLUSTER_STEPS = 8
BATCH = 8192  # tiles whose components are computed together


@torch.no_grad()
def fit_codebook(codebook: Codebook, p: Tensor, tiles_per_photo: int, *, steps: int = 6) -> list[float]:
    """Fit the bases to coordinates p (T, D) of tiles, `tiles_per_photo` consecutive ones from each photo.

    Returns the mean squared error per tile at every step, which decreases.
    """
    count = len(codebook.bases)
    everything = p.T @ p
    prior = PRIOR * everything / everything.trace()
    global_basis = _eigenvectors(everything)
    labels = _cluster(p @ global_basis[:, :PATTERN], count)
    errors = []
    for _ in range(steps):
        bases = []
        for g in range(count):
            own = p[labels == g]
            moments = own.T @ own
            bases.append(_eigenvectors(moments / moments.trace().clamp_min(1e-12) + prior))
        codebook.bases.copy_(torch.stack(bases))
        labels, error = _assign(codebook, p, tiles_per_photo)
        errors.append(error)
    return errors


def _eigenvectors(moments: Tensor) -> Tensor:
    """Eigenvectors in order of decreasing eigenvalue, with signs such that results do not depend on the solver."""
    vectors = torch.linalg.eigh(moments.double())[1].flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    signed: Tensor = vectors * largest.sign()
    return signed.float()


def _cluster(components: Tensor, count: int) -> Tensor:
    """First labels: spherical k-means on the square roots of the magnitudes, from random tiles (fixed seed)."""
    pattern = components.abs().sqrt()
    pattern = pattern / pattern.norm(dim=1, keepdim=True).clamp_min(1e-12)
    generator = torch.Generator().manual_seed(0)
    centres = pattern[torch.randperm(len(pattern), generator=generator)[:count]]
    for _ in range(CLUSTER_STEPS):
        labels = (pattern @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, labels, pattern)
        centres = sums / sums.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return torch.argmax(pattern @ centres.T, 1)


def _assign(codebook: Codebook, p: Tensor, tiles_per_photo: int) -> tuple[Tensor, float]:
    """Basis that each tile chooses, and the mean squared error per tile."""
    errors = torch.cat([codebook.errors(codebook.rotated(part)).flatten(1) for part in p.split(BATCH)])
    lengths = codebook.lengths.repeat(len(codebook.bases))
    choices = torch.cat(
        [allocate(photo, lengths, LATENTS * tiles_per_photo) for photo in errors.split(tiles_per_photo)]
    )
    chosen = errors.gather(1, choices[:, None])
    return choices // len(codebook.lengths), float(chosen.mean())

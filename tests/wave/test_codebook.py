"""Allocation of latents, and fitting of the codebook."""

from __future__ import annotations

import itertools

import pytest
import torch

import finola
from finola.errors import InputError
from finola.wave.codebook import allocate
from finola.wave.codebook_fit import fit_codebook


def test_allocation_is_optimal_among_those_with_the_same_total() -> None:
    lengths = torch.tensor([1, 2, 4])
    errors = torch.tensor([[9.0, 5.0, 1.0], [8.0, 1.0, 0.5], [3.0, 2.5, 2.4], [20.0, 6.0, 0.0]], dtype=torch.float64)
    for budget in (4, 6, 8, 11, 16):
        choice = allocate(errors, lengths, budget)
        total = int(lengths[choice].sum())
        assert total <= budget
        least = min(
            float(errors[torch.arange(4), torch.tensor(other)].sum())
            for other in itertools.product(range(3), repeat=4)
            if int(lengths[torch.tensor(other)].sum()) <= total
        )
        assert float(errors[torch.arange(4), choice].sum()) == pytest.approx(least)


def test_too_few_latents_raise() -> None:
    with pytest.raises(InputError, match="2 latents"):
        allocate(torch.rand(3, 2), torch.tensor([1, 2]), 2)


def test_fitting_reduces_the_error_and_keeps_bases_orthonormal() -> None:
    codebook = finola.create("waves+nets/32x1@4:16+elastic2").encoder.codebook
    size = codebook.bases.shape[1]
    # Two kinds of tiles, each with its energy in a few directions of its own.
    rotations = [torch.linalg.qr(torch.randn(size, size))[0] for _ in range(2)]
    scale = 2.0 ** -torch.arange(size)
    p = torch.cat([torch.randn(160, size) * scale @ rotation.T for rotation in rotations])
    p = p[torch.randperm(len(p))]
    errors = fit_codebook(codebook, p, tiles_per_photo=16, steps=5)
    assert errors == sorted(errors, reverse=True)
    identity = torch.eye(size).expand(2, -1, -1)
    torch.testing.assert_close(codebook.bases.transpose(1, 2) @ codebook.bases, identity, atol=1e-4, rtol=0)

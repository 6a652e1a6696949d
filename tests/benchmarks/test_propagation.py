from __future__ import annotations

import pytest
import torch
from speed.machine import peak_memory
from speed.propagation import Case, measure, training_memory, walk_every_position

from finola.propagation import propagate
from finola.transitions import NormLinear

CPU = torch.device("cpu")


@pytest.mark.parametrize("side", [1, 2, 5, 6])
def test_the_sequential_baseline_gives_the_same_map(side):
    transition = NormLinear(8).double()
    q = torch.randn(1, 1, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = propagate(q, transition, (side, side))[0].permute(1, 2, 0)
        assert torch.allclose(walk_every_position(q[:, 0], transition.coefficients(), side), expected, atol=1e-12)


def test_flops_of_a_case_equal_the_formula():
    assert Case(16, 2, 3, 8).flops == 4 * 16**2 * 63 * 6
    assert Case(16, 2, 3, 8, train=True).flops == 3 * Case(16, 2, 3, 8).flops
    row = measure(Case(16, 2, 1, 4), CPU)
    assert row["share_of_gemm"] == pytest.approx(row["gflops"] / row["gemm_gflops"])


def test_our_backward_keeps_less_than_plain_autograd():
    assert training_memory(Case(64, 32, 1, 16, train=True), CPU)["ratio"] < 0.6


def test_a_view_of_what_was_there_before_is_no_new_memory():
    weight = torch.randn(100, 100)
    assert peak_memory(lambda: weight.T) == 0
    assert peak_memory(lambda: weight.T @ weight) == 40_000

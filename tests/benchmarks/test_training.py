"""Measurements of FLOPs, memory and speed."""

from __future__ import annotations

import json

import pytest
import torch
from bench import main
from speed.machine import PeakMemory, fit_line, flops, gemm_rate, peak_memory
from speed.training import memory_by_area
from training.runs import TINY, tiny

from finola.propagation import Coefficients, propagate


def test_propagation_flops_match_the_formula() -> None:
    C, H, W, N, M = 16, 6, 8, 3, 2
    q, coefficients = torch.randn(N, M, C), Coefficients(*torch.randn(4, C, C))
    formula = 4 * C**2 * (H * W - 1) * N * M  # both orders
    assert formula / 2 < flops(lambda: propagate(q, coefficients, (H, W))) <= formula


def test_peak_memory_counts_simultaneous_allocations() -> None:
    size = 4 * 1000

    def chain() -> None:
        x = torch.ones(1000)
        for _ in range(10):
            x = x + 1

    assert peak_memory(chain) == 2 * size
    kept: list[torch.Tensor] = []
    assert peak_memory(lambda: kept.extend(torch.ones(1000) for _ in range(10))) == 10 * size
    with PeakMemory() as memory:
        x = torch.ones(1000)
        y = x.view(10, 100)[2:4]  # a view holds nothing of its own
    assert memory.peak == size and y.shape == (2, 100)


def test_memory_is_linear_in_the_map_s_area() -> None:
    # A decoder that is the same at every size of cell, as a refinement on pixels is not.
    words = ("model.name=waves/32x1@16:64", "optimiser.groups={}")
    found = memory_by_area(tiny(*words), torch.device("cpu"))
    assert [row["map"] for row in found["bytes_per_image"]] == [8, 16, 32, 64]
    assert found["lines"]["step"]["r_squared"] > 0.999
    # Propagation alone grows no faster than the area: the buffers of its weight gradients have a largest size.
    bytes_per_position = [row["propagation"] / row["area"] for row in found["bytes_per_image"]]
    assert bytes_per_position[1:] == sorted(bytes_per_position[1:], reverse=True)


def test_a_line_is_fitted() -> None:
    assert fit_line([0, 1, 2], [1, 3, 5]) == pytest.approx((2, 1, 1))


def test_gemm_speed_is_plausible() -> None:
    assert gemm_rate(torch.device("cpu"), rows=16, channels=64) > 1e6


def test_command_prints_all_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "smoke", *TINY, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["images_per_second"] > 0 and printed["flops_per_image"] > 0 and printed["gemm_flops_per_second"] > 0
    assert 0 <= printed["loading"]["share"] < 1 and 0 <= printed["loading"]["wait_share"] < 1
    assert printed["share_of_gemm"] > 0
    main(["train", "smoke", *TINY])
    assert "images/s" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["propagation", "tile32"], ["train", "--quick"], ["codec", "tile32", "seed=1"]])
def test_options_of_another_subject_are_rejected(words: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2

"""FLOPs and bytes are those of the operations, and no operation is faster than its roof."""

from __future__ import annotations

import pytest
import torch
from speed.machine import flops
from speed.roofline import Roofline, bandwidth, bounds


def test_flops_are_those_of_torch_s_own_counter() -> None:
    layer, images = torch.nn.Conv2d(8, 16, 3, padding=1), torch.rand(2, 8, 10, 10)

    def step() -> None:
        layer(images).square().sum().backward()

    with Roofline() as counted:
        step()
    assert sum(counted.flops.values()) == flops(step)


def test_a_grouped_convolution_s_backward_is_twice_its_forward() -> None:
    layer, images = torch.nn.Conv2d(8, 8, 3, groups=8, bias=False), torch.rand(2, 8, 10, 10, requires_grad=True)
    forward = flops(lambda: layer(images))
    assert forward == 2 * 2 * 8 * 8 * 8 * 9 and flops(lambda: layer(images).sum().backward()) == 3 * forward


def test_a_view_moves_nothing_and_a_sum_reads_everything_once() -> None:
    x = torch.rand(1000)
    with Roofline() as counted:
        x.view(10, 100).transpose(0, 1)
    assert sum(counted.bytes.values()) == 0
    with Roofline() as counted:
        x.sum()
    assert sum(counted.bytes.values()) == 4004


def test_depthwise_convolutions_stand_apart_and_are_bound_by_memory() -> None:
    deep, full = (torch.nn.Conv2d(64, 64, 3, padding=1, groups=groups, bias=False) for groups in (64, 1))
    images = torch.rand(4, 64, 32, 32)
    with Roofline() as counted:
        full(deep(images))
    assert set(counted.flops) == {"depthwise convolution", "convolution"}
    times = counted.seconds(200e9, 10e9)
    assert times["depthwise convolution"] == counted.bytes["depthwise convolution"] / 10e9
    assert times["convolution"] == counted.flops["convolution"] / 200e9


def test_bounds_add_up() -> None:
    device = torch.device("cpu")
    a = torch.rand(300, 300)
    found = bounds(lambda: a @ a, seconds=1.0, flops_per_second=1e9, device=device)
    assert found["roofline_seconds"] == pytest.approx(2 * 300**3 / 1e9)
    assert found["memory_bound_share"] == pytest.approx(0) and found["share_of_roofline"] == found["roofline_seconds"]
    assert bandwidth(device, repeats=1) > 0

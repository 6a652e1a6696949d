from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sequential import sequential, walk

import finola
from finola.propagation import CORNERS, EPS, Coefficients, normalise, propagate, start_positions
from finola.transitions import (
    BatchNormLinear,
    CommutingSpeeds,
    Linear,
    NormLinear,
    NormMLP,
    RealSpeeds,
    Repetition,
    Transition,
    UnitSpeeds,
)

C = 6
TRANSITIONS = [NormLinear, RealSpeeds, UnitSpeeds, CommutingSpeeds, Linear, Repetition, NormMLP, BatchNormLinear]
SIZES = [(1, 1), (1, 5), (4, 1), (3, 4), (5, 5), (4, 6)]


def transition_of(kind: type[Transition], dtype: torch.dtype = torch.float64) -> Transition:
    torch.manual_seed(0)
    transition = kind(C).to(dtype).eval()
    if isinstance(transition, BatchNormLinear):  # statistics that a training run would have left behind
        transition.norm.running_mean.normal_()
        transition.norm.running_var.uniform_(0.5, 2)
    return transition


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).norm() / b.norm().clamp_min(1e-300)).detach())


@pytest.mark.parametrize("kind", TRANSITIONS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("start", ["center", "scatter", "bottom-left"])
# Rounding grows with the steps of a path: some 10 eps per step in float32, over at most 9 steps, measured 3e-6 at most.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-5)])
def test_parallel_equals_sequential_in_values_and_gradients(kind, size, start, dtype, tolerance):
    transition = transition_of(kind, dtype)
    q = torch.randn(2, 3, C, dtype=dtype, requires_grad=True)
    weight = torch.randn(2, C, *size, dtype=dtype)  # a loss that no symmetry can hide in
    inputs = [q, *transition.parameters()]

    results = []
    for z in (
        sequential(q, transition, size, start_positions(start, size, 3)),
        propagate(q, transition, size, start),  # step by step
        propagate(q, transition.prepared(), size, start),  # with matrices: in few and large products
    ):
        gradients = torch.autograd.grad((z * weight).sum(), inputs, allow_unused=True)
        results.append((z, gradients))
    (reference, reference_gradients), *parallels = results

    for parallel, parallel_gradients in parallels:
        assert relative_error(parallel, reference) <= tolerance
        for ours, theirs in zip(parallel_gradients, reference_gradients, strict=True):
            if theirs is None:  # a direction that this map never steps in
                assert ours is None or not ours.any()
            else:
                assert relative_error(ours, theirs) <= tolerance


@pytest.mark.parametrize("size", [(31, 32), (48, 5)])
@pytest.mark.parametrize("kind", [NormLinear, RealSpeeds, UnitSpeeds, NormMLP])
def test_long_walks_equal_sequential(kind, size):
    transition = transition_of(kind)
    q = torch.randn(1, 1, C, dtype=torch.float64)
    z = propagate(q, transition.prepared(), size)
    start = start_positions("center", size, 1)[0]
    for cell in [(0, 0), (0, size[1] - 1), (size[0] - 1, 0), (size[0] - 1, size[1] - 1), (1, 2)]:
        expected = sum(walk(q[0, 0], transition, start, cell, horizontal) for horizontal in (True, False)) / 2
        assert relative_error(z[0, :, cell[0], cell[1]], expected) <= 1e-10


def test_without_gradients_the_map_is_the_same():
    transition = transition_of(NormLinear)
    q = torch.randn(2, 4, C, dtype=torch.float64)
    for start in ("center", "scatter"):
        for step in (transition, transition.prepared()):
            with_gradients = propagate(q, step, (5, 6), start)
            with torch.no_grad():
                assert torch.allclose(propagate(q, step, (5, 6), start), with_gradients, atol=1e-13)


def test_only_what_asks_for_gradients_gets_them():
    transition = transition_of(NormLinear)
    transition.A_minus.requires_grad_(False)
    q = torch.randn(2, 2, C, dtype=torch.float64)
    propagate(q, transition.prepared(), (4, 5)).square().sum().backward()
    assert transition.A_minus.grad is None and transition.A.grad is not None


def test_q_of_lower_precision_is_propagated_in_the_precision_of_the_matrices():
    transition = transition_of(NormLinear, torch.float32)
    z = propagate(torch.randn(2, 1, C).bfloat16(), transition.prepared(), (4, 5))
    assert z.dtype == torch.float32 and z.isfinite().all()


@pytest.mark.parametrize("order", ["horizontal", "vertical"])
def test_each_order_alone(order):
    transition = transition_of(NormLinear)
    q = torch.randn(1, 2, C, dtype=torch.float64)
    expected = sequential(q, transition, (4, 5), [(2, 2)] * 2, order)
    assert relative_error(propagate(q, transition.prepared(), (4, 5), order=order), expected) <= 1e-10


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_z_at_the_start_is_q(kind):
    q = torch.randn(2, 1, C, dtype=torch.float64)
    for start in ("center", *CORNERS, (1, 3)):
        y, x = start_positions(start, (4, 5), 1)[0]
        assert torch.equal(propagate(q, transition_of(kind).prepared(), (4, 5), start)[:, :, y, x], q[:, 0])


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_both_orders_agree_on_the_start_row_and_column(kind):
    transition = transition_of(kind).prepared()
    q = torch.randn(2, 1, C, dtype=torch.float64)
    horizontal = propagate(q, transition, (5, 6), (3, 2), order="horizontal")
    vertical = propagate(q, transition, (5, 6), (3, 2), order="vertical")
    assert torch.allclose(horizontal[:, :, 3], vertical[:, :, 3], atol=1e-12)
    assert torch.allclose(horizontal[..., 2], vertical[..., 2], atol=1e-12)
    if kind is NormLinear:
        assert not torch.allclose(horizontal, vertical, atol=1e-3)  # and nowhere else, unless A and B commute


@pytest.mark.parametrize("kind", TRANSITIONS)
@pytest.mark.parametrize("start", ["center", "scatter"])
def test_paths_are_summed(kind, start):
    """In evaluation; batch statistics in training couple the paths by nature."""
    transition = transition_of(kind).prepared()
    q = torch.randn(2, 5, C, dtype=torch.float64)
    cells = start_positions(start, (6, 7), 5)
    singles = sum(propagate(q[:, [m]], transition, (6, 7), cells[m]) for m in range(5))
    assert torch.allclose(propagate(q, transition, (6, 7), start), singles, atol=1e-11)


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_translating_the_start_translates_the_map(kind):
    """Of z itself; a position embedding is added after it and breaks this by nature."""
    transition = transition_of(kind).prepared()
    q = torch.randn(1, 1, C, dtype=torch.float64)
    here = propagate(q, transition, (6, 7), (2, 3))
    there = propagate(q, transition, (6, 7), (3, 5))
    assert torch.allclose(here[:, :, :-1, :-2], there[:, :, 1:, 2:], atol=1e-11)


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_a_batch_equals_its_items(kind):
    """In evaluation; batch statistics in training couple the images by nature."""
    transition = transition_of(kind).prepared()
    q = torch.randn(3, 2, C, dtype=torch.float64)
    one_by_one = torch.cat([propagate(q[[n]], transition, (4, 5)) for n in range(3)])
    assert torch.allclose(propagate(q, transition, (4, 5)), one_by_one, atol=1e-12)


def test_batch_norm_couples_a_batch_in_training():
    transition = transition_of(BatchNormLinear).train()
    q = torch.randn(3, 1, C, dtype=torch.float64)
    together = propagate(q, transition, (3, 3))
    alone = propagate(q[:2], transition, (3, 3))
    assert not torch.allclose(together[:2], alone, atol=1e-3)


def test_linear_blows_up_where_norm_linear_does_not():
    torch.manual_seed(0)
    q = torch.randn(1, 1, 64)
    assert propagate(q, Linear(64), (256, 1)).abs().max() > 1e6
    assert propagate(q, NormLinear(64).prepared(), (256, 256)).abs().max() < 1e3


def test_checkpointing_gives_the_same_gradients():
    transition = transition_of(NormLinear)
    q = torch.randn(2, 2, C, dtype=torch.float64)
    plain, recomputed = (
        torch.autograd.grad(
            propagate(q, transition.prepared(), (5, 4), checkpointing=checkpointing).square().sum(),
            transition.parameters(),
        )
        for checkpointing in (False, True)
    )
    for ours, theirs in zip(recomputed, plain, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("channels", [3, 100, 3072])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7])
def test_a_constant_q_stays_constant(channels, value):
    torch.manual_seed(0)
    q = torch.full((1, 1, channels), value)
    z = propagate(q, NormLinear(channels).prepared(), (9, 9))
    assert torch.allclose(z, torch.full_like(z, value), atol=1e-5)


def test_the_mean_folds_into_the_matrix():
    """A ẑ = (A − mean_row(A)) z / σ."""
    A, z = torch.randn(C, C, dtype=torch.float64), torch.randn(4, C, dtype=torch.float64)
    sigma = (z.var(-1, correction=0, keepdim=True) + EPS).sqrt()
    folded = (A - A.mean(1, keepdim=True)) @ z.T
    assert torch.allclose((A @ normalise(z).T).T, folded.T / sigma, atol=1e-12)


def test_the_map_is_channels_last():
    z = propagate(torch.randn(2, 1, C), Coefficients(*torch.randn(4, C, C)), (4, 5))
    assert z.shape == (2, C, 4, 5) and z.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", [NormLinear, NormMLP])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ["mean", "horizontal", "vertical"])
def test_images_with_their_own_starts_are_propagated_as_if_alone(kind, size, order):
    transition = transition_of(kind)
    starts = torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1]))
    starts = starts[torch.randint(len(starts), (7,))]
    q = torch.randn(7, 2, C, dtype=torch.float64, requires_grad=True)
    inputs = [q, *transition.parameters()]
    cells = zip(q.split(1), starts.tolist(), strict=True)
    expected = torch.cat([propagate(one, transition, size, cell, order=order) for one, cell in cells])
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad((weight * expected).sum(), inputs, materialize_grads=True)
    for step in (transition, transition.prepared()):
        z = propagate(q, step, size, starts, order=order)
        torch.testing.assert_close(z, expected)
        own = torch.autograd.grad((weight * z).sum(), inputs, materialize_grads=True)
        torch.testing.assert_close(own, gradients)


def test_scattered_starts():
    assert start_positions("scatter", (64, 64), 4) == [(16, 16), (16, 48), (48, 16), (48, 48)]
    assert len(set(start_positions("scatter", (64, 64), 8))) == 8
    assert {y for y, _ in start_positions("scatter", (64, 64), 8)} == {16, 48}  # 2 × 4
    assert {y for y, _ in start_positions("scatter", (64, 64), 16)} == {8, 24, 40, 56}  # 4 × 4
    for paths in range(1, 33):
        cells = start_positions("scatter", (32, 24), paths)
        assert len(set(cells)) == paths and all(0 <= y < 32 and 0 <= x < 24 for y, x in cells)


def test_a_256_map():
    transition = NormLinear(4)
    with torch.no_grad():
        z = propagate(torch.randn(1, 1, 4), transition.prepared(), (256, 256))
    assert z.shape == (1, 4, 256, 256) and z.isfinite().all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": torch.full((1, 1, C), float("nan"))}, "NaN"),
        ({"q": torch.zeros(0, 1, C)}, "shape"),
        ({"q": torch.zeros(2, C)}, "N, M, C"),
        ({"q": torch.randn(1, 1, 5)}, "5 channels, but A is 6 x 6"),
        ({"size": (0, 4)}, "4×0"),
        ({"start": (4, 0)}, r"\(4, 0\) is outside the map of 4×4"),
        ({"start": (0, -1)}, "outside"),
        ({"start": "middle"}, "middle"),
        ({"start": [(0, 0), (1, 1)]}, "2 start positions for 1 paths"),
        ({"start": 3}, "start is 3"),
        ({"start": (1.0, 2.0)}, r"start is \(1.0, 2.0\)"),
        ({"start": torch.tensor([[0, 0], [1, 1]])}, r"\(2, 2\).*1 images"),
        ({"start": torch.tensor([[1.0, 2.0]])}, "float32"),
        ({"start": torch.tensor([[1, 4]])}, r"\(1, 4\) is outside"),
        ({"size": 8.0}, "size is 8.0"),
        ({"coefficients": torch.randn(4, C, C)}, r"tensor \(4, 6, 6\)"),
        ({"coefficients": tuple(torch.randn(3, C, C))}, "3 matrices"),
        ({"coefficients": (*torch.randn(3, C, C), None)}, "B_minus is NoneType"),
        ({"order": "diagonal"}, "diagonal"),
    ],
)
def test_invalid_arguments_raise(change, sentence):
    arguments = {
        "q": torch.randn(1, 1, C),
        "coefficients": Coefficients(*torch.randn(4, C, C)),
        "size": (4, 4),
    } | change
    with pytest.raises(ValueError, match=sentence):
        propagate(**arguments)


def test_a_square_map_and_the_centre_can_be_given_in_short() -> None:
    q, coefficients = torch.randn(1, 1, 8), Coefficients(*torch.randn(4, 8, 8))
    assert torch.equal(propagate(q, coefficients, 5, "centre"), propagate(q, coefficients, (5, 5), "center"))


def test_propagation_does_not_import_the_compiler() -> None:
    """torch._dynamo takes a second and 150 MB, and is needed only by torch.compile."""
    code = """
import sys, torch, finola
z = finola.propagate(torch.randn(2, 1, 8), finola.Coefficients(*torch.randn(4, 8, 8)), size=4)
assert z.shape == (2, 8, 4, 4) and "torch._dynamo" not in sys.modules
"""
    environment = os.environ | {"PYTHONPATH": str(Path(finola.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # raised by torch.compile
@pytest.mark.parametrize("start", ["center", "scatter"])
def test_a_compiled_function_runs_the_fast_path_uncompiled(start: str) -> None:
    """The compiled graphs hold what surrounds the recurrence, and none of its products."""
    compiled: list[str] = []

    def backend(graph, _):
        compiled.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph

    matrices = Coefficients(*(0.1 * torch.randn(4, 8, 8)))
    q = torch.randn(2, 4, 8, requires_grad=True)

    def around(q):
        return propagate(q.tanh(), matrices, 6, start).relu()

    torch.compiler.reset()
    out = torch.compile(around, backend=backend)(q)
    torch.testing.assert_close(out, around(q))
    assert "tanh" in str(compiled) and "relu" in str(compiled)
    assert not [name for name in compiled if "mm" in name or "addcmul" in name or "norm" in name]


@pytest.mark.parametrize("start", ["center", "scatter", (1, 2)])
def test_the_layer_is_the_function_of_its_parameters(start) -> None:
    layer = finola.Propagation(8, size=(4, 5), start=start)
    q = torch.randn(2, 3, 8, requires_grad=True)
    expected = propagate(q, Coefficients(layer.A, layer.B, layer.A_minus, layer.B_minus), (4, 5), start)
    assert torch.equal(layer(q), expected)
    layer(q).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in (*layer.parameters(), q))
    again = finola.Propagation(8, size=(4, 5), start=start)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(q), expected)
    assert finola.waves(layer).speeds.shape == (7,)

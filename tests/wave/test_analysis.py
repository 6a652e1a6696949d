from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.propagation import Coefficients, normalise, propagate
from finola.transitions import Linear, LinearAfterNorm, NormLinear, NormMLP, RealSpeeds, UnitSpeeds
from finola.wave.analysis import Quadrant, waves
from finola.wave.diagonalisation import QUADRANTS, diagonalise, identical, kinds, speeds

C = 256


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-300))


def matrix(n: int = 8) -> Tensor:
    return torch.randn(n, n, dtype=torch.float64)


def diagonal(*values: float) -> Tensor:
    return torch.diag(torch.tensor(values, dtype=torch.float64))


def assert_decoupled(quadrant: Quadrant, tolerance: float = 1e-8) -> None:
    """β H_A = α H_B on all zero-mean vectors ẑ: the wave equation, for each channel that has one."""
    H_A, H_B = (H - H.mean(1, keepdim=True) for H in (quadrant.H_A, quadrant.H_B))
    left, right = quadrant.beta[:, None] * H_A, quadrant.alpha[:, None] * H_B
    scale = float(quadrant.beta.norm() * H_A.norm() + quadrant.alpha.norm() * H_B.norm())
    assert float((left - right).norm()) <= tolerance * scale
    assert relative(quadrant.eigenvectors @ quadrant.inverse, torch.eye(len(left), dtype=torch.complex128)) <= tolerance
    still = torch.tensor([kind == "static" for kind in quadrant.kinds])
    assert float(H_A[still].norm() + H_B[still].norm()) <= tolerance * float(H_A.norm() + H_B.norm() + 1e-300)


@pytest.mark.parametrize("quadrant", QUADRANTS)
@pytest.mark.parametrize("kind", [NormLinear, RealSpeeds, UnitSpeeds])
def test_every_identity_of_the_paper_holds_in_every_quadrant(kind: type[LinearAfterNorm], quadrant: str) -> None:
    transition = kind(C).double()
    found = waves(transition)[quadrant]
    V, Lambda, Q = found.eigenvectors, found.speeds, found.Q
    assert Q is not None
    horizontal, vertical = QUADRANTS[quadrant]
    A, B = (transition.coefficients().matrix(direction).detach() for direction in (horizontal, vertical))

    assert relative(Q @ B, A) <= 1e-8
    assert relative(V * Lambda, Q.to(V) @ V) <= 1e-8
    assert_decoupled(found)

    phi = torch.randn(5, C, dtype=torch.float64)
    psi, psi_hat = found.initial(phi), found.psi_hat(found.initial(phi))
    for direction, H, step in ((horizontal, found.H_A, A), (vertical, found.H_B, B)):
        moved = found.initial(transition(phi, direction).detach()) - psi  # Δψ
        assert relative(psi_hat @ H.T, found.initial(normalise(phi) @ step.T)) <= 1e-8
        assert relative(psi_hat @ H.T, moved) <= 1e-8

    z = torch.randn(2, C, 3, 4, dtype=torch.float64)
    assert relative(found.unproject(found.project(z)), z) <= 1e-8
    assert found.project(z).dtype == torch.complex128
    assert relative(found.project(z)[:, :, 1, 2], found.initial(z[:, :, 1, 2])) <= 1e-12


def test_shortcuts_are_those_of_the_right_down_quadrant() -> None:
    found = waves(NormLinear(8))
    assert found.Q is not None
    assert found.description == found["right-down"].description
    assert found.description.startswith("Q = AB⁻¹ diagonalised")
    assert relative(found.alpha / found.beta, found.speeds) <= 1e-14
    assert torch.equal(found.H_A, found.inverse @ found["right-down"].A.to(found.inverse))
    assert torch.equal(found.H_B, found.inverse @ found["right-down"].B.to(found.inverse))
    q = torch.randn(2, 1, 8)
    assert torch.equal(found.psi_hat(found.initial(q)), found["right-down"].psi_hat(found["right-down"].initial(q)))
    z = torch.randn(2, 8, 3, 3)
    assert relative(found.unproject(found.project(z, "left-up"), "left-up"), z.double()) <= 1e-10
    assert found.cond_B == pytest.approx(float(torch.linalg.cond(found["right-down"].B.double())), rel=1e-6)
    assert found.cond_V == pytest.approx(float(torch.linalg.cond(found.eigenvectors)), rel=1e-6)
    assert len(found.kinds) == 8
    assert found.eigenvectors.shape == (8, 8)


def test_real_speeds_are_alpha_over_beta_and_V_is_P() -> None:
    real = RealSpeeds(16)
    real.beta.data[3] = 0
    real.alpha.data[4] = real.beta.data[4] = 0
    real.alpha_minus.data[5] = real.beta.data[5]
    found = waves(real)
    assert "Real speeds" in found.description
    expected = (real.alpha.double() / real.beta.double()).detach()
    rest = [k for k in range(16) if k not in (3, 4)]
    assert torch.equal(found.speeds[rest].real, expected[rest])
    assert not found.speeds[rest].imag.any()
    assert torch.equal(found.eigenvectors.real, real.P.detach().double())
    assert found.kinds[3:5] == ["infinite", "static"]
    assert math.isinf(found.speeds[3].real) and math.isnan(found.speeds[4].real)
    assert relative(found.H_A, torch.diag(real.alpha.detach()).to(found.H_A)) <= 1e-6
    assert found["left-down"].kinds[5] == "unit"


def test_unit_speeds_are_one() -> None:
    for source in (UnitSpeeds(16), UnitSpeeds(16).coefficients()):
        for quadrant in QUADRANTS:
            found = waves(source)[quadrant]
            assert torch.equal(found.speeds, torch.ones(16, dtype=torch.complex128))
            assert found.shares()["unit"] == 1
            assert "one" in found.description


@pytest.mark.parametrize("kind", [NormLinear, RealSpeeds, UnitSpeeds])
def test_a_singular_matrix_never_raises_and_is_described(kind: type[LinearAfterNorm]) -> None:
    transition = kind(12).double()
    for parameter in transition.parameters():
        if parameter.ndim == 2:
            parameter.data[:, 2] = parameter.data[:, 3] = 0
    for quadrant in QUADRANTS:
        found = waves(transition)[quadrant]
        assert found.Q is None and found.cond_B == math.inf
        assert "inverse" in found.description
        assert_decoupled(found)


P, W = torch.randn(2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
JORDAN = diagonal(1, 1, 3, 4, 5, 6, 7, 8)
JORDAN[0, 1] = 1
DEGENERATE = {  # A, B, and the expected kinds
    "all zero": (diagonal(*[0] * 8), diagonal(*[0] * 8), {"static": 8}),
    "B zero": (P, torch.zeros_like(P), {"infinite": 8}),
    "A zero": (torch.zeros_like(P), P, {"real": 8}),
    "A is B": (P, P, {"unit": 8}),
    "A is B, singular": (
        P @ diagonal(1, 2, 3, 4, 5, 6, 0, 0),
        P @ diagonal(1, 2, 3, 4, 5, 6, 0, 0),
        {"unit": 6, "static": 2},
    ),
    "both reach six directions": (P[:, :6] @ W[:6, :6] @ W[:6], P[:, :6] @ P[:6, :6] @ W[:6], None),
    "infinite, zero, one and static speeds": (
        P @ diagonal(1, 2, 3, 4, 5, 0, 7, 0) @ W,
        P @ diagonal(1, 1, 1, 1, 0, 1, 0, 0) @ W,
        {"unit": 1, "real": 4, "infinite": 2, "static": 1},
    ),
    "Jordan block": (JORDAN, torch.eye(8).double(), {"real": 6, "undefined": 2}),
    "Jordan block in another basis": (P @ JORDAN @ P.inverse(), torch.eye(8).double(), {"real": 6, "undefined": 2}),
    "Jordan block of infinite speeds": (torch.eye(8).double(), JORDAN - torch.eye(8), {"real": 6, "undefined": 2}),
    "one Jordan block": (
        torch.diag(torch.ones(7).double(), 1) + diagonal(*[2] * 8),
        torch.eye(8).double(),
        {"undefined": 8},
    ),
    "row means taken out": (P - P.mean(1, keepdim=True), W - W.mean(1, keepdim=True), None),
    "a channel that nothing writes": (diagonal(0, *[1] * 7) @ P, diagonal(0, *[1] * 7) @ W, None),
    "a channel that nothing reads": (P @ diagonal(0, *[1] * 7), W @ diagonal(0, *[1] * 7), None),
    "singular pencil": (
        diagonal(*[1] * 4, *[0] * 4) @ P,
        diagonal(*[1] * 4, *[0] * 4) @ W,
        {"undefined": 4, "static": 4},
    ),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_pencils_never_raise_and_are_described(case: str) -> None:
    A, B, expected = DEGENERATE[case]
    found = waves(Coefficients(A, B, A, B))["right-down"]
    if expected is not None:
        assert {kind: found.kinds.count(kind) for kind in set(found.kinds)} == expected
    assert_decoupled(found)
    if found.Q is None:
        assert "inverse" in found.description
    for kind in ("infinite", "static", "undefined"):
        if kind in found.kinds:
            assert f"{found.kinds.count(kind)} {kind}" in found.description
    z = torch.randn(1, 8, 2, 2, dtype=torch.float64)
    assert relative(found.unproject(found.project(z)), z) <= 1e-8
    assert torch.isfinite(torch.view_as_real(found.eigenvectors)).all()


def test_scale_does_not_change_the_kinds() -> None:
    A, B, _ = DEGENERATE["infinite, zero, one and static speeds"]
    found, scaled = diagonalise(A, B), diagonalise(1e-9 * A, 1e6 * B)
    assert sorted(kinds(1e15 * scaled.alpha, scaled.beta)) == sorted(found.kinds)


def test_speeds_at_zero_and_infinity() -> None:
    alpha = torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=torch.complex128)
    beta = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.complex128)
    assert kinds(alpha, beta) == ["real", "infinite", "real", "static"]
    assert speeds(alpha, beta).real[:3].tolist() == [2.0, math.inf, 0.0]
    assert identical(torch.zeros(4, 4).double(), 1e-10).kinds == ["static"] * 4


@pytest.mark.parametrize(
    "name",
    ["waves/64x1@8:32", "waves/256x1@16:64", "waves/48x3@4x8:16x64+scatter", "waves/9x1@8:32+corner", "waves/3x1@4:16"],
)
def test_wave_initialised_speeds_are_recovered(name: str) -> None:
    model = Autoencoder(name)
    found = waves(model)
    assert found.basis is not None
    u, v = found.basis.frequencies().unbind(1)
    cell = model.config.cell
    pairs = found.basis.pairs
    for quadrant, (horizontal, vertical) in QUADRANTS.items():
        part = found[quadrant]
        theta_x = u * cell[1] * (1 if horizontal == "right" else -1)
        theta_y = v * cell[0] * (1 if vertical == "down" else -1)
        above, below = torch.exp(1j * theta_x) - 1, torch.exp(1j * theta_y) - 1
        moves = below.abs() > 1e-9
        assert relative(part.speeds[pairs][moves], (above / below)[moves]) <= 1e-12
        assert relative(part.speeds[pairs + 1][moves], (above / below)[moves].conj()) <= 1e-12
        for pair, along_x, along_y in zip(pairs.tolist(), above.abs() > 1e-9, moves, strict=True):
            if not along_y:
                assert part.kinds[pair] == part.kinds[pair + 1] == ("infinite" if along_x else "static")
        others = set(range(model.config.channels)) - {*pairs.tolist(), *(pairs + 1).tolist()}
        assert all(part.kinds[channel] == "static" for channel in others)
        assert_decoupled(part, 1e-6)  # the model's matrices are float32
        assert part.Q is None and part.cond_B == math.inf and part.cond_V == 1
        assert "plane waves" in part.description
    assert all("px per cycle" in found.describe(channel) for channel in pairs.tolist())


def test_a_model_changed_by_training_is_diagonalised_numerically() -> None:
    model = Autoencoder("waves/32x1@8:32")
    for parameter in model.transition.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    found = waves(model)
    assert found.basis is None and found.describe(1) == ""
    assert found.description.startswith("Q = AB⁻¹ diagonalised")
    assert_decoupled(found["left-up"])


def test_wave_initialised_float32_matrices_are_solved_without_their_basis() -> None:
    model = Autoencoder("waves/64x1@8:32")
    found = waves(model.transition)
    assert found.basis is None
    known = waves(model)
    for kind in ("infinite", "static", "undefined"):
        assert found.kinds.count(kind) == known.kinds.count(kind)
    finite = [
        sorted(part.speeds[part.speeds.isfinite()].abs().tolist())
        for part in (found["right-down"], known["right-down"])
    ]
    assert finite[0] == pytest.approx(finite[1], rel=1e-3, abs=1e-4)
    assert_decoupled(found["right-down"], 1e-4)


def test_a_propagated_map_is_a_sum_of_waves_along_each_order() -> None:
    transition = NormLinear(16).double()
    found = waves(transition)
    with torch.no_grad():
        z = propagate(torch.randn(1, 1, 16, dtype=torch.float64), transition.prepared(), (1, 6), "top-left")
    psi = found.project(z)[0, :, 0].T  # (6, C)
    assert relative(psi[:-1] + found.psi_hat(psi[:-1]) @ found.H_A.T, psi[1:]) <= 1e-8


@pytest.mark.parametrize(
    "other", [Linear(4), NormMLP(4), torch.nn.Linear(4, 4), Autoencoder("mf-w720/8x1@8:32+mlp"), 3]
)
def test_models_without_norm_linear_raise(other: object) -> None:
    with pytest.raises(ValueError, match="norm\\+linear"):
        waves(other)  # type: ignore[arg-type]


def test_invalid_matrices_and_quadrants_raise() -> None:
    good = matrix(4)
    with pytest.raises(ValueError, match=r"B has shape \(4, 3\)"):
        waves(Coefficients(good, good[:, :3], good, good))
    with pytest.raises(ValueError, match="A_minus"):
        waves(Coefficients(good, good, good * math.nan, good))
    with pytest.raises(ValueError, match="right-down, left-down"):
        waves(Coefficients(good, good, good, good))["north"]

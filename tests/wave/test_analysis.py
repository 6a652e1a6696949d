from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.propagation import Coefficients, normalise, propagate
from finola.transitions import CommutingSpeeds, Linear, LinearAfterNorm, NormLinear, NormMLP, RealSpeeds, UnitSpeeds
from finola.wave.analysis import Quadrant, Waves, waves
from finola.wave.diagonalisation import QUADRANTS, complement, diagonalise, identical, kinds, restrict, speeds

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
    rounding = 1e-6 * float(quadrant.A.norm() + quadrant.B.norm())  # where A or B has no part that drives ẑ
    scale = float(quadrant.beta.norm() * H_A.norm() + quadrant.alpha.norm() * H_B.norm()) + rounding
    assert float((left - right).norm()) <= tolerance * scale
    assert relative(quadrant.inverse @ quadrant.eigenvectors, torch.eye(len(left), dtype=torch.complex128)) <= tolerance
    still = torch.tensor([kind == "static" for kind in quadrant.kinds])
    assert float(H_A[still].norm() + H_B[still].norm()) <= tolerance * (float(H_A.norm() + H_B.norm()) + rounding)


@pytest.mark.parametrize("quadrant", QUADRANTS)
@pytest.mark.parametrize("kind", [NormLinear, RealSpeeds, UnitSpeeds])
def test_every_identity_of_the_paper_holds_in_every_quadrant(kind: type[LinearAfterNorm], quadrant: str) -> None:
    transition = kind(C).double()
    found = waves(transition)[quadrant]
    V, Lambda, Q = found.eigenvectors, found.speeds, found.Q
    assert Q is not None
    horizontal, vertical = QUADRANTS[quadrant]
    A, B = (transition.coefficients().matrix(direction).detach() for direction in (horizontal, vertical))

    whole = kind is RealSpeeds  # its C waves are parameters (Eq. 8); the others live on the complement of 1
    N = torch.eye(C).double() if whole else complement(C)
    assert V.shape == (C, N.shape[1])
    assert relative(N.T @ Q @ N @ N.T @ B @ N, N.T @ A @ N) <= 1e-8
    assert relative(V * Lambda, Q.to(V) @ V) <= 1e-8
    assert_decoupled(found)

    phi = torch.randn(5, C, dtype=torch.float64)
    psi, psi_hat = found.initial(phi), found.psi_hat(found.initial(phi))
    for direction, H, step in ((horizontal, found.H_A, A), (vertical, found.H_B, B)):
        moved = found.initial(transition(phi, direction).detach()) - psi  # Δψ
        assert relative(psi_hat @ H.T, found.initial(normalise(phi) @ step.T)) <= 1e-8
        assert relative(psi_hat @ H.T, moved) <= 1e-8

    z = torch.randn(2, C, 3, 4, dtype=torch.float64)
    assert relative(found.unproject(found.project(z)), z if whole else z - z.mean(1, keepdim=True)) <= 1e-8
    assert found.project(z).dtype == torch.complex128
    assert relative(found.project(z)[:, :, 1, 2], found.initial(z[:, :, 1, 2])) <= 1e-12


def test_shortcuts_are_those_of_the_right_down_quadrant() -> None:
    found = waves(NormLinear(8))
    first = found["right-down"]
    assert found.description == first.description and found.kinds == first.kinds
    assert torch.equal(found.speeds.nan_to_num(7), first.speeds.nan_to_num(7))
    assert torch.equal(found.eigenvectors, first.eigenvectors)
    assert relative(first.alpha / first.beta, first.speeds) <= 1e-14
    z = torch.randn(2, 8, 3, 3)
    assert torch.equal(found.project(z, "left-up"), found["left-up"].project(z))
    assert first.cond_B == pytest.approx(float(torch.linalg.cond(restrict(first.B))), rel=1e-6)
    assert first.cond_V == pytest.approx(float(torch.linalg.cond(first.eigenvectors)), rel=1e-6)


def sorted_speeds(found: Waves, quadrant: str = "right-down") -> Tensor:
    return torch.view_as_real(found[quadrant].speeds)[found[quadrant].speeds.abs().argsort()].abs()


@pytest.mark.parametrize("channels", [2, 8, 64])
def test_speeds_are_those_of_the_recurrence_not_of_its_matrices(channels: int) -> None:
    """The layer norm removes the mean, so A + u·1ᵀ and B + v·1ᵀ are the same recurrence; AB⁻¹ is another matrix."""
    matrices = [matrix(channels) for _ in range(4)]
    moved = [one + 3 * torch.randn(channels, 1, dtype=torch.float64) for one in matrices]
    q = torch.randn(1, 1, channels, dtype=torch.float64)
    z, same = (normalise(propagate(q, Coefficients(*m), (3, 3)).movedim(1, -1)) for m in (matrices, moved))
    assert relative(same, z) <= 1e-10
    ours, theirs = (waves(Coefficients(*m)) for m in (matrices, moved))
    for quadrant in QUADRANTS:
        assert len(ours[quadrant].speeds) == channels - 1
        assert relative(sorted_speeds(theirs, quadrant), sorted_speeds(ours, quadrant)) <= 1e-8
        assert theirs[quadrant].cond_B == pytest.approx(ours[quadrant].cond_B, rel=1e-8)
        assert theirs[quadrant].commutator == pytest.approx(ours[quadrant].commutator, rel=1e-8)
        for one, other in zip(theirs[quadrant].identity, ours[quadrant].identity, strict=True):
            assert one == pytest.approx(other, rel=1e-8)
    ours, theirs = (waves(Coefficients(*m), printed=True) for m in (matrices, moved))
    assert len(ours.speeds) == channels and "does not determine" in ours.description
    assert relative(sorted_speeds(theirs), sorted_speeds(ours)) > 1e-3


def test_the_printed_spectrum_can_be_chosen_at_will() -> None:
    """Pole placement: A + u·1ᵀ has the printed speeds −2, −1, 0.5, 2 and 3, and the same recurrence."""
    A, B = matrix(5), matrix(5)
    wanted = [-2, -1, 0.5, 2, 3]
    Q, row = (torch.linalg.solve(B, left, left=False) for left in (A, torch.ones(1, 5, dtype=torch.float64)))
    # (A + u·1ᵀ)B⁻¹ = Q + u·(1ᵀB⁻¹): Ackermann's formula for its transpose
    krylov = torch.cat([torch.linalg.matrix_power(Q.T, k) @ row.T for k in range(5)], dim=1)
    polynomial = torch.linalg.multi_dot([Q.T - value * torch.eye(5) for value in wanted])
    u = -(torch.linalg.inv(krylov)[-1:] @ polynomial).T
    coefficients = Coefficients(A + u, B, A, B)
    assert sorted(waves(coefficients, printed=True).speeds.real.tolist()) == pytest.approx(wanted, rel=1e-4)
    assert relative(sorted_speeds(waves(coefficients)), sorted_speeds(waves(Coefficients(A, B, A, B)))) <= 1e-8


@pytest.mark.parametrize("channels", [2, 7, 8])
def test_commuting_matrices_share_their_eigenvectors(channels: int) -> None:
    transition = CommutingSpeeds(channels).double()
    with torch.no_grad():
        transition.V += 0.3 * torch.randn_like(transition.V)  # as after training: neither orthonormal nor of zero mean
    found = waves(transition)
    ours = transition.eigenvalues
    pairs = (channels - 1) // 2
    for quadrant, (horizontal, vertical) in QUADRANTS.items():
        assert found[quadrant].commutator <= 1e-10
        a, b = (ours[d].detach()[: 2 * pairs].view(2, pairs) for d in (horizontal, vertical))
        expected = torch.complex(*a) / torch.complex(*b)
        speeds = found[quadrant].speeds
        for speed in (*expected, *expected.conj()):
            assert float((speeds - speed).abs().min()) <= 1e-8 * float(abs(speed) + 1)
    assert waves(NormLinear(8))["right-down"].commutator > 0.01
    assert waves(RealSpeeds(8))["right-down"].commutator > 0.01


def test_sizes_commutator_and_identity() -> None:
    values = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], dtype=torch.float64)
    N = complement(12)
    A, B = N @ torch.diag(values) @ N.T, N @ N.T
    found = waves(Coefficients(A, B, A, B))["right-down"]
    assert found.sizes() == pytest.approx([1, 5, 9], rel=1e-9)
    assert found.commutator <= 1e-12
    assert found.identity[1] == pytest.approx((1, 1)) and found.identity[0][0] == pytest.approx(5)
    assert waves(Coefficients(*(matrix() for _ in range(4))))["right-down"].commutator > 0.05
    nothing = torch.zeros(4, 4, dtype=torch.float64)
    still = waves(Coefficients(nothing, nothing, nothing, nothing))["right-down"]
    assert all(math.isnan(size) for size in still.sizes())
    assert still.commutator == 0 and still.identity == [(0, 0), (0, 0)]


def test_real_speeds_are_alpha_over_beta_and_V_is_P() -> None:
    real = RealSpeeds(16)
    real.beta.data[3] = 0
    real.alpha.data[4] = real.beta.data[4] = 0
    real.alpha_minus.data[5] = real.beta.data[5]
    found = waves(real)["right-down"]
    assert "Real speeds" in found.description
    expected = (real.alpha.double() / real.beta.double()).detach()
    rest = [k for k in range(16) if k not in (3, 4)]
    assert torch.equal(found.speeds[rest].real, expected[rest])
    assert not found.speeds[rest].imag.any()
    assert torch.equal(found.eigenvectors.real, real.P.detach().double())
    assert found.kinds[3:5] == ["infinite", "static"]
    assert math.isinf(found.speeds[3].real) and math.isnan(found.speeds[4].real)
    assert relative(found.H_A, torch.diag(real.alpha.detach()).to(found.H_A)) <= 1e-6
    assert waves(real)["left-down"].kinds[5] == "unit"


def test_unit_speeds_are_one() -> None:
    for source in (UnitSpeeds(16), UnitSpeeds(16).coefficients()):
        for quadrant in QUADRANTS:
            found = waves(source)[quadrant]
            assert torch.equal(found.speeds, torch.ones(15, dtype=torch.complex128))
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


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_pencils_never_raise_and_are_described(case: str, printed: bool) -> None:
    A, B, expected = DEGENERATE[case]
    if not printed:  # the same pencil on the complement of the all-ones vector of nine channels
        N = complement(9)
        A, B = (N @ part @ N.T + torch.randn(9, 1).double() for part in (A, B))
    found = waves(Coefficients(A, B, A, B), printed=printed)["right-down"]
    if expected is not None and (printed or "infinite" not in case):  # rounding splits a double infinite speed
        assert {kind: found.kinds.count(kind) for kind in set(found.kinds)} == expected
    assert_decoupled(found)
    if found.Q is None:
        assert "inverse" in found.description
    for kind in ("infinite", "static", "undefined"):
        if kind in found.kinds:
            assert f"{found.kinds.count(kind)} {kind}" in found.description
    z = torch.randn(1, len(A), 2, 2, dtype=torch.float64)
    assert relative(found.unproject(found.project(z)), z if printed else z - z.mean(1, keepdim=True)) <= 1e-8
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
        others = set(range(model.config.channels - 1)) - {*pairs.tolist(), *(pairs + 1).tolist()}
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
    assert found.description.startswith("Q = AB⁻¹ is diagonalised")
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
    found = waves(transition)["right-down"]
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

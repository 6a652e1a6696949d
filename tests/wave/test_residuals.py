from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.plotting.waves import plot_waves
from finola.propagation import EPS, Coefficients, propagate, start_positions
from finola.transitions import NormLinear, UnitSpeeds
from finola.wave.analysis import waves
from finola.wave.diagonalisation import QUADRANTS, complement, restrict
from finola.wave.explained import Moments, explained
from finola.wave.initialisation import initialise_waves
from finola.wave.residuals import ORDERS, health, measure_paths, measure_waves, order_difference


def wave_model(name: str, dtype: torch.dtype) -> Autoencoder:
    """Wave-initialised model whose matrices are exact in `dtype`."""
    return initialise_waves(Autoencoder(name).to(dtype)).eval()


def photos(n: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Smooth colours with an edge, so that low and high frequencies both have energy."""
    y, x = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 2, width), indexing="ij")
    images = torch.stack(
        [torch.stack([(a * x + b * y + k).sin() for a, b in ((1, 2), (2, 1), (3, 1))]) for k in range(n)]
    )
    images[..., height // 3 :, width // 2 :] *= -0.5
    return (images * 0.4 + 0.5).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    "name", ["waves/64x1@8:32", "waves/256x1@16:64", "waves/64x1@8x4:32x64+corner", "waves/64x2@8:32+scatter"]
)
def test_wave_initialised_models_satisfy_their_equations_with_constant_sigma(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = wave_model(name, dtype)
    found = measure_waves(waves(model), photos(2, *model.config.image_size, dtype=dtype))
    assert found.sigma_spread <= tolerance
    assert found.sigma_max - found.sigma_min <= tolerance
    assert found.sigma_min == pytest.approx(math.sqrt(1 + EPS), rel=1e-6)
    assert found.path_inconsistency <= tolerance
    assert all(found.residual[order] <= 10 * tolerance for order in ORDERS)
    assert found.shares["infinite"] > 0 and found.shares["undefined"] == 0
    assert sum(found.shares.values()) == pytest.approx(1)


def test_residuals_of_a_random_model_are_zero_only_where_an_order_makes_them_exact() -> None:
    transition = NormLinear(16).double()
    size, (y, x) = (7, 8), start_positions("center", (7, 8), 1)[0]
    found = measure_paths(waves(transition), torch.randn(3, 1, 16, dtype=torch.float64), size)
    assert found.residual["mean"] > 0.1 and found.path_inconsistency > 0.1
    for image in range(3):
        horizontal, vertical = found.maps["horizontal"][image], found.maps["vertical"][image]
        assert horizontal.shape == (6, 7)
        # The squares above and below the start's row, and left and right of its column.
        assert float(horizontal[y - 1 : y + 1].max()) <= 1e-10
        assert float(vertical[:, x - 1 : x + 1].max()) <= 1e-10
        rest = horizontal.clone()
        rest[y - 1 : y + 1] = math.nan
        assert float(rest.nanmean()) > 0.1
        assert float(found.maps["mean"][image][y - 1 : y + 1, x - 1 : x + 1].max()) <= 1e-10


def test_metrics_equal_their_definitions() -> None:
    """Reference implementation: loops over quadrants, paths and positions."""
    transition, size, q = NormLinear(6).double(), (4, 5), torch.randn(2, 3, 6, dtype=torch.float64)
    analysed, coefficients = waves(transition), Coefficients(*(m.detach() for m in transition.coefficients()))
    found = measure_paths(analysed, q, size, "scatter")
    starts = start_positions("scatter", size, 3)
    sigmas, totals = [], {}
    for order in ("horizontal", "vertical"):
        difference = left = right = 0.0
        for i, (y0, x0) in enumerate(starts):
            phi = propagate(q[:, i : i + 1], coefficients, size, (y0, x0), order=order)
            totals[order] = totals.get(order, 0) + phi
            sigmas.append((phi.var(1, correction=0) + EPS).sqrt().flatten(1))
            for name, (horizontal, vertical) in QUADRANTS.items():
                quadrant = analysed[name]
                zeta, length = quadrant.project(phi), torch.hypot(quadrant.alpha.abs(), quadrant.beta.abs())
                dx, dy = (1 if horizontal == "right" else -1), (1 if vertical == "down" else -1)
                for y in range(y0, size[0] if dy > 0 else -1, dy):
                    for x in range(x0, size[1] if dx > 0 else -1, dx):
                        if 0 <= y + dy < size[0] and 0 <= x + dx < size[1]:
                            along_x = quadrant.beta / length * (zeta[..., y, x + dx] - zeta[..., y, x])
                            along_y = quadrant.alpha / length * (zeta[..., y + dy, x] - zeta[..., y, x])
                            difference += float((along_x - along_y).abs().square().sum())
                            left, right = (
                                left + float(along_x.abs().square().sum()),
                                right + float(along_y.abs().square().sum()),
                            )
        assert found.residual[order] == pytest.approx(difference**0.5 / (left**0.5 + right**0.5), rel=1e-9)
    z_h, z_v = totals["horizontal"], totals["vertical"]
    assert found.path_inconsistency == pytest.approx(float((z_h - z_v).norm() / ((z_h + z_v) / 2).norm()))
    sigma = torch.cat(sigmas)
    assert (found.sigma_min, found.sigma_max) == pytest.approx((float(sigma.min()), float(sigma.max())))
    assert found.sigma_spread == pytest.approx(float(((sigma.amax(1) - sigma.amin(1)) / sigma.mean(1)).max()))


def test_the_order_difference_is_the_squared_inconsistency_and_trains_matrices() -> None:
    transition, q = NormLinear(6).double(), torch.randn(3, 1, 6, dtype=torch.float64)

    def difference() -> Tensor:
        horizontal, vertical = (
            propagate(q, transition.prepared(), (4, 4), order=order) for order in ("horizontal", "vertical")
        )
        return order_difference(horizontal, vertical)

    before = difference()
    expected = measure_paths(waves(transition), q, (4, 4)).path_inconsistency
    assert float(before.detach()) ** 0.5 == pytest.approx(expected, rel=1e-9)
    optimiser = torch.optim.SGD(transition.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        difference().backward()
        optimiser.step()
    assert float(difference().detach()) < 0.8 * float(before.detach())
    still = torch.zeros(1, 2, 3, 3)
    assert order_difference(still, still) == 0


def linear_maps(matrix_x: Tensor, matrix_y: Tensor, images: int) -> list[Moments]:
    """Moments of Δx z = matrix_x·e and Δy z = matrix_y·e of random e, plus a mean that all images share."""
    halves = [Moments(len(matrix_x)) for _ in range(2)]
    for half in halves:
        e = torch.randn(images, 2, 3, len(matrix_x), dtype=torch.float64)
        half.add(e @ matrix_x.T + 5, e @ matrix_y.T - 3, "start")
    return halves


def test_explained_variance_is_one_for_a_linear_relation_and_zero_for_none() -> None:
    X, Y = torch.randn(2, 4, 4, dtype=torch.float64)
    Q = torch.linalg.solve(Y, X, left=False)
    found = explained(linear_maps(X, Y, 200), Q)
    assert found.fitted == pytest.approx(1) and found.model_Q == pytest.approx(1) and found.differences == 2400
    assert abs(found.shuffled) < 0.05
    assert explained(linear_maps(X, Y, 200), torch.zeros(4, 4).double()).model_Q == pytest.approx(0)
    assert explained(linear_maps(X, Y, 200), 2 * Q).model_Q == pytest.approx(0)
    assert explained(linear_maps(X, Y, 200), 3 * Q).model_Q == pytest.approx(-3)
    unrelated = linear_maps(torch.eye(4).double(), torch.eye(4).double(), 200)
    for half in unrelated:
        half.xy[0] = half.xy[1]  # pairs of different images
    assert abs(explained(unrelated, Q).fitted) < 0.05
    few = explained(linear_maps(X, Y, 3), Q)  # 18 differences of 4 channels
    assert math.isnan(few.fitted) and math.isnan(few.shuffled) and few.model_Q == pytest.approx(1)


def test_half_of_the_variance_is_explained_where_half_of_it_is_noise() -> None:
    halves = [Moments(3) for _ in range(2)]
    for half in halves:
        y, noise = torch.randn(2, 4000, 1, 1, 3, dtype=torch.float64)
        half.add(y + noise, y, "start")
    found = explained(halves, torch.eye(3, dtype=torch.float64))
    assert found.fitted == pytest.approx(0.5, abs=0.05) and found.model_Q == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("start", ["center", "scatter", "top-left"])
def test_explained_variance_of_a_model_equals_least_squares_on_its_differences(start: str) -> None:
    """Reference: the differences of all images in one matrix. Unit speeds: Δx z = Δy z without error."""
    transition, q = NormLinear(4).double(), torch.randn(60, 2, 4, dtype=torch.float64)
    found = waves(transition)
    measured = measure_paths(found, q, (6, 6), start)
    Q, N = found["right-down"].Q, complement(4)
    error = variance = 0.0
    with torch.no_grad():
        starts = start_positions(start, (6, 6), 2)
        for cell in set(starts):
            paths = [i for i, one in enumerate(starts) if one == cell]
            z = propagate(q[:, paths], transition.prepared(), (6, 6), cell)[:, :, cell[0] :, cell[1] :]
            dx, dy = z[:, :, :-1, 1:] - z[:, :, :-1, :-1], z[:, :, 1:, :-1] - z[:, :, :-1, :-1]
            for half in (slice(0, None, 2), slice(1, None, 2)):
                x, y = ((N.T @ d[half].flatten(2)) for d in (dx, dy))  # (30, 3, positions)
                x, y = x - x.mean(0), y - y.mean(0)
                error += float((x - N.T @ Q @ N @ y).square().sum())
                variance += float(x.square().sum())
    assert measured.explained.model_Q == pytest.approx(1 - error / variance, rel=1e-8)
    assert measured.explained.model_Q <= measured.explained.fitted + 0.1 <= 1.1
    assert measured.explained.shuffled < 0.1
    unit = measure_paths(waves(UnitSpeeds(4).double()), q, (6, 6), start).explained
    assert unit.fitted == pytest.approx(1) and unit.model_Q == pytest.approx(1) and unit.shuffled < 0.1


def test_random_matrices_are_a_control_of_the_same_model() -> None:
    model = Autoencoder("test_resnet/6x1@4:16+patch").eval()
    found = waves(model)
    control = found.random()
    assert control.model is model and control.basis is None
    assert all(torch.equal(a, b) for a, b in zip(control.coefficients, found.random().coefficients, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(control.coefficients, found.coefficients, strict=True))
    assert control.residual(photos(2, 16, 16)).path_inconsistency > 0


def test_paths_that_start_together_are_measured_as_their_sum() -> None:
    found = waves(NormLinear(8).double())
    q = torch.randn(1, 2, 8, dtype=torch.float64)
    together, apart = measure_paths(found, q, (4, 4)), measure_paths(found, q, (4, 4), "scatter")
    assert together.residual["mean"] != apart.residual["mean"]
    twice = measure_paths(found, q[:, :1].expand(1, 2, 8), (4, 4))
    alone = measure_paths(found, q[:, :1], (4, 4))
    assert twice.residual == pytest.approx(alone.residual)


def test_unit_speeds_hold_everywhere() -> None:
    found = measure_paths(waves(UnitSpeeds(8).double()), torch.randn(2, 3, 8, dtype=torch.float64), (5, 5), "scatter")
    assert found.residual["mean"] <= 1e-14 and found.path_inconsistency <= 1e-14
    assert found.shares["unit"] == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (6, 1)])
def test_a_map_of_one_line_has_nothing_to_measure(size: tuple[int, int]) -> None:
    found = measure_paths(waves(NormLinear(8)), torch.randn(2, 1, 8), size)
    assert found.residual == {"horizontal": 0, "vertical": 0, "mean": 0}
    assert found.path_inconsistency == 0 and math.isnan(found.explained.model_Q)
    assert torch.isnan(found.residual_map).all()


def test_undefined_speeds_have_no_residual() -> None:
    A, B = torch.randn(2, 8, 8, dtype=torch.float64)
    A[:, 4:] = B[:, 4:] = 0  # a singular pencil
    found = measure_paths(waves(Coefficients(A, B, A, B)), torch.randn(1, 1, 8, dtype=torch.float64), (4, 4))
    assert math.isnan(found.residual["mean"]) and found.shares["undefined"] > 0
    assert found.to_dict()["residual"] == {"horizontal": None, "vertical": None, "mean": None}


def test_larger_images_are_tiled_and_their_maps_joined() -> None:
    model = Autoencoder("mf-w720/16x1@8:32").eval()
    found = measure_waves(waves(model), [photos(1, 70, 40)[0], photos(1, 32, 32)[0]])
    assert found.images == 2
    assert [tuple(one.shape) for one in found.maps["mean"]] == [(21, 14), (7, 7)]
    assert found.residual_map.shape == (21, 14)
    batch = measure_waves(waves(model), photos(2, 32, 32))
    assert batch.residual == pytest.approx(waves(model).residual(list(photos(2, 32, 32))).residual, rel=1e-3)
    assert "maps" not in batch.to_dict()


def test_measuring_does_not_change_the_model() -> None:
    model = Autoencoder("mf-w720/16x1@4:32+batchnorm").train()
    model.encoder.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    figures = health(model, photos(2, 32, 32))
    assert set(figures) == {"path_inconsistency", "sigma_min", "sigma_max"}
    assert model.training and model.transition.training and not model.encoder.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_health_agrees_with_the_measurement() -> None:
    for name in ("mf-w720/16x1@4:32", "mf-w720/16x4@4:32+scatter+real"):
        model, images = Autoencoder(name).eval(), photos(3, 32, 32)
        figures, found = health(model, images), measure_waves(waves(model), images)
        for key in ("path_inconsistency", "sigma_min", "sigma_max"):
            assert figures[key] == pytest.approx(getattr(found, key), rel=1e-4)
        B = restrict(model.transition.coefficients().B.detach().double())
        assert figures["cond_B"] == pytest.approx(float(torch.linalg.cond(B)), rel=1e-4)
    assert health(Autoencoder("mf-w720/16x4@4:32+convae"), images) == {}


def test_invalid_measurements_raise() -> None:
    model = wave_model("waves/16x1@4:16", torch.float32)
    with pytest.raises(ValueError, match="matrices"):
        measure_waves(waves(model.transition), photos(1, 16, 16))
    with pytest.raises(ValueError, match="got 0"):
        measure_waves(waves(model), [])
    with pytest.raises(ValueError, match=r"shape \(3, 16, 16\)"):
        measure_waves(waves(model), photos(1, 16, 16)[0])
    with pytest.raises(ValueError, match=r"norm\+linear"):
        measure_waves(waves(Autoencoder("mf-w720/8x1@8:32+linear")), photos(1, 32, 32))
    with pytest.raises(ValueError, match="5"):
        measure_paths(waves(model), torch.randn(1, 1, 5), (4, 4))


@pytest.mark.parametrize(
    "name", ["waves/16x1@4:16", "mf-w720/8x4@4:32+unit", "mf-w720/8x2@4:32+real+scatter", "waves/3x1@4:16"]
)
def test_a_plot_is_written_for_every_kind_of_waves(name: str, tmp_path) -> None:
    model = Autoencoder(name).eval()
    images = photos(1, 40, 36)
    found = waves(model)
    path = plot_waves(found, found.residual(images), images, tmp_path / "waves.png", "left-up")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["waves.png"]


def test_invalid_plot_paths_raise(tmp_path) -> None:
    model = Autoencoder("waves/16x1@4:16").eval()
    images = photos(1, 16, 16)
    found = waves(model)
    measured = found.residual(images)
    with pytest.raises(ValueError, match=r"waves\.doc"):
        plot_waves(found, measured, images, tmp_path / "waves.doc")
    with pytest.raises(FileNotFoundError, match="none"):
        plot_waves(found, measured, images, tmp_path / "none" / "waves.png")
    with pytest.raises(ValueError):
        plot_waves(waves(model.transition), measured, images, tmp_path / "waves.png")
    assert not list(tmp_path.iterdir())

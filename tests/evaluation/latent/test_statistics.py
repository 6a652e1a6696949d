from __future__ import annotations

import pytest
import torch

import finola
from finola.config import DEFAULT_CODEC, DEFAULT_MODEL
from finola.errors import CorruptFileError
from finola.evaluation.latent import Statistics, decode, encode, fit, stored_statistics
from finola.evaluation.latent.operations import without_slack
from finola.evaluation.latent.statistics import Exact, Incremental, identity
from finola.hub import bundled_models


@pytest.fixture(scope="module")
def images():
    return torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def vectors(count: int = 300, size: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    scales = 0.7 ** torch.arange(size)
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    return torch.randn(count, size, generator=generator, dtype=torch.float64) * scales @ turn + 100


@pytest.mark.parametrize("sizes", [[300], [1] * 300, [7, 100, 193]])
def test_moments_of_blocks_equal_those_of_all_vectors(sizes):
    """However the stream is cut, and far from zero, where a covariance of raw sums would lose its digits."""
    x = vectors()
    running = Exact(x.shape[1])
    for part in x.split(sizes):
        running.add(part)
    directions, variances = running.components()
    assert running.count == 300 and torch.allclose(running.mean, x.mean(0))
    rebuilt = directions.T * variances @ directions
    assert torch.allclose(rebuilt, torch.cov(x.T), atol=1e-10)
    assert running.total == pytest.approx(float(torch.cov(x.T).trace()))


def test_incremental_pca_with_all_components_is_exact():
    x = vectors()
    exact, incremental = Exact(24), Incremental(24, keep=24)
    for part in x.split(40):
        exact.add(part)
        incremental.add(part)
    (_, expected), (directions, variances) = exact.components(), incremental.components()
    assert torch.allclose(variances, expected, rtol=1e-8)
    assert torch.allclose(directions.T * variances @ directions, torch.cov(x.T), atol=1e-10)
    assert incremental.total == pytest.approx(exact.total)


def test_incremental_pca_computes_the_first_components():
    x = vectors(2000)
    exact, incremental = Exact(24), Incremental(24, keep=8)
    for part in x.split(16):
        exact.add(part)
        incremental.add(part)
    (there, expected), (directions, variances) = exact.components(), incremental.components()
    assert len(directions) == 8
    assert torch.allclose(variances[:4], expected[:4], rtol=0.01)
    assert float((directions[:3] * there[:3]).sum(1).abs().min()) > 0.99
    assert incremental.total == pytest.approx(exact.total)  # including components that are not stored


def test_statistics_of_q_are_its_mean_and_covariance(model, images):
    statistics = fit(model, images)
    q = without_slack(model, model.encode(images)).flatten(1)
    assert torch.allclose(statistics.mean.flatten(), q.mean(0), atol=1e-4)
    assert torch.allclose(statistics.covariance(), torch.cov(q.T), atol=1e-3)
    assert statistics.explained()[-1] == pytest.approx(1, abs=1e-5)
    identity_matrix = torch.eye(len(statistics.components))
    assert torch.allclose(statistics.components @ statistics.components.T, identity_matrix, atol=1e-4)


def test_the_slack_of_a_wave_model_is_in_no_component(model, images):
    """It follows from the other channels and does not affect the image, so no component should contain it."""
    statistics = fit(model, images)
    slack = model.encoder.basis.vectors()[:, model.encoder.basis.size].float()
    assert float((statistics.components @ slack).abs().max()) < 1e-5
    assert float((encode(model, images).q[:, 0] @ slack).var()) > 0.01


def test_photos_larger_than_the_model_count_as_their_whole_tiles(model):
    photo = torch.rand(3, 70, 100)
    statistics = fit(model, [photo])
    assert statistics.count == 6  # 2 × 3; what is left at the right and below would be mostly padding
    tiles = fit(model, [photo[:, y : y + 32, x : x + 32] for y in (0, 32) for x in (0, 32, 64)])
    assert torch.allclose(statistics.mean, tiles.mean, atol=1e-5)


def test_bytes_and_floats_are_the_same_images(model):
    pixels = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8)
    assert torch.allclose(fit(model, pixels).mean, fit(model, pixels / 255).mean, atol=1e-6)


def test_saved_statistics_are_loaded_unchanged(model, images, tmp_path):
    statistics = fit(model, images, components=5)
    statistics.save(tmp_path / "q.safetensors")
    again = Statistics.load(tmp_path / "q.safetensors", finola.load(str(model.config)))
    assert len(again.components) == 5 and again.count == 40 and again.total == statistics.total
    for name in ("mean", "components", "variances"):
        assert torch.equal(getattr(again, name), getattr(statistics, name))
    assert [path.name for path in tmp_path.iterdir()] == ["q.safetensors"]


def test_statistics_of_another_model_or_other_weights_raise(model, images, tmp_path):
    path = tmp_path / "q.safetensors"
    fit(model, images).save(path)
    with pytest.raises(ValueError, match=r"waves/64x1@8:32 .* waves/64x1@16:32"):
        Statistics.load(path, finola.load("waves/64x1@16:32"))
    trained = finola.load(str(model.config))
    with torch.no_grad():
        trained.decoder.read_out.linear.bias += 0.01
    with pytest.raises(ValueError, match="weights start"):
        Statistics.load(path, trained)


def test_statistics_in_the_package_belong_to_its_weights():
    found = {name: path for name in bundled_models("autoencoder") if (path := stored_statistics(name))}
    assert {DEFAULT_MODEL, DEFAULT_CODEC} <= found.keys()
    assert all(Statistics.load(path, finola.load(name)).count > 1000 for name, path in found.items())


def test_a_start_that_differs_in_its_last_bits_is_the_same_start(model):
    rounded = finola.load(str(model.config))
    with torch.no_grad():
        rounded.encoder.analysis[0] *= 1 + 1e-6
    assert identity(rounded) == identity(model) == "start"


@pytest.mark.parametrize("content", [b"", b"no safetensors at all"])
def test_a_file_without_statistics_raises(model, tmp_path, content):
    (tmp_path / "q.safetensors").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"q\.safetensors"):
        Statistics.load(tmp_path / "q.safetensors", model)
    with pytest.raises(FileNotFoundError, match="finola latent fit"):
        Statistics.load(tmp_path / "none.safetensors", model)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        Statistics.load(tmp_path / "model" / "model.safetensors", model)


def test_too_few_images_and_too_many_components_raise(model, images):
    with pytest.raises(ValueError, match=r"at least 2 .* got 1"):
        fit(model, images[:1])
    with pytest.raises(ValueError, match=r"components is 65, .* 64"):
        fit(model, images, components=65)


def test_any_model_has_statistics():
    model = finola.create("mf-w720/16x2@4:64").eval()
    images = torch.rand(6, 3, 64, 64)
    exact, incremental = fit(model, images), fit(model, images, incremental=True)
    assert exact.mean.shape == (2, 16) and len(exact.components) == 5
    assert torch.allclose(exact.variances, incremental.variances[:5], rtol=1e-3)
    assert torch.allclose(decode(model, encode(model, images).q), model(images).clamp(0, 1), atol=1e-4)

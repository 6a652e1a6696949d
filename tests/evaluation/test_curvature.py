from __future__ import annotations

import pytest
import torch

from finola.autoencoder import Autoencoder
from finola.evaluation.curvature import CurvatureMap, curvature, feature_map, peak_curvature, peaks
from finola.heads import Classifier
from finola.masked import MaskedFinola
from finola.model_zoo import load_encoder, load_model
from finola.plotting.curvature import plot_curvature


def grid(side: int = 41) -> tuple[torch.Tensor, torch.Tensor]:
    axis = torch.arange(side, dtype=torch.float64) - side // 2
    return axis[None, :].expand(side, side), axis[:, None].expand(side, side)


def test_a_sphere_has_constant_curvature():
    x, y = grid()
    radius = 60.0
    kappa = curvature((radius**2 - x**2 - y**2).sqrt())
    assert torch.allclose(kappa, torch.full_like(kappa, 1 / radius**2), rtol=2e-3)


def test_planes_and_cylinders_have_zero_curvature():
    x, y = grid()
    assert float(curvature(0.3 * x - 2 * y + 5).abs().max()) < 1e-12
    for cylinder in ((900 - x**2).sqrt(), (900 - y**2).sqrt(), 0.02 * (x + y) ** 2):
        assert float(curvature(cylinder).abs().max()) < 1e-12


@pytest.mark.parametrize("turned", [False, True])
def test_curvature_of_a_saddle_equals_the_closed_form(turned):
    """z = a·x·y, or turned by 45° a·(x² − y²)/2: κ = −a²/(1 + a²(x² + y²))². Differences are exact on both."""
    x, y = grid()
    a = 0.1
    z = a * (x**2 - y**2) / 2 if turned else a * x * y
    expected = -(a**2) / (1 + a**2 * (x**2 + y**2)).square()
    assert torch.allclose(curvature(z), expected[1:-1, 1:-1], rtol=1e-10)


def test_curvature_is_invariant_to_offset_sign_and_reflection():
    z = torch.randn(5, 9, 12, dtype=torch.float64)
    kappa = curvature(z)
    assert kappa.shape == (5, 7, 10)
    assert torch.allclose(curvature(z + 7), kappa) and torch.allclose(curvature(-z), kappa)
    assert torch.allclose(curvature(z.flip(-1)), kappa.flip(-1))
    assert torch.allclose(curvature(z.mT), kappa.mT)


def test_channels_are_ranked_by_the_rms_of_their_peaks():
    x, y = grid(9)
    bowl, saddle, plane = 0.5 * (x**2 + y**2), 0.5 * x * y, x
    one = CurvatureMap.of("made", torch.stack([plane, saddle, bowl]))
    positive, negative = peaks(one.kappa)
    assert positive.tolist() == pytest.approx([0, 0, 1]) and negative.tolist() == pytest.approx([0, -0.25, 0])
    assert peak_curvature(one.kappa).tolist() == pytest.approx([0, 0.25 / 2**0.5, 1 / 2**0.5])
    assert one.order.tolist() == [2, 1, 0]
    assert [row["channel"] for row in one.summary(count=2)["most_curved"]] == [2, 1]


def test_a_map_smaller_than_3x3_raises():
    with pytest.raises(ValueError, match=r"\(1, 2, 8\)"):
        curvature(torch.zeros(1, 2, 8))


@pytest.mark.parametrize("variant", ["e", "b"])
def test_maps_of_masked_models_have_the_shapes_of_plain_ones(variant):
    masked = MaskedFinola("mf-w720/8x1@4:64+patch", variant).eval()
    plain = Autoencoder("mf-w720/8x1@4:64").eval()
    image = torch.rand(3, 64, 64)
    assert feature_map(masked, image).shape == feature_map(plain, image).shape == (8, 4, 4)
    assert feature_map(masked, image, "encoder").shape == feature_map(plain, image, "encoder").shape


def test_the_propagated_map_of_a_masked_model_depends_on_the_centre_block_only():
    masked = MaskedFinola("mf-w720/8x1@4:64+patch", "b").eval()
    image = torch.rand(3, 64, 64)
    other = image.clone()
    other[:, :16] = 0
    assert torch.equal(feature_map(masked, image), feature_map(masked, other))
    assert not torch.equal(feature_map(masked, image, "encoder"), feature_map(masked, other, "encoder"))


def test_a_wave_model_has_no_encoder_map():
    with pytest.raises(ValueError, match="waves/16x1@4:16"):
        feature_map(Autoencoder("waves/16x1@4:16"), torch.rand(3, 16, 16), "encoder")


def test_any_encoder_has_a_curvature(tmp_path):
    Classifier("test_resnet", "lin", ["a", "b"]).save_pretrained(tmp_path / "classifier")
    for model in (load_model("test_resnet", untrained=True), load_model(tmp_path / "classifier")):
        z = feature_map(model, torch.rand(3, 64, 96), "encoder")
        channels = getattr(model, "encoder", model).channels
        assert z.shape == (channels, 4, 6) and CurvatureMap.of("encoder", z).kappa.isfinite().all()
        with pytest.raises(ValueError, match="no map z"):
            feature_map(model, torch.rand(3, 64, 96))


def test_the_map_of_a_classifier_is_that_of_its_encoder(tmp_path):
    Classifier("test_resnet", "lin", ["a", "b"]).save_pretrained(tmp_path / "classifier")
    image = torch.rand(3, 64, 96)
    whole, encoder = load_model(tmp_path / "classifier"), load_encoder(tmp_path / "classifier")
    assert torch.equal(feature_map(whole, image, "encoder"), feature_map(encoder, image, "encoder"))


def test_an_encoder_without_trained_weights_is_built_only_if_asked():
    for name in ("test_resnet", "mf-w720"):
        assert load_model(name, untrained=True).channels == load_encoder(name).channels
        with pytest.raises((ValueError, FileNotFoundError), match=name):
            load_model(name)


def test_models_are_loaded_with_their_recurrence(tmp_path):
    MaskedFinola("mf-w720/8x1@4:64+patch", "b").save_pretrained(tmp_path / "masked")
    assert isinstance(load_model(str(tmp_path / "masked")), MaskedFinola)
    assert isinstance(load_model("waves/16x1@4:16"), Autoencoder)


def test_the_legend_names_both_models():
    found = [CurvatureMap.of(name, torch.randn(6, 5, 5)) for name in ("one", "two")]
    figure = plot_curvature(found, torch.rand(3, 8, 8), "title")
    legend = [text.get_text() for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()]
    assert legend == ["one", "two"] and len(figure.axes) == 2 + 2 * 4

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

import finola
from finola.cli import main
from finola.config import ModelConfig
from finola.encoders.waves import RIDGE, WITHIN, WaveEncoder
from finola.image_io import read_photo
from finola.metrics import psnr
from finola.propagation import start_positions
from finola.wave.basis import WaveBasis
from finola.wave.initialisation import initialise_waves
from finola.wave.spectrum import OPPONENT, Spectrum, measure_spectrum

NAMES = [
    "waves/64x1@4:16",
    "waves/63x1@4:16",
    "waves/64x1@16:16",
    "waves/64x1@1:16",
    "waves/48x1@4x2:16x32",
    "waves/64x1@4:16+corner",
    "waves/64x1@4:16+bottom-right",
    "waves/64x1@4:16+at0x3",
    "waves/40x3@4:16",
    "waves/40x4@4:16+scatter",
    "waves/5x1@4:16",
    "waves/3x1@4:16",
    "waves/300x1@2:8",
]


def dense_waves(encoder: WaveEncoder) -> torch.Tensor:
    """Image of each coordinate, (size, 3·H·W), computed from the definition."""
    basis, config = encoder.basis, encoder.config
    y0, x0 = start_positions(config.start, config.map_size, config.paths)[0]
    y = (torch.arange(config.image_size[0]) - y0 * config.cell[0]).double()[:, None]
    x = (torch.arange(config.image_size[1]) - x0 * config.cell[1]).double()[None, :]
    images = torch.zeros(basis.size, 3, *config.image_size, dtype=torch.float64)
    for (u, v), colour, c in zip(basis.frequencies(), basis.waves[:, 2], basis.pairs, strict=True):
        for index, wave in ((c, torch.cos), (c + 1, torch.sin)):
            images[index] = OPPONENT[colour][:, None, None] * wave(u * x + v * y)
    for index, colour in zip(basis.mean_index(), basis.means, strict=True):
        images[index] = OPPONENT[colour][:, None, None]
    return images.flatten(1)


@pytest.mark.parametrize("channels", [256, 2048, 3072])
def test_all_channels_carry_waves_if_the_image_has_more_pixels(channels):
    basis = WaveBasis(ModelConfig.parse(f"waves/{channels}x1@16:64"))
    assert basis.spare <= 1  # a wave takes two coordinates


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_is_dense_least_squares(name):
    encoder = WaveEncoder(ModelConfig.parse(name))
    Phi = dense_waves(encoder)
    blocks = torch.block_diag(*encoder.gram())
    ridge = blocks - Phi @ Phi.T
    assert torch.allclose(ridge, torch.diag(ridge.diagonal()), atol=1e-6 * blocks.abs().max())
    assert (ridge.diagonal() <= 1.001 * RIDGE * blocks.diagonal().max()).all()
    images = torch.rand(3, 3, *encoder.config.image_size)
    expected = torch.linalg.solve(blocks, Phi @ (images.double() - 0.5).flatten(1).T).T
    found = encoder.analyse(images) / encoder.basis.gain
    # The ridge bounds the condition number by about 1 / RIDGE = 3e3; times the eps of float32, 1e-7, that is 4e-4.
    assert torch.allclose(found.double(), expected, atol=1e-3 * expected.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_the_recurrence_is_the_inverse_fourier_sum(name):
    model = finola.create(name).eval()
    images = torch.rand(2, 3, *model.config.image_size)
    amplitudes = model.encoder.analyse(images).double() / model.encoder.basis.gain
    drawn = (amplitudes @ dense_waves(model.encoder) + 0.5).reshape(images.shape)
    with torch.no_grad():
        # float32 sums over up to 300 channels, measured 4e-6 at most; one level of a pixel is 4e-3.
        assert torch.allclose(model(images).double(), drawn, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
# In float32 up to 3e-6, depending on how a product over 300 channels is divided among threads.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (torch.float64, 1e-10)])
def test_sigma_is_constant_and_both_orders_agree(name, dtype, tolerance):
    model = initialise_waves(finola.create(name).to(dtype)).eval()  # matrices in the requested precision
    with torch.no_grad():
        q = model.encode(torch.rand(2, 3, *model.config.image_size, dtype=dtype))
        for path in range(model.config.paths):
            horizontal, vertical = (
                finola.propagate(q[:, [path]], model.transition.prepared(), model.config.map_size, order=order)
                for order in ("horizontal", "vertical")
            )
            assert (horizontal - vertical).norm() / vertical.norm() <= tolerance
            sigma = horizontal.var(1, correction=0).sqrt()
            assert (sigma.max() - sigma.min()) / sigma.mean() <= tolerance


def test_several_paths_start_from_the_picture_of_one():
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        one = finola.create("waves/40x1@4:16").eval()(images)
        for name in ("waves/40x3@4:16", "waves/40x4@4:16+scatter"):
            model = finola.create(name).eval()
            assert torch.allclose(model(images), one, atol=1e-5)
            q = model.encode(images)
            assert not torch.allclose(q[:, 0], q[:, 1], atol=1e-2)  # unequal shares


@pytest.mark.parametrize("refinement", ["conv", "mf-w720", "resnet18"])
def test_refinements_change_nothing_before_training_and_everything_trains(refinement):
    images = torch.rand(2, 3, 32, 32)
    plain = finola.create("waves/40x2@4:32").eval()
    refined = finola.create(f"waves+{refinement}/40x2@4:32").eval()
    with torch.no_grad():
        assert torch.allclose(refined(images), plain(images), atol=1e-6)
    refined(images).square().mean().backward()
    moved = {name.split(".")[0] for name, p in refined.named_parameters() if p.grad is not None and p.grad.any()}
    assert {"encoder", "transition", "decoder"} <= moved
    last = refined.encoder.refinement.last.weight.grad
    assert last is not None and last.any()


def test_q_lies_on_its_sphere_and_the_slack_is_redundant():
    model = finola.create("waves+conv/64x2@4:16").eval()
    basis = model.encoder.basis
    with torch.no_grad():
        q = model.encode(torch.rand(4, 3, 16, 16))
        assert torch.allclose(q.square().sum(-1), torch.full((4, 2), 64.0), rtol=1e-5)
        assert q.mean(-1).abs().max() < 1e-6
        assert torch.allclose(basis.complete(basis.coordinates(q)), q, atol=1e-5)


def test_a_picture_too_strong_for_the_sphere_is_scaled_onto_it():
    basis = WaveBasis(ModelConfig.parse("waves/64x1@4:16"))
    q = basis.complete(100 * torch.randn(3, basis.size))
    assert torch.allclose(q.square().sum(-1), torch.full((3,), 64.0), rtol=1e-5) and q.isfinite().all()


def test_projection_onto_the_sphere_changes_the_image_least():
    """Ridge regression onto the sphere has a lower error than scaling, and does not change images inside it."""
    encoder = finola.create("waves/256x1@16:64").eval().encoder
    torch.manual_seed(0)
    checks = (torch.rand(4, 3, 8, 8) > 0.5).float().repeat_interleave(8, 2).repeat_interleave(8, 3)
    calm = 0.5 + 0.1 * torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        y = encoder.analyse(torch.cat([checks, calm]))
        fitted = encoder.fit_into_sphere(y)
        limit = WITHIN * 16
        assert (y[:4].norm(dim=1) > limit).all() and (y[4:].norm(dim=1) < limit).all()
        assert torch.equal(fitted[4:], y[4:])
        assert torch.allclose(fitted[:4].norm(dim=1), torch.full((4,), limit), rtol=1e-3)
        grams = torch.block_diag(*encoder.gram()).float()
        scaled = y[:4] * (limit / y[:4].norm(dim=1, keepdim=True))
        lost = [(((other - y[:4]) @ grams) * (other - y[:4])).sum(1) for other in (fitted[:4], scaled)]
        assert (lost[0] < 0.5 * lost[1]).all()


def test_white_and_black_fit_into_the_sphere():
    model = finola.create("waves/256x1@16:64").eval()
    with torch.no_grad():
        for shade in (0.0, 1.0):
            image = torch.full((1, 3, 64, 64), shade)
            assert torch.allclose(model(image), image, atol=0.02)  # the ridge has a small error in the corners


def test_an_untrained_wave_model_reconstructs_a_photo():
    photo = read_photo("skimage:astronaut")[None, :, :256, 128:384]
    with torch.no_grad():
        for name, at_least in (("waves/256x1@16:64", 22.0), ("waves/1024x1@16", 19.0), ("waves/256x1@8:96", 19.0)):
            assert psnr(finola.create(name).eval()(photo), photo).item() > at_least, name


def test_tiles_are_decoded_across_their_borders():
    torch.manual_seed(0)
    model = finola.create("waves+conv/40x1@4:16").eval()
    for parameter in model.decoder.refinement.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # as if trained
    photo = torch.rand(1, 3, 16, 32)
    with torch.no_grad():
        joined = model(photo)
        apart = torch.cat([model(half) for half in photo.split(16, dim=3)], dim=3)
    difference = (joined - apart).abs().amax((0, 1, 2))
    assert difference[15:17].min() > 1e-4  # pixels at the boundary depend on both tiles


@pytest.mark.parametrize("option", ["+real", "+unit", "+mlp", "+linear"])
def test_other_transitions_cannot_be_initialised_from_waves(option):
    with pytest.raises(ValueError, match=r"mf-w720/64x1@4:32"):
        finola.create(f"mf-w720/64x1@4:32{option}", init="waves")


def test_matrices_alone_can_be_initialised_from_waves(tmp_path):
    model = finola.create("residual-w8/64x1@4:32", init="wave-matrices")
    waves, other = finola.create("waves/64x1@4:32"), finola.create("residual-w8/64x1@4:32")
    for name in "AB":
        assert torch.equal(getattr(model.transition, name), getattr(waves.transition, name))
    assert [key for key, _ in model.named_parameters()] == [key for key, _ in other.named_parameters()]
    images = torch.rand(2, 3, 32, 32)
    model.eval().save_pretrained(tmp_path)
    assert torch.equal(finola.load(tmp_path)(images), model(images))
    with pytest.raises(ValueError, match="real speeds"):
        finola.create("residual-w8/64x1@4:32+real", init="wave-matrices")


@pytest.mark.parametrize("decoder", ["", "+patch", "+refined", "+tran1"])
def test_any_encoder_supports_wave_initialisation(decoder, tmp_path):
    model = finola.create(f"mf-w720/64x1@4:32{decoder}", init="waves").eval()
    plain = finola.create("waves/64x1@4:32").eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        q = model.wave_encoder(images)
        assert torch.allclose(model.decode(model.propagate(q)), plain(images), atol=1e-5)
        model.save_pretrained(tmp_path / "model")
        assert torch.equal(finola.load(tmp_path / "model")(images), model(images))


@pytest.fixture(scope="module")
def grey_spectrum() -> Spectrum:
    """Spectrum of grey noise, which has no waves of other colours."""
    noise = torch.rand(20, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    return measure_spectrum([noise.expand(20, 3, 16, 16)], side=16, keep=40)


def test_a_wave_initialised_model_saves_and_loads_its_own_waves(tmp_path, grey_spectrum):
    """Another spectrum has other counts per colour, so all shapes come from the file."""
    model = initialise_waves(finola.create("waves+conv/64x1@4:16"), grey_spectrum).eval()
    assert (model.encoder.basis.waves[:, 2] == 0).all()
    model.save_pretrained(tmp_path / "model")
    again = finola.load(tmp_path / "model")
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    assert torch.equal(again.encoder.basis.waves, model.encoder.basis.waves)


@pytest.mark.parametrize("own", [False, True])
def test_the_analysis_of_an_additional_wave_encoder_is_recomputed_not_stored(tmp_path, own, grey_spectrum):
    model = initialise_waves(finola.create("test_resnet/64x1@4:16"), grey_spectrum if own else None).eval()
    model.save_pretrained(tmp_path / "model")
    assert not [key for key in load_file(tmp_path / "model" / "model.safetensors") if "analysis" in key]
    again, images = finola.load(tmp_path / "model"), torch.rand(2, 3, 16, 16)
    assert torch.allclose(again.wave_encoder(images), model.wave_encoder(images), atol=1e-4)
    assert not any(parameter.requires_grad for parameter in again.wave_encoder.parameters())


def test_the_strongest_wave_is_found():
    x, y = torch.arange(16.0)[None, :], torch.arange(16.0)[:, None]
    angle = 2 * math.pi * (3 * x - 5 * y) / (16 * 17 / 16)
    images = 0.5 + 0.3 * torch.stack([torch.cos(angle), torch.cos(angle), torch.cos(angle)])[None]
    spectrum = measure_spectrum([images], side=16, keep=10)
    assert spectrum.ranking[0].tolist() == [6, -10, 0]  # half-cycle steps up to a side of 64


def test_a_wave_has_a_description():
    basis = WaveBasis(ModelConfig.parse("waves/64x1@16:64"))
    assert basis.describe(0).startswith("luma, ") and "px per cycle" in basis.describe(0)


def test_frequencies_survive_every_dtype():
    model = finola.create("waves/64x1@4:16")
    expected = model.encoder.basis.frequencies()
    assert torch.equal(model.bfloat16().encoder.basis.frequencies(), expected)


def test_spectrum_command(tmp_path, capsys):
    out = tmp_path / "spectra.json"
    assert main(["spectrum", "smoke", "--sides", "16", "--waves", "20", "--limit", "20", "-o", str(out)]) == 0
    (entry,) = json.loads(out.read_text())["spectra"]
    spectrum = Spectrum.from_json(entry)
    assert spectrum.side == 16 and len(spectrum.ranking) == 20 and 0.1 < spectrum.radius < 10
    assert [path.name for path in tmp_path.iterdir()] == ["spectra.json"]


def test_too_few_channels_raise():
    with pytest.raises(ValueError, match=r"waves/2x1@4:16.*3.*2"):
        finola.create("waves/2x1@4:16")


def test_the_decoder_refinement_is_initialised_from_decoded_pixels() -> None:
    """The first layer of the refinement depends only on what the read-out decodes.

    Computed in float64, because the singular values of the read-out span more digits than float32 has. The weights
    themselves were rounded to float32, which leaves about 2⁻²⁴ · √64 = 5e-7.
    """
    model = finola.create("waves+conv/64x1@16:32").double()
    features = model.decoder.refinement.on_map[0]  # type: ignore[union-attr]
    read_out = model.decoder.read_out.linear.weight.detach()  # (3·2·2, 64)
    z = torch.randn(1, 64, 16, 16, dtype=torch.float64)
    unseen = z - torch.einsum(
        "dc,ndhw->nchw", torch.linalg.pinv(read_out).T, torch.einsum("dc,nchw->ndhw", read_out, z)
    )
    assert features(unseen).abs().max() < 1e-5 * features(z).abs().max()

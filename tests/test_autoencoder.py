from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import finola
from finola.autoencoder import Autoencoder, position_embedding
from finola.checks import check_values
from finola.encoders import build_encoder
from finola.errors import InputError
from finola.masked import MaskedFinola
from finola.model_counts import count
from finola.model_zoo import create, known_names, load
from finola.transitions import NormLinear

TINY = "mf-w720/16x2@8:32"


def tiny(name: str = TINY) -> Autoencoder:
    return create(name).eval()


def test_forward_is_encode_propagate_decode():
    model = tiny()
    images = torch.rand(2, 3, 32, 32)
    q = model.encode(images)
    z = model.propagate(q)
    assert q.shape == (2, 2, 16) and z.shape == (2, 16, 8, 8)
    assert torch.equal(model(images), model.decode(z))


@pytest.mark.parametrize(
    "option",
    ["", "+scatter", "+corner", "+at2x5", "+real", "+unit", "+commuting", "+linear", "+repeat", "+repeat+pos", "+mlp",
     "+batchnorm", "+patch", "+tran2"],
)  # fmt: skip
def test_every_option_builds_runs_and_trains(option):
    model = create(TINY + option)
    images = torch.rand(2, 3, 32, 32)
    (model(images) - images).square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_conv_ae_builds_and_runs():
    model = create("mf-w720/16x4@8:32+convae").eval()
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 3, 32, 32)
    assert model.propagate(model.encode(torch.rand(1, 3, 32, 32))).shape == (1, 1024, 8, 8)


def test_any_timm_backbone_can_encode():
    model = create("resnet18/16x1@4:64+patch").eval()
    assert model(torch.rand(1, 3, 64, 64)).shape == (1, 3, 64, 64)


def test_any_photo_size_by_tiles():
    model = tiny()
    photo = torch.rand(1, 3, 45, 70)
    with torch.no_grad():
        assert model(photo).shape == photo.shape
        whole = torch.rand(1, 3, 32, 64)
        left, right = (model.propagate(model.encode(half)) for half in whole.split(32, dim=3))
        assert torch.allclose(model(whole), model.decode(torch.cat([left, right], dim=3)), atol=1e-5)


def test_a_saved_model_is_restored(tmp_path):
    model = tiny(TINY + "+real")
    model.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["name"] == TINY + "+real"
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # no temporary file is left
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        for again in (load(tmp_path / "model"), Autoencoder.from_pretrained(tmp_path / "model").eval()):
            assert torch.equal(again(images), model(images))


def test_saving_over_a_model_replaces_it(tmp_path):
    tiny().save_pretrained(tmp_path / "model")
    second = tiny()
    second.save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), second.parameters(), strict=True))


def test_gradient_checkpointing_changes_no_gradient():
    images = torch.rand(2, 3, 32, 32)
    gradients = []
    for enable in (False, True):
        torch.manual_seed(1)
        model = create(TINY + "+patch")
        model.set_grad_checkpointing(enable)
        model(images).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.allclose(plain, recomputed, rtol=1e-3, atol=1e-4 * plain.abs().max().item() + 1e-7)


def test_float64():
    images = torch.rand(1, 3, 32, 32)
    model = tiny(TINY + "+patch")
    with torch.no_grad():
        single, double = model(images), model.double()(images.double())
    assert double.dtype == torch.float64 and torch.allclose(double.float(), single, atol=1e-3)


def test_bfloat16():
    """Run in a subprocess, because bfloat16 raises SIGILL on some CPUs that report instructions they lack."""
    code = f"""
import torch, finola
model = finola.create({TINY + "+patch"!r}).eval()
q = torch.randn(1, 2, 16)
with torch.no_grad():
    expected = model.decode(model.propagate(q))
    out = model.bfloat16().decode(model.propagate(q.bfloat16()))
assert out.dtype == torch.bfloat16
assert (out - expected).abs().mean() < 0.2 * expected.abs().mean() + 0.05
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if run.returncode < 0:
        pytest.skip(f"this CPU cannot run bfloat16 (signal {-run.returncode})")
    assert run.returncode == 0, run.stderr


def test_position_embeddings_are_distinct():
    embedding = position_embedding(16, (8, 8)).flatten(1).T
    assert torch.cdist(embedding, embedding).add(torch.eye(64) * 9).min() > 0.1
    assert position_embedding(5, (3, 4)).shape == (5, 3, 4)


def test_latent_16384_on_one_path_or_on_sixteen():
    """§4.1: 268 M parameters in a matrix against 1 M."""
    one, sixteen = count("mf-w2880/16384x1@64")["propagation"], count("mf-w2880/1024x16@64")["propagation"]
    assert one.parameters == 4 * 268_435_456 and sixteen.parameters == 4 * 1_048_576
    assert one.multiply_adds == 16 * sixteen.multiply_adds


def test_multiply_adds_of_propagation_match_the_formula():
    """4·C²·(H·W − 1) FLOPs per path and image, two per multiply–add."""
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny("mf-w720/16x3@8:32")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        finola.propagate(torch.randn(1, 3, 16), model.transition, (8, 8))  # step by step, nothing shared
    counted = count("mf-w720/16x3@8:32")["propagation"].multiply_adds
    assert counter.get_total_flops() == 2 * counted == 3 * 4 * 16**2 * 63


def test_every_model_of_the_paper_is_a_name():
    names = [name for name in known_names() if "@" in name]
    assert names and all(str(finola.ModelConfig.parse(name)) == name for name in names)


@pytest.mark.parametrize(
    ("run", "error", "values"),
    [
        (lambda m: m(torch.rand(0, 3, 32, 32)), ValueError, r"\(0, 3, 32, 32\)"),
        (lambda m: m(torch.rand(1, 1, 32, 32)), ValueError, r"\(1, 1, 32, 32\)"),
        (lambda m: m.encode(torch.rand(1, 3, 64, 64)), ValueError, "32.*64"),
        (lambda m: m.propagate(torch.rand(1, 2, 8)), ValueError, "2 x 8.*2 x 16"),
        (lambda m: torch.no_grad()(m.propagate)(torch.full((1, 2, 16), torch.nan)), ValueError, "NaN"),
        (lambda m: create("tile6"), ValueError, "'tile6'"),
        (lambda m: create("mf-w721/16x1@8:32"), ValueError, "'mf-w721'.*mf-w720"),
        (lambda m: create("resnet1/16x1@8:32"), ValueError, "resnet"),
        (lambda m: create("mf-w720/16x1@8:32+at9x0"), ValueError, "outside the map"),
        (lambda m: create(TINY, init="wave"), ValueError, "init='wave'"),
        (lambda m: load("nowhere"), FileNotFoundError, "'nowhere'"),
        (lambda m: load(TINY), ValueError, TINY),
    ],
)
def test_invalid_input_raises_with_its_value(run, error, values):
    with pytest.raises(error, match=values):
        run(tiny())


class Halved(torch.nn.Module):
    """Custom transition with only a forward method."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(channels, channels)

    def forward(self, z, direction):
        return z + 0.5 * self.layer(z) * {"right": 1, "left": -1, "down": 2, "up": -2}[direction]


@pytest.mark.parametrize("option", ["", "+real", "+scatter", "+mlp"])
def test_a_custom_transition_is_used_and_trained_and_cannot_be_saved(option, tmp_path):
    model = create(TINY + option)
    model.transition = Halved(16)
    images = torch.rand(2, 3, 32, 32)
    q = model.encode(images)
    expected = finola.propagate(q, model.transition, (8, 8), model.config.start)
    assert torch.equal(model.propagate(q), expected)
    model(images).sum().backward()
    assert model.transition.layer.weight.grad.abs().sum() > 0
    with pytest.raises(InputError, match="Halved"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_subclass_of_a_named_transition_is_not_saved_as_the_named_one(tmp_path):
    class Mine(NormLinear):
        def forward(self, z, direction):
            return 2 * super().forward(z, direction)

    model = tiny()
    model.transition = Mine(16)
    with pytest.raises(InputError, match="Mine"):
        model.save_pretrained(tmp_path / "model")


def test_a_transition_put_into_conv_ae_is_not_ignored():
    model = create("mf-w720/16x4@8:32+convae").eval()
    model.transition = Halved(16)
    q = model.encode(torch.rand(1, 3, 32, 32))
    assert torch.equal(model.propagate(q), finola.propagate(q, model.transition, (8, 8)))


@pytest.mark.parametrize("name", [TINY, "waves/16x1@4:16", "test_resnet/16x1@4:64+patch"])
@pytest.mark.parametrize("run", [lambda m, x: m.encode(x), lambda m, x: m(x), lambda m, x: m(x[..., :-3])])
def test_images_in_0_255_raise(name, run):
    model = tiny(name)
    images = torch.randint(256, (1, 3, *model.config.image_size), dtype=torch.uint8)
    for wrong in (images, images.long(), images > 9, images.float(), images.half()):
        with pytest.raises(InputError, match="255"):
            run(model, wrong)
    noisy = images / 255 + torch.randn(images.shape)
    model.encode(noisy.clamp(-8, 8))


@pytest.mark.parametrize("wrong", ["photo.jpg", Path("photo.jpg"), None, [0.5], np.zeros((1, 3, 64, 64))])
def test_other_types_than_tensors_raise(wrong):
    waves, masked = tiny("waves/16x1@4:16"), MaskedFinola("mf-w720/8x1@4:64+patch")
    encoders = [build_encoder("mf-w720", (64, 64)), build_encoder("test_resnet", (64, 64))]
    for run in (waves, waves.encode, lambda images: masked(images, torch.zeros(1, 2)), *encoders):
        with pytest.raises(InputError, match=type(wrong).__name__):
            run(wrong)


def test_the_value_check_skips_tracing_and_the_meta_device():
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = tiny("test_resnet/16x1@4:64+patch").requires_grad_(False)
    images = torch.rand(1, 3, 64, 64)
    compiled = torch.compile(model.encoder, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(images), model.encoder(images), atol=1e-5)
    assert model.to("meta").encoder(images.to("meta")).is_meta
    with FakeTensorMode() as mode:
        check_values(mode.from_tensor(images))

"""Every model trains and infers in float32, float64, bfloat16 and under autocast."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import finola
from finola.config import ModelConfig
from finola.heads import Classifier
from finola.heads.detector import Detector
from finola.heads.mask_rcnn import Segmenter
from finola.hub import UNTRAINED, bundled_models
from finola.masked import MaskedFinola, masked_loss, random_places
from finola.paper.tables import MODELS

TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
PRECISIONS = [*TYPES, "autocast"]
COARSE = 0.05  # relative difference of bfloat16 and float32, in the norm of a map or an image


def small(name: str) -> str:
    """The same kind of model with few channels, a small map and a small encoder."""
    config = ModelConfig.parse(finola.hub.full_name(name))
    encoder = config.encoder if config.returns_q else "test_resnet"
    return str(replace(config, encoder=encoder, channels=16, map_size=(4, 4), image_size=(32, 32)))


NAMES = sorted(
    {small(name) for names in MODELS.values() for name in names if "@" in name}
    | {small(name) for name in (*UNTRAINED, *UNTRAINED.values())}
    | {
        "mf-w720/16x2@8:32+commuting",
        "mf-w720/16x1@4:64+tran1",
        "test_resnet/16x2@4:32+free",
        "residual-w8/16x1@4:32+refined",
        "residual-w8+linear/16x1@4:32+residual16",
        "waves/16x2@4:16+scatter",
        "waves+nets/64x1@4:16",
    }
)


PROBE = """
import torch, finola
for cast in (False, True):
    model, images = finola.create("mf-w720/64x1@8:128+tran1"), torch.rand(4, 3, 128, 128)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        (model(images) if cast else model.bfloat16()(images.bfloat16())).float().square().mean().backward()
"""


@pytest.fixture(scope="session")
def bfloat16() -> None:
    """Skip a test where bfloat16 ends the process: some CPUs report instructions that they lack."""
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    if run.returncode < 0:
        pytest.skip(f"this CPU cannot run bfloat16 (signal {-run.returncode})")
    assert run.returncode == 0, run.stderr


@pytest.fixture(autouse=True)
def _supported(request: pytest.FixtureRequest) -> None:
    if request.getfixturevalue("precision") in ("bfloat16", "autocast"):
        request.getfixturevalue("bfloat16")


def autocast(precision: str) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()


def train_and_infer(model: nn.Module, images: Tensor, loss_of: Callable[[Any, Tensor], Tensor], precision: str) -> None:
    dtype = TYPES.get(precision, torch.float32)
    model, images = model.to(dtype).train(), images.to(dtype)
    with autocast(precision):
        loss = loss_of(model, images)
        loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def error(model: nn.Module, images: Tensor) -> Tensor:
    return (model(images) - images).square().mean()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_autoencoders(name: str, precision: str) -> None:
    torch.manual_seed(0)
    model = finola.create(name)
    images = torch.rand(2, 3, *model.config.image_size)
    train_and_infer(model, images, error, precision)
    with torch.no_grad(), autocast(precision):
        out = model.eval()(images.to(TYPES.get(precision, torch.float32)))
    assert out.isfinite().all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", ["e", "b"])
def test_masked_models(variant: str, precision: str) -> None:
    torch.manual_seed(0)
    model = MaskedFinola("mf-w720/16x1@8:128+patch", variant)
    places = random_places(3, model.map_size)
    train_and_infer(model, torch.rand(3, 3, 128, 128), lambda m, x: masked_loss(m(x, places), x), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("head", ["lin", "tran-1", "mf-dec-211", "mask-rcnn"])
def test_heads(head: str, precision: str) -> None:
    torch.manual_seed(0)
    dtype = TYPES.get(precision, torch.float32)
    model: nn.Module
    if head in ("lin", "tran-1"):
        model = Classifier("mf-w720", head, 3, image_size=64, frozen=False)

        def loss_of(m: Any, x: Tensor) -> Tensor:
            return nn.functional.cross_entropy(m(x), torch.tensor([0, 2]))
    else:
        kind = Detector if head == "mf-dec-211" else Segmenter
        model = kind("mf-w720", head, ["a"], frozen=False, size=(64, 64))
        masks = torch.zeros(1, 64, 64, dtype=torch.bool)
        masks[:, 8:40, 8:40] = True
        target = {"labels": torch.tensor([0]), "boxes": torch.tensor([[8.0, 8, 40, 40]], dtype=dtype), "masks": masks}

        def loss_of(m: Any, x: Tensor) -> Tensor:
            return torch.stack([value.float() for value in m.losses(x, None, [target] * 2).values()]).sum()

    train_and_infer(model, torch.rand(2, 3, 64, 64), loss_of, precision)


@pytest.mark.parametrize("precision", ["float64", "bfloat16", "autocast"])
@pytest.mark.parametrize("name", [*bundled_models("autoencoder"), *UNTRAINED])
def test_trained_models_reconstruct_nearly_the_same(name: str, precision: str) -> None:
    torch.manual_seed(0)
    model = finola.load(name)
    smooth = nn.functional.interpolate(torch.rand(1, 3, 4, 4), model.config.image_size, mode="bicubic").clamp(0, 1)
    dtype = TYPES.get(precision, torch.float32)
    with torch.no_grad():
        expected = model(smooth)
        with autocast(precision):
            out = model.to(dtype)(smooth.to(dtype))
    assert (out - expected).norm() < COARSE * expected.norm()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_number_of_latents_does_not_depend_on_the_precision(precision: str) -> None:
    torch.manual_seed(0)
    dtype = TYPES.get(precision, torch.float32)
    model, image = finola.load("tile32").to(dtype), torch.rand(3, 256, 256, dtype=dtype)
    with autocast(precision):
        latents = finola.encode(model, image, budget=2000)
    assert 0.95 * 2000 <= latents.count(model.space.side_bits).total <= 2000

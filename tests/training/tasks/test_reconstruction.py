"""The PSNR loss and the initialisation of models for reconstruction."""

from __future__ import annotations

import pytest
import torch
from training.runs import TINY

import finola
from finola.metrics import psnr
from finola.training import load_recipe
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import Reconstruction

NAME = "waves+conv/32x1@4:16"


def test_psnr_loss_equals_the_metric() -> None:
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    images = torch.cat([noise, 0.45 + 0.1 * noise])  # hard and easy
    task = Reconstruction(load_recipe("smoke", [*TINY, "loss.kind=psnr"]))
    measured = psnr(task.model(images), images)
    assert measured[1] > measured[0] + 15
    [(name, loss)] = task.losses(images, None).items()
    assert name == "minus_psnr" and abs(loss.item() + measured.mean().item()) < 0.5
    assert task.losses(torch.full_like(noise, 0.5), None)["minus_psnr"].item() >= -40.01  # flat is good enough


def test_unknown_loss_is_rejected() -> None:
    with pytest.raises(ValueError, match="l2, psnr"):
        load_recipe("smoke", [*TINY, "loss.kind=l1"])


def test_transition_scale_multiplies_the_random_matrices() -> None:
    words = [
        *TINY,
        "model.name=test_resnet/32x1@4:64",
        "optimiser.groups={}",
        "data.val_size=null",
        "model.init=random",
    ]
    models = []
    for scale in (1.0, 0.25):
        torch.manual_seed(0)
        models.append(build_task(load_recipe("smoke", [*words, f"model.transition_scale={scale}"])).model)
    whole, scaled = (model.state_dict() for model in models)
    for name, value in whole.items():
        factor = 0.25 if name.startswith("transition.") else 1
        assert torch.equal(scaled[name], factor * value)
    for wrong in ([*words, "model.transition_scale=0"], [*TINY, "model.transition_scale=0.5"]):  # TINY is a wave model
        with pytest.raises(ValueError, match=r"transition_scale is 0"):
            build_task(load_recipe("smoke", wrong))


def test_wave_initialisation_starts_other_encoders_near_a_grey_image() -> None:
    torch.manual_seed(0)
    images = torch.full((1, 3, 64, 64), 0.5)
    waves, random = (finola.create("test_resnet/32x1@4:64", init).eval() for init in ("waves", "random"))
    with torch.inference_mode():
        assert psnr(waves(images), images) > psnr(random(images), images) + 10

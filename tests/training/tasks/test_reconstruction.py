"""The PSNR loss and the initialisation of models for reconstruction."""

from __future__ import annotations

import pytest
import torch
from training.runs import TINY

import finola
from finola.metrics import psnr
from finola.recipes.sections import AutoencoderSection
from finola.training import load_recipe
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import Reconstruction, build_model
from finola.transitions import DIRECTIONS

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


@pytest.mark.parametrize("options", ["", "+real", "+commuting", "+linear", "+mlp", "+batchnorm"])
def test_transition_scale_multiplies_what_a_step_adds(options: str) -> None:
    z = torch.randn(3, 8)
    steps = []
    for scale in (1.0, 0.25):
        torch.manual_seed(0)
        section = AutoencoderSection(f"test_resnet/8x1@4:32{options}", transition_scale=scale)
        transition = build_model(section).transition.eval()
        steps.append(torch.stack([transition(z, direction) - z for direction in DIRECTIONS]))
    assert torch.allclose(0.25 * steps[0], steps[1], atol=1e-6)


def test_the_order_difference_is_penalised_and_the_reconstruction_unchanged() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 3, 32, 32)
    name = ["model.name=residual-w8/8x1@4:32+patch", "optimiser.groups={}", "model.init=random", "data.val_size=null"]
    tasks = [Reconstruction(load_recipe("smoke", [*name, f"loss.order_difference={weight}"])) for weight in (0, 0.5)]
    tasks[1].load_state_dict(tasks[0].state_dict())
    (plain,), penalised = tasks[0].losses(images, None).values(), tasks[1].losses(images, None)
    assert penalised["l2"].item() == pytest.approx(plain.item(), rel=1e-5)
    q = tasks[1].model.encode(images)
    horizontal, vertical = (tasks[1].model.propagate(q, order) for order in ("horizontal", "vertical"))
    expected = (horizontal - vertical).square().sum() / ((horizontal + vertical) / 2).square().sum()
    assert penalised["order_difference"].item() == pytest.approx(0.5 * expected.item(), rel=1e-5)
    commuting = build_model(AutoencoderSection("residual-w8/8x1@4:32+commuting+patch"))
    q = commuting.encode(images)
    apart = commuting.propagate(q, "horizontal") - commuting.propagate(q, "vertical")
    assert apart.norm() < 0.5 * (horizontal - vertical).norm()

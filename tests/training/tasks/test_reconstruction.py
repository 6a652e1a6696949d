"""Training with quantised latents, the PSNR loss and downscaled encoder inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.runs import TINY, run

import finola
from finola.codec.calibration import FILE, calibrate
from finola.codec.codec import compress, decompress, quality_step
from finola.codec.deblocking import smooth_borders
from finola.image_io import read_photo, to_uint8
from finola.metrics import psnr
from finola.tiling import cut
from finola.training import load_recipe
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import Reconstruction

NAME = "waves+conv/32x1@4:16"


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    return read_photo("skimage:astronaut")[:, :128, :128]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory, photo: torch.Tensor) -> Path:
    folder = tmp_path_factory.mktemp("codec")
    torch.manual_seed(1)
    model = finola.create(NAME)
    model.save_pretrained(folder)
    calibrate(model, [cut(photo[None], (16, 16))[0]]).save(folder / FILE)
    return folder


def rounding(codec: Path, share: float, step: int = 90) -> Reconstruction:
    words = [f"model.weights={codec}", f"loss.quantised_fraction={share}", f"loss.quantisation_steps=[{step},{step}]"]
    return Reconstruction(load_recipe("smoke", [*TINY, *words]))


def test_decoder_input_is_quantised_as_in_a_file(codec: Path, photo: torch.Tensor) -> None:
    task = rounding(codec, 1.0, quality_step(40))
    with torch.no_grad():
        shown = to_uint8(task.model.eval()(photo[None], task._quantise)[0])
    plain = to_uint8(task.model(photo[None])[0])
    assert (shown.int() - plain.int()).abs().max() > 8
    smooth_borders(shown, (16, 16))
    given_back = decompress(compress(photo, quality=40, model=str(codec)).data, model=str(codec))
    assert (shown.int() - given_back.int()).abs().max() <= 1


def test_fraction_is_quantised_and_gradients_pass_through(codec: Path, photo: torch.Tensor) -> None:
    task = rounding(codec, 0.5)
    q = task.model.encode(cut(photo[None], (16, 16))[0]).detach().requires_grad_()
    out = task._quantise(q)
    half = len(q) // 2
    assert torch.equal(out[half:], q[half:])
    assert (out[:half] - q[:half]).abs().amax((1, 2)).min() > 1e-3
    out.sum().backward()
    assert torch.equal(q.grad, torch.ones_like(q))


def test_run_with_quantisation_trains_the_decoder(codec: Path, tmp_path: Path) -> None:
    words = (f"model.weights={codec}", "loss.quantised_fraction=0.5", "model.frozen=[encoder.*]", "trainer.max_steps=2")
    made = run(tmp_path / "run", *words)
    before, after = finola.load(str(codec)).state_dict(), finola.load(str(made.model)).state_dict()
    moved = {key.partition(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert moved == {"decoder", "transition"}


def test_psnr_loss_equals_the_metric() -> None:
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    images = torch.cat([noise, 0.45 + 0.1 * noise])  # hard and easy
    task = Reconstruction(load_recipe("smoke", [*TINY, "loss.kind=psnr"]))
    measured = psnr(task.model(images), images)
    assert measured[1] > measured[0] + 15
    [(name, loss)] = task.losses(images, None).items()
    assert name == "minus_psnr" and abs(loss.item() + measured.mean().item()) < 0.5
    assert task.losses(torch.full_like(noise, 0.5), None)["minus_psnr"].item() >= -40.01  # flat is good enough


def test_missing_calibration_is_rejected(tmp_path: Path) -> None:
    finola.create(NAME).save_pretrained(tmp_path)
    for words in (["loss.quantised_fraction=0.5"], ["loss.quantised_fraction=0.5", f"model.weights={tmp_path}"]):
        with pytest.raises(ValueError, match="finola calibrate"):
            Reconstruction(load_recipe("smoke", [*TINY, *words]))
    for words, wrong in (
        (["loss.quantised_fraction=2"], "loss.quantised_fraction is 2"),
        (["loss.quantisation_steps=[9,3]"], r"\[9, 3\]"),
        (["loss.kind=l1"], "l2, psnr"),
    ):
        with pytest.raises(ValueError, match=wrong):
            load_recipe("smoke", [*TINY, *words])


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

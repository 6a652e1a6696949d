"""Training runs: detection of NaN, EMA, sample images, logging, time limits and write errors."""

from __future__ import annotations

import csv
import errno
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor
from training.runs import STEPS_PER_EPOCH, TINY, full_after, loss_curve, run, same_weights, tiny, weights

import finola
from finola.cli import main
from finola.errors import UnknownNameError
from finola.image_io import read_photo
from finola.paper.recipes import GROUPS, STARTING_POINTS
from finola.training import callbacks, load_recipe, train
from finola.training import checkpointing as checkpoints
from finola.training import trainer as engine
from finola.training.checkpointing import PlainCheckpointIO, read_checkpoint
from finola.training.loading import list_recipes
from finola.training.reporting import Curve, build_loggers, read_curve
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import Reconstruction
from finola.training.trainer import WriteError


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, spoiled: Any) -> None:
    original = Reconstruction.losses

    def losses(self: Reconstruction, images: Tensor, batch: Any) -> dict[str, Tensor]:
        found = original(self, images, batch)
        return spoiled(self, found) if self.trainer.global_step == at else found

    monkeypatch.setattr(Reconstruction, "losses", losses)


def nan_loss(task: Reconstruction, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"l2": losses["l2"] * float("nan")}


def nan_gradient(task: Reconstruction, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"l2": losses["l2"] + (task.model.transition.A * 0).sum().sqrt()}


def nan_q(task: Reconstruction, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    task.model.propagate(torch.full((1, 1, 32), float("nan")))
    return losses


@pytest.mark.parametrize(("what", "spoiled"), [("loss", nan_loss), ("gradient", nan_gradient), ("vector q", nan_q)])
def test_nan_stops_the_run_reports_the_step_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, spoiled: Any
) -> None:
    spoil(monkeypatch, at=12, spoiled=spoiled)
    outcome = run(tmp_path / "run", "checkpoint.every_steps=5")
    assert outcome.status == "diverged"
    assert all(value in outcome.message for value in (what, "step 13", "epoch 2", "last.ckpt"))
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 10
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_nan_before_the_first_checkpoint_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, at=0, spoiled=nan_loss)
    message = run(tmp_path / "run").message
    assert "step 1 " in message and "last.ckpt" not in message


def test_exported_weights_are_the_ema_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.ema_decay=0.99", "trainer.max_steps=8")
    content = read_checkpoint(tmp_path / "run" / "last.ckpt")
    mean, raw = content["callbacks"]["EMA"]["mean"], content["state_dict"]
    model = finola.load(tmp_path / "run" / "model")
    exported = model.state_dict()
    assert all(torch.equal(exported[key], mean[key]) for key in exported)
    assert not torch.equal(exported["transition.A"], raw["model.transition.A"])


def test_ema_follows_its_formula(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.ema_decay=0.5", "trainer.max_steps=3", "checkpoint.every_steps=1")
    last, before = (read_checkpoint(tmp_path / "run" / name) for name in ("last.ckpt", "previous.ckpt"))
    decay = min(0.5, (1 + 3) / (10 + 3))
    key = "decoder.refinement.to_pixels.weight"
    expected = decay * before["callbacks"]["EMA"]["mean"][key] + (1 - decay) * last["state_dict"][f"model.{key}"]
    assert torch.allclose(last["callbacks"]["EMA"]["mean"][key], expected, atol=1e-7)


def test_gradient_accumulation_equals_the_whole_batch(tmp_path: Path) -> None:
    run(tmp_path / "one", "trainer.max_steps=6")
    run(tmp_path / "two", "trainer.max_steps=6", "trainer.accumulate_grad_batches=2", "checkpoint.every_steps=3")
    assert read_checkpoint(tmp_path / "two" / "last.ckpt")["global_step"] == 6
    run(tmp_path / "first", "trainer.max_steps=1")
    first, one, two = (weights(tmp_path / name) for name in ("first", "one", "two"))
    keys = [key for key in one if not key.startswith("moment") and one[key].is_floating_point()]

    def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        return float(torch.cat([(a[key] - b[key]).double().flatten() for key in keys]).norm())

    # Adam divides by the gradient's magnitude, which turns rounding of small gradients into steps of about a hundredth
    # of the path; half of every batch would lead elsewhere.
    assert distance(one, two) < 0.05 * distance(one, first)


def test_clipping_and_compilation_reach_lightning_and_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    run(tmp_path / "run", "trainer.gradient_clip_val=1e-9", "model.compile=true", "trainer.max_steps=2")
    assert len(compiled) == 1
    run(tmp_path / "free", "trainer.max_steps=2")
    assert not same_weights(tmp_path / "run", tmp_path / "free")


class Passing(Callback):
    """Advance the clock by an eighth of a second per step, and nowhere else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        monkeypatch.setattr(callbacks, "now", lambda: self.time)

    def on_train_batch_start(self, *_: Any) -> None:
        self.time += 0.125


def test_time_limit_ends_with_checkpoint_validation_and_low_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, passing = engine.build_callbacks, Passing(monkeypatch)
    monkeypatch.setattr(engine, "build_callbacks", lambda *args: [passing, *build(*args)])
    outcome = run(tmp_path / "run", "trainer.max_time=2s", "schedule.clock=time", "schedule.epochs=100000")
    assert (outcome.status, outcome.step) == ("finished", 16) and outcome.best
    assert outcome.seconds == pytest.approx(2.0)
    rows = read_curve(tmp_path / "run" / "metrics.csv")
    rates = [row["lr/waves"] for row in rows if "lr/waves" in row]
    assert rates[-1] < 0.2 * max(rates)
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == outcome.step


def test_checkpoint_interval_in_minutes_follows_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    save = PlainCheckpointIO.save_checkpoint

    def note(self: PlainCheckpointIO, checkpoint: dict[str, Any], *rest: Any, **options: Any) -> None:
        written.append(checkpoint["global_step"])
        save(self, checkpoint, *rest, **options)

    monkeypatch.setattr(PlainCheckpointIO, "save_checkpoint", note)
    build, passing = engine.build_callbacks, Passing(monkeypatch)
    monkeypatch.setattr(engine, "build_callbacks", lambda *args: [passing, *build(*args)])
    run(tmp_path / "run", "checkpoint.every_minutes=0.005", "trainer.max_steps=8")
    assert written[:2] == [3, 6]  # 0.3 s are over after three steps


@pytest.mark.parametrize("what", ["checkpoint", "curve", "recipe", "pictures"])
def test_full_disk_raises_one_line_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    run(tmp_path / "run", "trainer.max_steps=3")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.ckpt")}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if what == "checkpoint":
            patched.setattr(checkpoints._Recorder, "write", full_after(2000))
        elif what == "curve":
            patched.setattr(Curve, "_rewrite", full)
        elif what == "recipe":
            patched.setattr(checkpoints, "save_recipe", full)
        else:
            patched.setattr(callbacks, "save_photo", full)
        with pytest.raises(WriteError) as caught:
            run(tmp_path / "run", "trainer.max_steps=8", resume=True)
    message = str(caught.value)
    assert "No space left on device" in message and "last.ckpt" in message
    assert f"--resume --out {tmp_path / 'run'}" in message and "\n" not in message
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.ckpt")} == before
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.endswith(".part")]
    assert run(tmp_path / "run", "trainer.max_steps=8", resume=True).step == 8


def test_missing_permission_raises_write_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is simulated, because root may write to every folder."""
    make = Path.mkdir

    def denied(self: Path, *args: Any, **options: Any) -> None:
        if self == tmp_path / "run":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        make(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(WriteError, match="Permission denied"):
        run(tmp_path / "run")


def test_run_directory_contains_metrics_samples_summary_and_recipe(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", "trainer.validate_first=true", "schedule.epochs=2")
    folder = tmp_path / "run"
    assert list(loss_curve(folder)) == list(range(2 * STEPS_PER_EPOCH))
    with (folder / "metrics.csv").open() as file:
        columns = set(next(csv.reader(file)))
    metrics = {"val/psnr", "val/ssim", "train/images_per_second", "train/gradient_norm", "lr/waves", "seconds"}
    health = {"health/path_inconsistency", "health/sigma_min", "health/sigma_max", "health/cond_B"}
    assert metrics | health <= columns and "val/ms_ssim" not in columns
    assert sorted(p.name for p in (folder / "samples").iterdir()) == [f"step-{n:07d}.png" for n in (0, 8, 16)]
    assert read_photo(folder / "samples" / "step-0000016.png").shape == (3, 34, 34)
    assert any((folder / "tensorboard").glob("events.*"))
    assert load_recipe(folder / "recipe.yaml").schedule.epochs == 2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["step"] == outcome.step == 16 and summary["best"]["psnr"] > 15


def test_ms_ssim_is_measured_on_large_enough_photos(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", "trainer.max_steps=1", "data.val_size=176", "data.val_limit=2")
    assert 0 < outcome.metrics["val/ms_ssim"] <= 1  # type: ignore[operator]


def test_validation_metrics_are_means_over_photos(tmp_path: Path) -> None:
    batches = (1, 3, 5)
    runs = [run(tmp_path / f"{n}", "trainer.max_steps=1", f"data.val_batch_size={n}") for n in batches]
    psnrs = [outcome.metrics["val/psnr"] for outcome in runs]
    assert psnrs == pytest.approx(psnrs[:1] * 3, abs=1e-4)


def test_unknown_task_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"'reconstructoin'.* reconstruction"):
        tiny("task=reconstructoin")


def test_wandb_logger_is_used_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch.loggers as known

    from finola.training import reporting

    made: list[dict[str, Any]] = []

    class Fake(Curve):
        def __init__(self, name: str, save_dir: Path, **options: Any) -> None:
            super().__init__(save_dir)
            made.append({"name": name, **options})

    monkeypatch.setattr(reporting, "require", lambda name: None)
    monkeypatch.setattr(known, "WandbLogger", Fake)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert len(build_loggers(tiny("logging.wandb=true"), tmp_path / "a", 0)) == 3
    assert made == [{"name": "a", "id": "a", "resume": "allow", "project": "finola", "offline": True}]
    assert len(build_loggers(tiny(), tmp_path / "a", 0)) == 2


def test_progress_bar_shows_speed_psnr_and_remaining_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    train(tiny("schedule.epochs=2"), tmp_path / "run")
    printed = capsys.readouterr().err
    assert re.search(r"epoch 2/2 step 16 .* images/s · \d+\.\d\d dB · val \d+\.\d\d dB · 0:00:00 left", printed)


def test_missing_data_creates_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(tmp_path / "run", "data.path=/nowhere")
    assert not (tmp_path / "run").exists()


def test_custom_spectrum_initialises_the_waves(tmp_path: Path) -> None:
    from finola.wave.spectrum import measure_spectrum

    own = measure_spectrum([torch.rand(4, 3, 16, 16)], side=16, keep=40)
    (tmp_path / "own.json").write_text(json.dumps({"spectra": [own.to_json()]}))
    task = build_task(tiny(f"model.spectrum={tmp_path / 'own.json'}"))
    assert not torch.equal(task.model.encoder.basis.waves, finola.create("waves+conv/32x1@4:16").encoder.basis.waves)
    with pytest.raises(ValueError, match=r"model\.spectrum is .*no\.json"):
        build_task(tiny(f"model.spectrum={tmp_path / 'no.json'}"))


def test_the_command_trains_and_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "smoke", "--out", str(tmp_path / "run"), *TINY, "--json", "trainer.max_steps=2"]
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["step"] == 2 and printed["model"] == str(tmp_path / "run" / "model")
    assert main(words) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "trainer.max_steps=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_command_reports_invalid_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "smoke", "schedule.epoch=3"]) == 2
    assert main(["train"]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert "schedule.epochs?" in printed[0] and "--list" in printed[1]


def test_the_command_lists_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list", "--json"]) == 0
    listed = {entry["recipe"]: entry for entry in json.loads(capsys.readouterr().out)["recipes"]}
    assert listed["paper/resolution/3072x1@16"]["paper_psnr"] == 25.8


def test_list_is_grouped_and_a_pattern_lists_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    names = list_recipes()
    grouped = [name for name in names if any(name.startswith(prefix) for prefix in GROUPS)]
    assert all("/" not in name for name in set(names) - set(grouped))  # our models are listed one by one
    assert set(names) >= set(STARTING_POINTS) and len(STARTING_POINTS) == 5
    assert main(["train", "--list"]) == 0
    printed = capsys.readouterr().out
    assert (
        all(name in printed for name in {*names} - {*grouped} | {*STARTING_POINTS}) and len(printed.splitlines()) < 60
    )
    assert main(["train", "--list", "paper/channels", "--json"]) == 0
    listed = [entry["recipe"] for entry in json.loads(capsys.readouterr().out)["recipes"]]
    assert listed == [name for name in names if name.startswith("paper/channels/")]
    assert main(["train", "--list", "*-w7[23]0-128", "--json"]) == 0
    assert "masked/b-w720-128" in capsys.readouterr().out
    assert main(["train", "--list", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err

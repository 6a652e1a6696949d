"""Training runs: detection of NaN, EMA, sample images, logging, time limits and write errors."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from training.runs import STEPS_PER_EPOCH, TINY, before_steps, loss_curve, run, same_weights, tiny, weights

import finola
from finola.cli import main
from finola.errors import InputError, UnknownNameError
from finola.image_io import read_photo
from finola.paper.recipes import GROUPS, STARTING_POINTS
from finola.recipes.loading import list_recipes
from finola.training import checkpoint, devices, load_recipe, log, train
from finola.training.checkpoint import read_checkpoint
from finola.training.log import Curve, read_curve
from finola.training.run import WriteError
from finola.training.state import State
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import Reconstruction


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, spoiled: Any) -> None:
    original, steps = Reconstruction.losses, [0]
    before_steps(monkeypatch, lambda state: steps.append(state.step))

    def losses(self: Reconstruction, images: Tensor, batch: Any) -> dict[str, Tensor]:
        found = original(self, images, batch)
        return spoiled(self, found) if steps[-1] == at else found

    monkeypatch.setattr(Reconstruction, "losses", losses)


def nan_loss(task: Reconstruction, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"l2": losses["l2"] * float("nan")}


def nan_gradient(task: Reconstruction, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"l2": losses["l2"] + (task.model.transition.A * 0).sum().sqrt()}


@pytest.mark.parametrize(("what", "spoiled"), [("loss", nan_loss), ("gradient", nan_gradient)])
def test_nan_stops_the_run_reports_the_step_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, spoiled: Any
) -> None:
    spoil(monkeypatch, at=12, spoiled=spoiled)
    outcome = run(tmp_path / "run", "checkpoint.every_steps=5")
    assert outcome.status == "diverged"
    assert all(value in outcome.message for value in (what, "step 13", "epoch 2", "last.ckpt"))
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == 10
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_nan_on_an_accelerator_is_found_before_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the flag is read with what is logged and before checkpoints, because reading it waits for the device."""
    note, check = State.note_finite, State.check_finite

    def note_only(self: State, loss: Tensor, norm: Tensor) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(State, "check_finite", lambda self: None)
            note(self, loss, norm)

    monkeypatch.setattr(State, "note_finite", note_only)
    assert State.check_finite is check
    spoil(monkeypatch, at=12, spoiled=nan_loss)
    outcome = run(tmp_path / "run", "checkpoint.every_steps=5", "logging.every_steps=100")
    assert outcome.status == "diverged" and "step 13" in outcome.message
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == 10


def test_nan_before_the_first_checkpoint_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, at=0, spoiled=nan_loss)
    message = run(tmp_path / "run").message
    assert "step 1 " in message and "last.ckpt" not in message


def test_exported_weights_are_the_ema_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.ema_decay=0.99", "trainer.max_steps=8")
    content = read_checkpoint(tmp_path / "run" / "last.ckpt")
    mean, raw = content["average"], content["task"]
    model = finola.load(tmp_path / "run" / "model")
    exported = model.state_dict()
    assert all(torch.equal(exported[key], mean[key]) for key in exported)
    assert not torch.equal(exported["transition.A"], raw["model.transition.A"])


def test_ema_follows_its_formula(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.ema_decay=0.5", "trainer.max_steps=3", "checkpoint.every_steps=1")
    last, before = (read_checkpoint(tmp_path / "run" / name) for name in ("last.ckpt", "previous.ckpt"))
    decay = min(0.5, (1 + 3) / (10 + 3))
    key = "decoder.refinement.to_pixels.weight"
    expected = decay * before["average"][key] + (1 - decay) * last["task"][f"model.{key}"]
    assert torch.allclose(last["average"][key], expected, atol=1e-7)


def test_gradient_accumulation_equals_the_whole_batch(tmp_path: Path) -> None:
    run(tmp_path / "one", "trainer.max_steps=6")
    run(tmp_path / "two", "trainer.max_steps=6", "trainer.accumulate_grad_batches=2", "checkpoint.every_steps=3")
    assert read_checkpoint(tmp_path / "two" / "last.ckpt")["step"] == 6
    run(tmp_path / "first", "trainer.max_steps=1")
    first, one, two = (weights(tmp_path / name) for name in ("first", "one", "two"))
    keys = [key for key in one if not key.startswith("moment") and one[key].is_floating_point()]

    def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        return float(torch.cat([(a[key] - b[key]).double().flatten() for key in keys]).norm())

    # Adam divides by the gradient's magnitude, which turns rounding of small gradients into steps of about a hundredth
    # of the path; half of every batch would lead elsewhere.
    assert distance(one, two) < 0.05 * distance(one, first)


def test_clipping_and_compilation_take_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    run(tmp_path / "run", "trainer.gradient_clip_val=1e-9", "model.compile=true", "trainer.max_steps=2")
    assert len(compiled) == 1
    run(tmp_path / "free", "trainer.max_steps=2")
    assert not same_weights(tmp_path / "run", tmp_path / "free")


def pass_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an eighth of a second pass before every step, and no time elsewhere."""
    time = [100.0]
    monkeypatch.setattr(devices, "clock", lambda: time[-1])
    before_steps(monkeypatch, lambda state: time.append(time[-1] + 0.125))


def test_time_limit_ends_with_checkpoint_validation_and_low_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time(monkeypatch)
    outcome = run(tmp_path / "run", "trainer.max_time=2s", "schedule.clock=time", "schedule.epochs=100000")
    assert (outcome.status, outcome.step) == ("finished", 16) and outcome.best
    assert outcome.seconds == pytest.approx(2.0)
    rows = read_curve(tmp_path / "run" / "metrics.csv")
    rates = [row["lr/waves"] for row in rows if "lr/waves" in row]
    assert rates[-1] < 0.2 * max(rates)
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == outcome.step


def test_checkpoint_interval_in_minutes_follows_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = checkpoint.write_checkpoint

    def note(content: dict[str, Any], path: Path) -> None:
        written.append(content["step"])
        write(content, path)

    monkeypatch.setattr(checkpoint, "write_checkpoint", note)
    pass_time(monkeypatch)
    run(tmp_path / "run", "checkpoint.every_minutes=0.005", "trainer.max_steps=8")
    assert written[:2] == [3, 6]  # 0.3 s are over after three steps


@pytest.mark.parametrize("end", ["trainer.max_steps=12", "trainer.max_time=2s"])
def test_a_stop_inside_an_epoch_stores_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The last checkpoint knows the validation at the stop, so that a worse model cannot become the best later."""
    pass_time(monkeypatch)
    run(tmp_path / "run", end)
    last, best = (read_checkpoint(tmp_path / "run" / name) for name in ("last.ckpt", "best.ckpt"))
    rows = [row for row in read_curve(tmp_path / "run" / "metrics.csv") if "val/psnr" in row]
    assert last["best"] == best["best"] == max(row["val/psnr"] for row in rows)
    assert rows[-1]["step"] == last["step"] and last["metrics"]["val/psnr"] == rows[-1]["val/psnr"]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    before = run(tmp_path / "run", "trainer.max_steps=4")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    after = run(tmp_path / "run", "trainer.max_steps=4", resume=True)
    assert after == before and after.metrics and after.best
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("name", ["metrics.csv", "summary.json", "best.ckpt"])
def test_files_that_are_not_of_a_run_are_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    for resume in (False, True):
        with pytest.raises(InputError, match=re.escape(name)):
            run(tmp_path / "run", "trainer.max_steps=1", resume=resume)
    assert [(path.name, path.read_text()) for path in (tmp_path / "run").iterdir()] == [(name, "mine")]


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
            patched.setattr(os, "fsync", full)
        elif what == "curve":
            patched.setattr(Curve, "_rewrite", full)
        elif what == "recipe":
            patched.setattr(checkpoint, "save_recipe", full)
        else:
            patched.setattr(log, "save_photo", full)
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
    assert list(loss_curve(folder)) == list(range(1, 2 * STEPS_PER_EPOCH + 1))
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


def test_wandb_is_used_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    logged: list[dict[str, float]] = []
    wandb_run = SimpleNamespace(log=lambda values, step: logged.append(values), finish=lambda: None)
    fake = SimpleNamespace(init=lambda **options: made.append(options) or wandb_run, Image=str)
    monkeypatch.setattr(log, "require", lambda name: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run(tmp_path / "without", "trainer.max_steps=1")
    assert not made
    run(tmp_path / "with", "trainer.max_steps=1", "logging.wandb=true")
    assert [(call["name"], call["resume"], call["mode"]) for call in made] == [("with", "allow", "offline")]
    assert any("train/loss" in values for values in logged) and any("val/psnr" in values for values in logged)


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
    with pytest.raises(ValueError, match=r"spectrum .*no\.json"):
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
    assert set(names) >= set(STARTING_POINTS) and len(STARTING_POINTS) == 6
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

"""A run that was killed, stopped or interrupted at any step resumes to the same weights as an uninterrupted run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from training.runs import STEPS_PER_EPOCH, TINY, killed, loss_curve, run, same_weights, send_signal

import finola
from finola.cli import main
from finola.data.loader import outlive_signals
from finola.errors import CorruptFileError, InputError
from finola.training.checkpoint import find_resumable, read_checkpoint
from finola.training.loop import stop_signals

EMA = "trainer.ema_decay=0.9"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 20 steps, in the middle of its third epoch."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, EMA, "trainer.max_steps=20")
    return folder


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process as POSIX does")
@pytest.mark.parametrize("where", ["11", "writing"])
def test_resuming_a_killed_run_equals_the_uninterrupted_run(whole: Path, tmp_path: Path, where: str) -> None:
    code = killed(tmp_path / "run", where, EMA, "trainer.max_steps=20", "checkpoint.every_steps=1")
    assert code == -signal.SIGKILL
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == (11 if where == "11" else 1)
    outcome = run(tmp_path / "run", EMA, "trainer.max_steps=20", resume=True)
    assert outcome.step == 20
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize("step", [STEPS_PER_EPOCH - 1, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1, 2 * STEPS_PER_EPOCH + 3])
def test_resuming_around_the_end_of_an_epoch_equals_the_uninterrupted_run(
    whole: Path, tmp_path: Path, step: int
) -> None:
    run(tmp_path / "run", EMA, f"trainer.max_steps={step}")
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == step
    run(tmp_path / "run", EMA, "trainer.max_steps=20", resume=True)
    assert same_weights(tmp_path / "run", whole)
    assert loss_curve(tmp_path / "run") == loss_curve(whole)
    means = [read_checkpoint(folder / "last.ckpt")["average"] for folder in (tmp_path / "run", whole)]
    assert all((means[0][key] == means[1][key]).all() for key in means[0])


@pytest.mark.parametrize("number", stop_signals())
def test_signal_writes_a_checkpoint_and_reports_the_resume_command(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with monkeypatch.context() as patched:
        send_signal(patched, number, 10)
        outcome = run(tmp_path / "run", EMA)
    assert (outcome.status, outcome.step, outcome.signal) == ("interrupted", 11, number.name)
    assert f"finola train --resume --out {tmp_path / 'run'}" in outcome.message
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == 11
    assert not (tmp_path / "run" / "model").exists()
    run(tmp_path / "run", EMA, "trainer.max_steps=20", resume=True)
    assert same_weights(tmp_path / "run", whole)


def test_signal_during_validation_stops_it_without_losing_steps(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        send_signal(patched, signal.SIGTERM, STEPS_PER_EPOCH, validating=True)
        outcome = run(tmp_path / "run", EMA, "data.val_batch_size=1")
    assert (outcome.status, outcome.step, outcome.best) == ("interrupted", STEPS_PER_EPOCH, {})
    run(tmp_path / "run", EMA, "trainer.max_steps=20", "data.val_batch_size=1", resume=True)
    assert same_weights(tmp_path / "run", whole)


def test_a_run_interrupted_in_its_last_validation_is_validated_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        send_signal(patched, signal.SIGTERM, 5, validating=True)
        outcome = run(tmp_path / "run", "trainer.max_steps=5", "data.val_batch_size=1")
    assert (outcome.status, outcome.step, outcome.metrics) == ("interrupted", 5, {})
    outcome = run(tmp_path / "run", "trainer.max_steps=5", "data.val_batch_size=1", resume=True)
    assert outcome.status == "finished" and outcome.metrics["val/psnr"] and outcome.best["step"] == 5


def test_sigterm_exits_with_143_and_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send_signal(monkeypatch, signal.SIGTERM, 3)
    assert main(["train", "smoke", *TINY, "--out", str(tmp_path / "run")]) == 143
    printed = capsys.readouterr().err
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["step"] == 4
    assert "SIGTERM" in printed and "step 4" in printed and "--resume" in printed


def test_signals_missing_on_the_platform_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither SIGUSR1 nor alarm."""
    assert {number.name for number in stop_signals()} >= {"SIGINT", "SIGTERM"}
    for name in ("SIGUSR1", "SIGALRM", "alarm"):
        monkeypatch.delattr(signal, name, raising=False)
    assert [number.name for number in stop_signals()] == ["SIGINT", "SIGTERM"]
    before = [signal.getsignal(number) for number in stop_signals()]
    try:
        outlive_signals(0)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == before[1]
    finally:
        for number, handler in zip(stop_signals(), before, strict=True):
            signal.signal(number, handler)


def test_truncated_checkpoint_falls_back_to_the_previous_one_with_a_message(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", EMA, "trainer.max_steps=13", "checkpoint.every_steps=5")
    last = tmp_path / "run" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    run(tmp_path / "run", EMA, "trainer.max_steps=20", resume=True)
    printed = capsys.readouterr().err
    assert str(last) in printed and "previous.ckpt" in printed
    assert same_weights(tmp_path / "run", whole)


def test_corrupted_checkpoint_without_a_previous_one_raises(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.max_steps=2")
    last = tmp_path / "run" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"last\.ckpt.*--out"):
        find_resumable(tmp_path / "run")


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.max_steps=1")
    before = (tmp_path / "run" / "last.ckpt").read_bytes()
    with pytest.raises(InputError, match=r"run .*--resume.*--out"):
        run(tmp_path / "run", "trainer.max_steps=1")
    assert (tmp_path / "run" / "last.ckpt").read_bytes() == before


def test_settings_that_cannot_change_on_resume_are_rejected(tmp_path: Path) -> None:
    run(tmp_path / "run", "trainer.max_steps=1")
    with pytest.raises(InputError, match=r"data\.batch_size=8 .*16"):
        run(tmp_path / "run", "data.batch_size=16", resume=True)


def test_failed_start_keeps_the_stored_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="photos"):
        run(tmp_path / "run", "data.batch_size=4096")
    run(tmp_path / "run", "trainer.max_steps=1")  # the folder contains no run, so --resume is not needed
    before = (tmp_path / "run" / "recipe.yaml").read_text()
    with pytest.raises(ValueError, match=r"optimiser\.groups"):
        run(tmp_path / "run", "optimiser.groups.mine.match=[nothing]", resume=True)
    assert (tmp_path / "run" / "recipe.yaml").read_text() == before


def test_initial_weights_are_not_needed_to_resume(tmp_path: Path) -> None:
    finola.create("waves+conv/32x1@4:16").save_pretrained(tmp_path / "initial")
    words = (f"model.weights={tmp_path / 'initial'}", "trainer.max_steps=6")
    run(tmp_path / "whole", *words)
    run(tmp_path / "run", *words, "trainer.max_steps=3")
    shutil.rmtree(tmp_path / "initial")
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "trainer.max_steps=6", "--json"]) == 0
    assert same_weights(tmp_path / "run", tmp_path / "whole")

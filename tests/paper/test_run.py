"""Runs are cached, resume after a kill, and give the same JSON for the same seeds."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from training.runs import TINY, send_signal

from finola.errors import FinolaError, InputError
from finola.files import write_text
from finola.jobs.pool import Pool
from finola.paper.definitions import LATENT_METRICS, WAVE_METRICS, Claim, Same, increasing
from finola.paper.measure import MEASURED, measure
from finola.paper.run import SUMMARY, Job, Stopped, plan, reproduce, run_job
from finola.training import train

SMALL = tuple(word for word in TINY if not word.startswith("model.name"))
ROWS = {
    f"C = {channels}": Same(
        "smoke",
        f"C = {channels}",
        overrides=(*SMALL, f"model.name=waves+conv/{channels}x1@4:16", "schedule.epochs=1"),
    )
    for channels in (16, 32)
}
ROW = ROWS["C = 16"]
CLAIM = Claim(
    "tiny",
    "More channels are better.",
    increasing("C = 16", "C = 32"),
    rows=ROWS,
    metrics=("psnr", "train_mode_psnr"),
)


class InProcess:
    """Trains in this process and records the rows; raises before the row numbered `stop`, as a kill would."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.trained: list[str] = []

    def __call__(self, job: Job) -> None:
        if len(self.trained) == self.stop:
            raise Stopped("killed")
        self.trained.append(job.row)
        train(job.recipe, job.folder, resume=True, quiet=True)
        measure(job.folder, CLAIM.metrics)  # before the next training, with which it would share the random state


def run(folder: Path, launch: InProcess, seeds: int = 1, reuse: bool = False) -> bytes:
    reproduce([CLAIM], "cpu", seeds, "smoke", folder / "runs", folder / "results", 1, reuse, launch)
    return (folder / "results" / "cpu" / "tiny.json").read_bytes()


def test_runs_are_cached_and_the_same_seeds_give_the_same_json(tmp_path: Path) -> None:
    first = InProcess()
    written = run(tmp_path / "a", first)
    assert first.trained == ["C = 16", "C = 32"]
    again = InProcess()
    assert run(tmp_path / "a", again) == written and again.trained == []

    with pytest.raises(Stopped):  # between the rows
        run(tmp_path / "b", InProcess(stop=1))
    stored = json.loads((tmp_path / "b" / "results" / "cpu" / "tiny.json").read_text())
    assert list(stored["rows"]) == ["C = 16"]
    rest = InProcess()
    assert run(tmp_path / "b", rest) == written and rest.trained == ["C = 32"]

    result = json.loads(written)
    assert result["data"]["train"] == 512 and "minutes" not in result
    for row in result["rows"].values():
        assert row["seeds"]["0"]["status"] == "finished" and row["seeds"]["0"]["images"] == 64
        assert 5 < row["seeds"]["0"]["psnr"] < 60 and 5 < row["seeds"]["0"]["train_mode_psnr"] < 60
    times = json.loads((tmp_path / "a" / "results" / "cpu" / "tiny.times.json").read_text())
    assert times["C = 16"]["0"]["minutes"] >= 0 and times["C = 16"]["0"]["machine"]


def test_seeds_are_added_to_stored_results_whose_runs_are_gone(tmp_path: Path) -> None:
    written = json.loads(run(tmp_path, InProcess(), seeds=2))
    shutil.rmtree(tmp_path / "runs")
    few = InProcess()
    assert json.loads(run(tmp_path, few, seeds=1, reuse=True)) == written and few.trained == []

    class Marked(InProcess):
        def __call__(self, job: Job) -> None:
            assert job.seed == 2
            super().__call__(job)

    more = json.loads(run(tmp_path, Marked(), seeds=3, reuse=True))
    for name, row in more["rows"].items():
        assert list(row["seeds"]) == ["0", "1", "2"]
        assert {seed: row["seeds"][seed] for seed in "01"} == written["rows"][name]["seeds"]


def changed(override: str) -> dict[str, Same]:
    return {name: replace(row, overrides=(*row.overrides, override)) for name, row in ROWS.items()}


def test_results_of_other_settings_are_not_reused(tmp_path: Path) -> None:
    run(tmp_path, InProcess())
    shutil.rmtree(tmp_path / "runs")
    longer = replace(CLAIM, rows=changed("seed=5"))
    launch = InProcess()
    reproduce([longer], "cpu", 1, "smoke", tmp_path / "runs", tmp_path / "results", 1, True, launch)
    assert launch.trained == []  # the seed of the job overrides that of the row: the same settings
    other = replace(CLAIM, rows=changed("optimiser.weight_decay=0.5"))
    reproduce([other], "cpu", 1, "smoke", tmp_path / "runs", tmp_path / "results", 1, True, launch)
    assert launch.trained == ["C = 16", "C = 32"]


def test_a_killed_row_resumes_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, killed = (plan(ROW, "cpu", 0, "smoke", tmp_path / name) for name in ("whole", "killed"))
    train(whole.recipe, whole.folder, quiet=True)
    with monkeypatch.context() as patched:
        send_signal(patched, signal.SIGTERM, 5)
        train(killed.recipe, killed.folder, quiet=True)
    (killed.folder / SUMMARY).unlink()  # a killed run leaves a checkpoint and no summary
    assert killed.status() is None
    InProcess()(killed)
    assert killed.status() == "finished"
    assert measure(killed.folder, CLAIM.metrics) == measure(whole.folder, CLAIM.metrics)


def test_other_data_of_the_same_name_is_an_error(tmp_path: Path) -> None:
    run(tmp_path, InProcess())
    data = next((tmp_path / "runs").glob("*/data.json"))
    data.write_text(data.read_text().replace("512", "511"))
    with pytest.raises(InputError, match="other photos"):
        run(tmp_path, InProcess())


def test_diverged_runs_are_final_and_have_no_metrics(tmp_path: Path) -> None:
    def diverge(job: Job) -> None:
        write_text(job.folder / SUMMARY, json.dumps({"status": "diverged", "step": 3, "metrics": {}}))

    found = reproduce([CLAIM], "cpu", 1, "smoke", tmp_path / "runs", tmp_path / "results", 2, launch=diverge)
    stored = found[0]["rows"]["C = 16"]["seeds"]["0"]
    assert stored.pop("run").startswith("smoke-") and stored == {
        "status": "diverged",
        "images": 24,
        "psnr": None,
        "train_mode_psnr": None,
    }
    again = InProcess()
    reproduce([CLAIM], "cpu", 1, "smoke", tmp_path / "runs", tmp_path / "results", 2, launch=again)
    assert again.trained == []


def test_waves_of_a_run_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = plan(ROW, "cpu", 0, "smoke", tmp_path)
    train(job.recipe, job.folder, quiet=True)
    found = measure(job.folder, WAVE_METRICS)
    assert found["path_inconsistency"] is not None and 0 <= found["path_inconsistency"] < 1
    assert found["invertible_B"] == 0  # waves with v = 0 do not change along y
    monkeypatch.setattr("finola.paper.measure._waves", None)
    assert measure(job.folder, WAVE_METRICS) == found and (job.folder / MEASURED).exists()


def test_properties_of_q_are_measured(tmp_path: Path) -> None:
    job = plan(ROW, "cpu", 0, "smoke", tmp_path)
    train(job.recipe, job.folder, quiet=True)
    found = measure(job.folder, LATENT_METRICS)
    assert all(value is not None for value in found.values())
    # A wave model is nearly linear: mirrored and mixed q give mirrored and mixed images.
    assert found["mirror_correlation"] < -0.9 and found["mixture_psnr"] > 30  # type: ignore[operator]
    assert 0 < found["first_components"] <= 1 and found["component_gain"] > -1  # type: ignore[operator]


def in_own_process(job: Job) -> None:
    with Pool(1, own_process=True) as pool:
        pool.call(run_job, job)


def test_a_job_runs_in_its_own_process(tmp_path: Path) -> None:
    job = plan(ROW, "cpu", 0, "smoke", tmp_path)
    job.folder.mkdir()
    in_own_process(job)
    assert job.status() == "finished"


def test_a_failed_job_names_its_command_and_a_locked_one_is_not_started(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    job = plan(ROW, "cpu", 0, str(tmp_path / "nowhere"), tmp_path)
    job.folder.mkdir()
    with pytest.raises(FinolaError, match=r"smoke in .* failed: .*nowhere"):
        in_own_process(job)
    with (job.folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FinolaError, match="another process"):
            in_own_process(job)

"""Two processes train as one does with their batches joined."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from training.runs import loss_curve, run, start, tiny

from finola.training.loggers import read_curve
from finola.training.photos import per_pass
from finola.training.processes import environment_plugins, trainer_options


def test_two_processes_give_the_loss_curve_of_one_with_the_doubled_batch(tmp_path: Path) -> None:
    process = start(tmp_path / "two", "trainer.devices=2", "trainer.max_steps=20")  # 4 images each
    run(tmp_path / "one", "trainer.max_steps=20")  # 8 images
    _, spoken = process.communicate(timeout=120)
    assert process.returncode == 0, spoken
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(one) == list(two) == list(range(20))
    assert all(abs(one[step] - two[step]) < 1e-5 for step in one)
    assert max(abs(one[step] - two[step]) / one[step] for step in one) < 1e-3
    rows = [read_curve(tmp_path / name / "metrics.csv") for name in ("one", "two")]
    figures = [[row["val/psnr"] for row in curve if "val/psnr" in row] for curve in rows]
    assert figures[1] == pytest.approx(figures[0], abs=1e-3)  # five photos: three here, two there
    assert spoken.count("finished at step 20") == 1
    for name in ("one", "two"):  # and one process goes on where two stopped
        run(tmp_path / name, "trainer.max_steps=24", resume=True)
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(two) == list(range(24)) and all(abs(one[step] - two[step]) < 1e-5 for step in one)


def test_the_batch_is_shared_among_processes_and_passes() -> None:
    assert per_pass(tiny("data.batch_size=96", "trainer.accumulate=3"), processes=4) == 8
    with pytest.raises(ValueError, match=r"batch_size=8 cannot be shared among 3 processes and 1 accumulated passes"):
        per_pass(tiny(), processes=3)


def test_slurm_leaves_requeueing_to_the_job_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_plugins() == []
    monkeypatch.setattr(SLURMEnvironment, "detect", staticmethod(lambda: True))
    assert [plugin.auto_requeue for plugin in environment_plugins()] == [False]


def test_several_processes_are_ddp_without_being_told() -> None:
    assert isinstance(trainer_options(tiny("trainer.devices=2").trainer)["strategy"], DDPStrategy)
    assert isinstance(trainer_options(tiny("trainer.nodes=2", "trainer.devices=1").trainer)["strategy"], DDPStrategy)
    assert trainer_options(tiny().trainer)["strategy"] == "auto"
    assert trainer_options(tiny("trainer.devices=4", "trainer.strategy=fsdp").trainer)["strategy"] == "fsdp"

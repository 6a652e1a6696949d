"""Distributed training matches a single process with the joint batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finola.training.monitor import RankMonitor
from finola.training.strategies import MonitoredFSDP
from finola.training.strategies import trainer_options as options_for
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from training.runs import loss_curve, run, start, tiny

import finola
from finola.encoders.mobile_former import MobileFormer
from finola.errors import InputError
from finola.training.data import per_pass
from finola.training.devices import SharedBuffers, environment_plugins
from finola.training.log import read_curve
from finola.training.sections import TrainerSection


def trainer_options(section: TrainerSection) -> dict[str, Any]:
    return options_for(section, RankMonitor(20, str))


def test_two_processes_match_one_process_with_twice_the_batch_size(tmp_path: Path) -> None:
    process = start(tmp_path / "two", "trainer.devices=2", "trainer.max_steps=20")  # 4 images each
    run(tmp_path / "one", "trainer.max_steps=20")  # 8 images
    _, printed = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(one) == list(two) == list(range(20))
    assert all(abs(one[step] - two[step]) < 1e-5 for step in one)
    assert max(abs(one[step] - two[step]) / one[step] for step in one) < 1e-3
    rows = [read_curve(tmp_path / name / "metrics.csv") for name in ("one", "two")]
    psnrs = [[row["val/psnr"] for row in curve if "val/psnr" in row] for curve in rows]
    assert psnrs[1] == pytest.approx(psnrs[0], abs=1e-3)  # five photos: three here, two there
    assert printed.count("finished at step 20") == 1
    for name in ("one", "two"):  # one process resumes a run of two
        run(tmp_path / name, "trainer.max_steps=24", resume=True)
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(two) == list(range(24)) and all(abs(one[step] - two[step]) < 1e-5 for step in one)


def test_batch_is_divided_among_processes_and_passes() -> None:
    assert per_pass(tiny("data.batch_size=96", "trainer.accumulate_grad_batches=3"), processes=4) == 8
    with pytest.raises(ValueError, match=r"batch_size=8 .* 3 processes and 1 "):
        per_pass(tiny(), processes=3)


def test_slurm_leaves_requeueing_to_the_job_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_plugins() == []
    monkeypatch.setattr(SLURMEnvironment, "detect", staticmethod(lambda: True))
    assert [plugin.auto_requeue for plugin in environment_plugins()] == [False]


def test_ddp_is_the_default_for_several_processes() -> None:
    assert isinstance(trainer_options(tiny("trainer.devices=2").trainer)["strategy"], DDPStrategy)
    assert isinstance(
        trainer_options(tiny("trainer.num_nodes=2", "trainer.devices=1").trainer)["strategy"], DDPStrategy
    )
    assert trainer_options(tiny().trainer)["strategy"] == "auto"
    fsdp = trainer_options(tiny("trainer.devices=4", "trainer.strategy=fsdp").trainer)["strategy"]
    assert isinstance(fsdp, MonitoredFSDP)
    with pytest.raises(InputError, match=r"trainer\.strategy.*deepspeed"):
        tiny("trainer.strategy=deepspeed").check()


@pytest.mark.parametrize(
    ("words", "gpus", "expected"),
    [
        (["trainer.accelerator=auto"], 8, True),
        (["trainer.accelerator=auto"], 1, False),
        (["trainer.accelerator=gpu", "trainer.devices=1", "trainer.num_nodes=2"], 1, True),
        (["trainer.accelerator=auto", "trainer.sync_batchnorm=false"], 8, False),
        (["trainer.accelerator=auto", "trainer.sync_batchnorm=true"], 8, True),
        (["trainer.devices=2", "trainer.sync_batchnorm=true"], 0, False),  # on the CPU it would fail
    ],
)
def test_batch_norms_are_synchronised_where_several_gpus_train(
    monkeypatch: pytest.MonkeyPatch, words: list[str], gpus: int, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert trainer_options(tiny(*words).trainer)["sync_batchnorm"] is expected


def test_unsynchronised_batch_norms_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(module: nn.Module, processes: int) -> str:
        callback = SharedBuffers()
        for _ in range(2):
            callback.on_train_epoch_start(SimpleNamespace(world_size=processes), module)  # type: ignore[arg-type]
        return capsys.readouterr().err

    encoder = MobileFormer("mf-w720")
    assert printed(encoder, 2).count("SyncBatchNorm") == 1
    assert printed(encoder, 1) == ""
    assert printed(encoder.eval(), 2) == ""
    assert printed(nn.SyncBatchNorm.convert_sync_batchnorm(encoder.train()), 2) == ""
    assert printed(finola.create("waves+conv/32x1@4:16"), 2) == ""


def test_fewer_validation_photos_than_processes_are_rejected_before_processes_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"5 validation photos.* 8 processes"):
        run(tmp_path / "run", "trainer.devices=8")
    assert not (tmp_path / "run").exists()

"""Distributed training matches a single process with the joint batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from torch import nn
from training.runs import loss_curve, run, start, tiny

import finola
from finola.encoders.mobile_former import MobileFormer
from finola.errors import InputError
from finola.training.data import per_pass
from finola.training.devices import build_fabric, precision_of, synchronise_norms
from finola.training.log import read_curve


def test_two_processes_match_one_process_with_twice_the_batch_size(tmp_path: Path) -> None:
    process = start(tmp_path / "two", "trainer.devices=2", "trainer.max_steps=20")  # 4 images each
    run(tmp_path / "one", "trainer.max_steps=20")  # 8 images
    _, printed = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(one) == list(two) == list(range(1, 21))
    assert all(abs(one[step] - two[step]) < 1e-5 for step in one)
    assert max(abs(one[step] - two[step]) / one[step] for step in one) < 1e-3
    rows = [read_curve(tmp_path / name / "metrics.csv") for name in ("one", "two")]
    psnrs = [[row["val/psnr"] for row in curve if "val/psnr" in row] for curve in rows]
    assert psnrs[1] == pytest.approx(psnrs[0], abs=1e-3)  # five photos: three here, two there
    assert printed.count("finished at step 20") == 1
    for name in ("one", "two"):  # one process resumes a run of two
        run(tmp_path / name, "trainer.max_steps=24", resume=True)
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(two) == list(range(1, 25)) and all(abs(one[step] - two[step]) < 1e-5 for step in one)


def test_batch_is_divided_among_processes_and_passes() -> None:
    assert per_pass(tiny("data.batch_size=96", "trainer.accumulate_grad_batches=3"), processes=4) == 8
    with pytest.raises(ValueError, match=r"batch_size=8 .* 3 processes and 1 "):
        per_pass(tiny(), processes=3)


def test_several_processes_use_ddp_or_fsdp() -> None:
    assert isinstance(build_fabric(tiny("trainer.devices=2").trainer).strategy, DDPStrategy)
    assert isinstance(build_fabric(tiny("trainer.num_nodes=2", "trainer.devices=1").trainer).strategy, DDPStrategy)
    assert isinstance(build_fabric(tiny().trainer).strategy, SingleDeviceStrategy)
    fsdp = build_fabric(tiny("trainer.devices=4", "trainer.strategy=fsdp").trainer).strategy
    assert isinstance(fsdp, ModelParallelStrategy)
    with pytest.raises(InputError, match=r"trainer\.strategy.*deepspeed"):
        tiny("trainer.strategy=deepspeed").check()


def test_a_missing_gpu_is_reported() -> None:
    with pytest.raises(InputError, match=r"trainer\.accelerator is gpu.* no GPU"):
        build_fabric(tiny("trainer.accelerator=gpu").trainer)


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
    task = synchronise_norms(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), tiny(*words).trainer)
    assert isinstance(task[1], nn.SyncBatchNorm) is expected
    precision = "bf16-mixed" if gpus and "accelerator" in words[0] else "32-true"
    assert precision_of(tiny(*words, "trainer.precision=auto").trainer) == precision


def test_unsynchronised_batch_norms_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(module: nn.Module, processes: int) -> str:
        synchronise_norms(module, tiny(f"trainer.devices={processes}").trainer)
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

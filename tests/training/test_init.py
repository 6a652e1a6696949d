"""Models are initialised from trained weights, completely or by matching parts, and parts can be frozen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from training.runs import TINY, weights

import finola
from finola.config import ModelConfig
from finola.errors import CorruptFileError, InputError
from finola.heads import Classifier
from finola.masked import MaskedFinola
from finola.recipes.sections import AutoencoderSection, ModelSection
from finola.training import load_recipe, train
from finola.training.init import initialise_head
from finola.training.state import Average
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import build_model

NAME = "test_resnet/16x1@4:64"


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    MaskedFinola(f"{NAME}+patch", "e").save_pretrained(tmp_path / "masked")
    return tmp_path / "masked"


def test_model_is_initialised_from_weights_of_the_same_name(tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = finola.create("waves+conv/32x1@4:16")
    trained.save_pretrained(tmp_path / "trained")
    initialised = build_model(AutoencoderSection("waves+conv/32x1@4:16", weights=str(tmp_path / "trained")), "lin")
    assert all(torch.equal(value, initialised.state_dict()[key]) for key, value in trained.state_dict().items())
    with pytest.raises(InputError, match="waves"):
        build_model(AutoencoderSection("waves+conv/16x1@4:16", weights=str(tmp_path / "trained")), "lin")


def test_other_encoder_is_initialised_with_recurrence_and_decoder_of_a_wave_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = finola.create("waves+conv/32x1@4:32")
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    trained.save_pretrained(tmp_path / "trained")
    section = AutoencoderSection("test_resnet/32x1@4:32+refined", str(tmp_path / "trained"), init="waves")
    initialised = build_model(section)
    q = torch.randn(1, 1, 32)
    assert torch.equal(initialised.decode(initialised.propagate(q)), trained.decode(trained.propagate(q)))
    for other in ("test_resnet/32x1@4:32+refined+corner", "test_resnet/32x1@8:64+refined", "waves+conv/32x1@8:64"):
        with pytest.raises(InputError, match=re.escape(str(ModelConfig.parse(other)))):
            build_model(replace(section, name=other))


def test_encoder_pooling_and_recurrence_are_copied_from_a_masked_model(masked: Path) -> None:
    initialised = build_model(AutoencoderSection(NAME, weights=str(masked))).state_dict()
    given = MaskedFinola.from_pretrained(masked).state_dict()
    shared = [key for key in given if key.startswith(("encoder.", "pool.", "transition."))]
    assert shared and all(torch.equal(given[key], initialised[key]) for key in shared)
    with pytest.raises(InputError, match=r"encoder .* mf-w720"):
        build_model(AutoencoderSection("mf-w720/16x1@4:64", weights=str(masked)), "lin")
    torch.manual_seed(0)
    MaskedFinola("mf-w1440/16x1@4:64+patch", "e").save_pretrained(masked.parent / "narrow")
    with pytest.raises(InputError, match=r"encoder .* mf-w2880"):  # though some of its tensors have the same shape
        build_model(AutoencoderSection("mf-w2880/16x1@4:64", weights=str(masked.parent / "narrow")))


def test_flat_pooling_of_another_map_starts_from_scratch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "residual-map-w4/8x1@4:32+flat+patch"
    masked = MaskedFinola(name, "e")
    masked.save_pretrained(tmp_path)
    own = build_model(AutoencoderSection(name, weights=str(tmp_path))).state_dict()
    given = masked.state_dict()
    assert all(torch.equal(given[key], own[key]) for key in given if key.startswith(("encoder.", "transition.")))
    assert "From scratch: decoder, pool" in capsys.readouterr().err


def test_frozen_parameters_and_statistics_do_not_change_in_training(masked: Path, tmp_path: Path) -> None:
    words = [f"model.name={NAME}", f"model.weights={masked}", "model.frozen=[encoder.*]", "model.init=null"]
    words += ["data.val_size=64", "optimiser.groups={}", "optimiser.lr=1e-2", "trainer.max_steps=3"]
    train(load_recipe("smoke", [*TINY, *words]), tmp_path / "run", quiet=True)
    after = {key.removeprefix("model."): value for key, value in weights(tmp_path / "run").items()}
    given = MaskedFinola.from_pretrained(masked).state_dict()
    assert all(torch.equal(given[key], after[key]) for key in given if key.startswith("encoder."))
    assert not torch.equal(given["transition.A"], after["transition.A"])
    with pytest.raises(InputError, match=r"model\.frozen .*encodr"):
        build_task(load_recipe("smoke", [*TINY, *words, "model.frozen=[encodr.*]"]))


def test_masked_training_can_start_from_weights_of_another_image_size(masked: Path) -> None:
    words = ["mask.variant=e", f"model.weights={masked}", "model.frozen=[encoder.*]"]
    task = build_task(load_recipe("masked/e-w720-128", [*words, "model.name=test_resnet/16x1@2:32+patch"]))
    given = MaskedFinola.from_pretrained(masked).state_dict()
    assert all(torch.equal(value, given[key]) for key, value in task.model.state_dict().items())
    trained = {key.partition(".")[0] for key, value in task.model.named_parameters() if value.requires_grad}
    assert trained == {"pool", "transition", "decoder"}
    with pytest.raises(InputError, match=re.escape(str(masked))):
        build_task(load_recipe("masked/e-w720-128", [*words, "model.name=test_resnet/32x1@4:64+patch"]))


def test_freezing_the_encoder_keeps_the_head_in_training_mode(masked: Path) -> None:
    words = ["model.name=test_resnet", "model.weights=null", "data.size=32"]
    words += ["head.frozen=false", "head.dropout=0.5", "model.frozen=[encoder.*]"]
    recipe = load_recipe("probe/tran1-w720-128", words)
    task = build_task(replace(recipe, classes=["a", "b"])).train()
    task.set_training_mode()
    dropouts = [module for module in task.model.head.modules() if isinstance(module, torch.nn.Dropout)]
    assert dropouts and all(module.training for module in dropouts)
    assert not any(module.training for module in task.model.encoder.modules())


def test_mismatched_parts_raise_and_parts_from_scratch_are_reported(
    masked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"pool of .*test_resnet/32x1@4:64"):
        build_model(AutoencoderSection("test_resnet/32x1@4:64", weights=str(masked)), "lin")
    with pytest.raises(InputError, match=r"transition of .*\+real"):
        build_model(AutoencoderSection(f"{NAME}+real", weights=str(masked)), "lin")
    capsys.readouterr()
    build_model(AutoencoderSection(NAME, weights=str(masked)), "lin")
    assert "encoder, pool, transition. From scratch: decoder." in capsys.readouterr().err
    MaskedFinola(f"{NAME}+patch", "b").save_pretrained(tmp_path / "b")  # which pools nothing
    build_model(AutoencoderSection(NAME, weights=str(tmp_path / "b")))
    assert "encoder, transition. From scratch: decoder, pool." in capsys.readouterr().err


def test_head_from_scratch_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = Classifier("test_resnet", "lin", ["a", "b"], 32)
    torch.nn.init.normal_(trained.head.linear.weight)
    trained.save_pretrained(tmp_path / "trained")
    for head, classes, copied in (("lin", ["a", "b"], True), ("lin", ["a", "c"], False), ("tran-1", ["a", "b"], False)):
        model = Classifier("test_resnet", head, classes, 32)
        initialise_head(model, ModelSection("test_resnet", str(tmp_path / "trained")), "lin")
        assert (str(tmp_path / "trained") in capsys.readouterr().err) is not copied
        if copied:
            assert torch.equal(model.head.linear.weight, trained.head.linear.weight)


def test_incomplete_weights_are_rejected(masked: Path) -> None:
    state = load_file(masked / "model.safetensors")
    dropped = next(key for key in state if key.startswith("encoder.") and state[key].ndim > 1)
    save_file({key: value for key, value in state.items() if key != dropped}, masked / "model.safetensors")
    model = Classifier("test_resnet", "lin", ["a", "b"], 32)
    with pytest.raises(CorruptFileError, match=dropped.removeprefix("encoder.").replace(".", r"\.")):
        initialise_head(model, ModelSection("test_resnet", str(masked)), "lin")
    with pytest.raises(InputError, match=f"encoder .*{NAME}"):
        build_model(AutoencoderSection(NAME, weights=str(masked)), "lin")


def test_ema_weights_of_another_model_are_rejected() -> None:
    """Without the check, a tensor of one row would be broadcast."""
    task: Any = SimpleNamespace(model=torch.nn.Linear(2, 3))
    with pytest.raises(CorruptFileError, match="EMA"):
        Average(0.9, task).load_state_dict({"weight": torch.zeros(1, 2), "bias": torch.zeros(3)}, task)

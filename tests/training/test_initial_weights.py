"""A run begins with what another has learnt: all of it, or what fits; and parts may stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from training.runs import TINY, weights

import finola
from finola.errors import CorruptFileError, InputError
from finola.heads import Classifier
from finola.masked import MaskedFinola
from finola.training import load_recipe, train
from finola.training.config import ModelSection
from finola.training.ema import EMA
from finola.training.initial_weights import begin_head
from finola.training.tasks.base import build_task
from finola.training.tasks.reconstruction import build_model

NAME = "test_resnet/16x1@4:64"


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    MaskedFinola(f"{NAME}+patch", "e").save_pretrained(tmp_path / "masked")
    return tmp_path / "masked"


def test_a_model_begins_with_the_weights_of_its_own_kind(tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = finola.create("waves+conv/32x1@4:16")
    trained.save_pretrained(tmp_path / "trained")
    begun = build_model(ModelSection("waves+conv/32x1@4:16", weights=str(tmp_path / "trained")))
    assert all(torch.equal(value, begun.state_dict()[key]) for key, value in trained.state_dict().items())
    with pytest.raises(ValueError, match="another model"):
        build_model(ModelSection("waves+conv/16x1@4:16", weights=str(tmp_path / "trained")))


def test_another_encoder_begins_with_the_recurrence_and_decoder_of_a_wave_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = finola.create("waves+conv/32x1@4:32")
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    trained.save_pretrained(tmp_path / "trained")
    section = ModelSection("test_resnet/32x1@4:32+refined", init="waves", weights=str(tmp_path / "trained"))
    begun = build_model(section)
    q = torch.randn(1, 1, 32)
    assert torch.equal(begun.decode(begun.propagate(q)), trained.decode(trained.propagate(q)))
    for other in ("test_resnet/32x1@4:32+refined+corner", "test_resnet/32x1@8:64+refined", "waves+conv/32x1@8:64"):
        with pytest.raises(ValueError, match="more than the encoder"):
            build_model(replace(section, name=other))


def test_a_masked_model_gives_encoder_pooling_and_recurrence_to_a_new_decoder(masked: Path) -> None:
    begun = build_model(ModelSection(NAME, weights=str(masked))).state_dict()
    given = MaskedFinola.from_pretrained(masked).state_dict()
    shared = [key for key in given if key.startswith(("encoder.", "pool.", "transition."))]
    assert shared and all(torch.equal(given[key], begun[key]) for key in shared)
    with pytest.raises(ValueError, match="does not fit"):
        build_model(ModelSection("mf-w720/16x1@4:64", weights=str(masked)))
    torch.manual_seed(0)
    MaskedFinola("mf-w1440/16x1@4:64+patch", "e").save_pretrained(masked.parent / "narrow")
    with pytest.raises(ValueError, match="does not fit"):  # though some of its tensors have the same shape
        build_model(ModelSection("mf-w2880/16x1@4:64", weights=str(masked.parent / "narrow")))


def test_what_is_frozen_stays_through_training_with_its_statistics(masked: Path, tmp_path: Path) -> None:
    words = [f"model.name={NAME}", f"model.weights={masked}", "model.frozen=[encoder.*]", "model.init=null"]
    words += ["data.val_size=64", "optimiser.groups={}", "optimiser.rate=1e-2", "trainer.max_steps=3"]
    train(load_recipe("smoke", [*TINY, *words]), tmp_path / "run", quiet=True)
    after = {key.removeprefix("model."): value for key, value in weights(tmp_path / "run").items()}
    given = MaskedFinola.from_pretrained(masked).state_dict()
    assert all(torch.equal(given[key], after[key]) for key in given if key.startswith("encoder."))
    assert not torch.equal(given["transition.A"], after["transition.A"])
    with pytest.raises(ValueError, match=r"model\.frozen has encodr"):
        build_task(load_recipe("smoke", [*TINY, *words, "model.frozen=[encodr.*]"]))


def test_masked_training_goes_on_at_another_size(masked: Path) -> None:
    words = ["task=masked", "mask.variant=e", f"model.weights={masked}", "model.init=null", "optimiser.groups={}"]
    words += ["model.frozen=[encoder.*]", "logging.health=false"]
    task = build_task(load_recipe("smoke", [*TINY, *words, "model.name=test_resnet/16x1@2:32+patch"]))
    given = MaskedFinola.from_pretrained(masked).state_dict()
    assert all(torch.equal(value, given[key]) for key, value in task.model.state_dict().items())
    trained = {key.partition(".")[0] for key, value in task.model.named_parameters() if value.requires_grad}
    assert trained == {"pool", "transition", "decoder"}
    with pytest.raises(ValueError, match="no masked model of its parts"):
        build_task(load_recipe("smoke", [*TINY, *words, "model.name=test_resnet/32x1@4:64+patch"]))
    with pytest.raises(ValueError, match="has no effect in the task masked"):
        load_recipe("smoke", [*TINY, *words, "model.init=waves"])


def test_freezing_the_encoder_leaves_the_rest_as_it_trains(masked: Path) -> None:
    words = ["task=classify", "model.name=test_resnet", "model.init=null", "data.size=32", "data.val_size=null"]
    words += ["head.kind=tran-1", "head.frozen=false", "head.dropout=0.5", "model.frozen=[encoder.*]"]
    recipe = load_recipe("smoke", [*TINY, *words, "optimiser.groups={}", "logging.health=false"])
    task = build_task(replace(recipe, classes=["a", "b"])).train()
    task.on_train_start()
    dropouts = [module for module in task.model.head.modules() if isinstance(module, torch.nn.Dropout)]
    assert dropouts and all(module.training for module in dropouts)
    assert not any(module.training for module in task.model.encoder.modules())


def test_a_part_that_does_not_fit_is_an_error_and_a_new_one_is_said(
    masked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"pool of .* does not fit"):
        build_model(ModelSection("test_resnet/32x1@4:64", weights=str(masked)))
    with pytest.raises(InputError, match=r"transition of .* does not fit"):
        build_model(ModelSection(f"{NAME}+real", weights=str(masked)))
    capsys.readouterr()
    build_model(ModelSection(NAME, weights=str(masked)))
    assert "encoder, pool, transition. From scratch: decoder." in capsys.readouterr().err
    MaskedFinola(f"{NAME}+patch", "b").save_pretrained(tmp_path / "b")  # which pools nothing
    build_model(ModelSection(NAME, weights=str(tmp_path / "b")))
    assert "encoder, transition. From scratch: decoder, pool." in capsys.readouterr().err


def test_a_head_that_starts_from_scratch_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = Classifier("test_resnet", "lin", ["a", "b"], 32)
    torch.nn.init.normal_(trained.head.linear.weight)
    trained.save_pretrained(tmp_path / "trained")
    for head, classes, copied in (("lin", ["a", "b"], True), ("lin", ["a", "c"], False), ("tran-1", ["a", "b"], False)):
        model = Classifier("test_resnet", head, classes, 32)
        begin_head(model, tmp_path / "trained")
        assert ("the head starts from scratch" in capsys.readouterr().err) is not copied
        if copied:
            assert torch.equal(model.head.linear.weight, trained.head.linear.weight)


def test_weights_of_another_kind_or_in_part_are_never_copied(masked: Path) -> None:
    state = load_file(masked / "model.safetensors")
    dropped = next(key for key in state if key.startswith("encoder.") and state[key].ndim > 1)
    save_file({key: value for key, value in state.items() if key != dropped}, masked / "model.safetensors")
    model = Classifier("test_resnet", "lin", ["a", "b"], 32)
    with pytest.raises(CorruptFileError, match=dropped.removeprefix("encoder.").replace(".", r"\.")):
        begin_head(model, masked)
    with pytest.raises(InputError, match="does not fit"):
        build_model(ModelSection(NAME, weights=str(masked)))


def test_a_running_mean_of_another_model_is_an_error() -> None:
    """It would be broadcast: a tensor of one element fits into every other."""
    mean = EMA(0.9)
    model = torch.nn.Linear(2, 3)
    mean.load_state_dict({"steps": 1, "mean": {"weight": torch.zeros(1, 2), "bias": torch.zeros(3)}})
    with pytest.raises(CorruptFileError, match="another model"):
        mean.on_fit_start(None, SimpleNamespace(model=model))  # type: ignore[arg-type]

"""A finished run exports a model folder with a model card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.runs import run, weights

import finola
from finola.training import export


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    run(folder, "trainer.max_steps=9")
    return folder


def test_exported_model_matches_the_checkpoint(finished: Path) -> None:
    model = finola.load(finished / "model")
    trained = finola.create("waves+conv/32x1@4:16").eval()
    state = {key.removeprefix("model."): value for key, value in weights(finished, "best.ckpt").items()}
    trained.load_state_dict({key: value for key, value in state.items() if not key.startswith("moment")})
    images = torch.rand(2, 3, 16, 24)
    assert torch.equal(model(images), trained(images))
    assert not torch.allclose(model(images), finola.create("waves+conv/32x1@4:16").eval()(images))


def test_model_card_contains_data_recipe_metrics_and_licence(finished: Path) -> None:
    card = (finished / "model" / "README.md").read_text()
    for words in (
        "# waves+conv/32x1@4:16",
        "Recipe `smoke`",
        "split of `smoke`",
        "| PSNR | ",
        "| images per step | 8 |",
    ):
        assert words in card
    assert "Apache-2.0" in card
    assert str(finished.parent) not in card


def test_export_to_another_folder(finished: Path, tmp_path: Path) -> None:
    target = export(finished, tmp_path / "mine", which="last.ckpt")
    assert {file.name for file in target.iterdir()} == {"README.md", "config.json", "model.safetensors"}


def test_half_precision_halves_the_file_and_preserves_the_output(finished: Path, tmp_path: Path) -> None:
    half = export(finished, tmp_path / "half", half=True)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (half, finished / "model")]
    assert sizes[0] < 0.6 * sizes[1]
    model, whole = finola.load(half), finola.load(finished / "model")
    images = torch.rand(2, 3, 16, 24)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert torch.allclose(model(images), whole(images), atol=0.02)


def test_folder_without_checkpoint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"best\.ckpt or last\.ckpt"):
        export(tmp_path, tmp_path / "model")

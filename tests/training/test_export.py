"""A finished run exports a model folder with a model card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training.runs import COMMON, run, weights

import finola
from finola.encoders import build_encoder
from finola.heads import Classifier
from finola.image_io import save_photo
from finola.training import export, load_recipe, train
from finola.wave.spectrum import measure_spectrum


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


def test_export_needs_only_the_run_directory(tmp_path: Path) -> None:
    """The weights and the spectrum that a run was initialised from may be gone."""
    finola.create("waves+conv/32x1@4:16").save_pretrained(tmp_path / "initial")
    (tmp_path / "own.json").write_text(
        json.dumps({"spectra": [measure_spectrum([torch.rand(4, 3, 16, 16)], side=16, keep=40).to_json()]})
    )
    words = (f"model.weights={tmp_path / 'initial'}", "trainer.max_steps=2")
    run(tmp_path / "run", *words, f"model.spectrum={tmp_path / 'own.json'}")
    shutil.rmtree(tmp_path / "initial")
    (tmp_path / "own.json").unlink()
    again = export(tmp_path / "run", tmp_path / "again")
    first, second = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run" / "model", again))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_encoder_name_is_stored_for_export(tmp_path: Path, photos: Path) -> None:
    """A classifier whose recipe names the encoder only by its weights is exported without them."""
    Classifier("test_resnet", "lin", ["a", "b"], 32).save_pretrained(tmp_path / "initial")
    words = [*COMMON, f"data.path={photos}", f"model.weights={tmp_path / 'initial'}", "model.name=''", "data.size=32"]
    recipe = load_recipe("probe/lin-w720-128", [*words, "data.batch_size=2", "data.limit=null", "trainer.max_steps=2"])
    train(recipe, tmp_path / "run", quiet=True)
    shutil.rmtree(tmp_path / "initial")
    model = Classifier.from_pretrained(export(tmp_path / "run", tmp_path / "again"))
    assert (
        model.classes == ["blue", "red"] and model.encoder.channels == build_encoder("test_resnet", (32, 32)).channels
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for channel, name in ((2, "blue"), (0, "red")):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                image = 0.3 * torch.rand(3, 36, 40)
                image[channel] += 0.6
                save_photo(image, folder / f"{number}.png")
    return tmp_path / "photos"


def test_folder_without_checkpoint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"best\.ckpt or last\.ckpt"):
        export(tmp_path, tmp_path / "model")

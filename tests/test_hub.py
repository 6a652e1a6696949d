"""One rule resolves the names of models everywhere, and config.json says of which type a model is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import finola
from finola.autoencoder import Autoencoder
from finola.cli import main
from finola.codec.calibration import load_codec
from finola.errors import CorruptFileError, InputError, MissingFileError
from finola.files import digest_of_weights
from finola.heads import Classifier
from finola.hub import TYPES, UNTRAINED, WEIGHTS_FOLDER, bundled_models, full_name, local_folder, read_config, resolve


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory whose folder `tile64` is another codec than the bundled one."""
    shutil.copytree(WEIGHTS_FOLDER / "tile64-512", tmp_path / "tile64")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bundled_name_is_the_bundled_model_and_a_path_is_the_folder(elsewhere: Path) -> None:
    assert resolve("tile64") == local_folder("tile64") == WEIGHTS_FOLDER / "tile64"
    for path in ("./tile64", "tile64/", str(elsewhere / "tile64"), Path("tile64")):
        folder = resolve(path)
        assert folder is not None and folder.resolve() == elsewhere / "tile64"
    Path("tile64").rename("mine")
    assert resolve("mine") == elsewhere / "mine"
    assert resolve("waves/64x1@8:32") is None and resolve("yours") is None


def test_load_and_the_codec_resolve_a_name_alike(elsewhere: Path) -> None:
    names = {digest_of_weights(finola.load(name)): name for name in ("tile64", "tile64-512")}
    load_codec.cache_clear()
    for word, expected in {"tile64": "tile64", "./tile64": "tile64-512"}.items():
        codec = load_codec(word)
        assert names[digest_of_weights(finola.load(word))] == expected
        assert names[digest_of_weights(Autoencoder.from_pretrained(word))] == expected
        assert str(codec.model.config) == full_name(expected)
        assert codec.hash == load_codec(expected).hash


def test_calibrate_of_a_bundled_name_does_not_write_into_the_folder(elsewhere: Path) -> None:
    before = (elsewhere / "tile64" / "codec.safetensors").read_bytes()
    assert main(["calibrate", "tile64", "smoke", "--tiles", "16", "--force"]) == 2
    assert (elsewhere / "tile64" / "codec.safetensors").read_bytes() == before


def test_classifiers_and_encoders_are_resolved_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = bundled_models("classifier")
    Classifier("test_resnet", "lin", ["a", "b"], 32).save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert len(finola.load_classifier(name).classes) == 10 and len(finola.load_classifier(f"./{name}").classes) == 2
    widths = [finola.load_encoder(word, (64, 64)).channels for word in (name, f"./{name}", "test_resnet")]
    assert widths[0] == 720 and widths[1] == widths[2] != 720


def test_an_untrained_bundled_name_is_the_created_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, created in UNTRAINED.items():
        (tmp_path / name).mkdir()
        assert resolve(name) is None and full_name(name) == created
        assert str(finola.load(name).config) == str(load_codec(name).model.config) == created


def test_bundled_configurations_have_a_type() -> None:
    assert set(bundled_models()) == set(bundled_models("autoencoder")) | set(bundled_models("classifier"))
    for name in bundled_models():
        assert json.loads((WEIGHTS_FOLDER / name / "config.json").read_text())["type"] in TYPES


def test_a_folder_without_a_configuration_raises(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"config\.json"):
        resolve(tmp_path)


def test_an_unknown_type_raises(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"type": "poem", "name": "waves/16x1@4:16"}')
    with pytest.raises(CorruptFileError, match="poem"):
        read_config(tmp_path)


def test_a_model_of_another_type_raises_with_the_function_that_loads_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Autoencoder("waves/16x1@4:16").save_pretrained(tmp_path / "autoencoder")
    [classifier] = bundled_models("classifier")
    for load, name, wanted in (
        (finola.load, classifier, "finola.load_classifier"),
        (finola.load, "mf-w720", "finola.load_encoder"),
        (Autoencoder.from_pretrained, classifier, "finola.load_classifier"),
        (finola.load_detector, classifier, "finola.load_classifier"),
        (finola.load_classifier, str(tmp_path / "autoencoder"), "finola.load."),
        (finola.load_detector, "tile64", "finola.load."),
    ):
        with pytest.raises(InputError) as caught:
            load(name)
        assert wanted in str(caught.value) and repr(name) in str(caught.value)


def test_an_unknown_name_raises_with_the_name_and_similar_ones() -> None:
    for load in (finola.load, finola.load_classifier, finola.load_detector, Autoencoder.from_pretrained):
        with pytest.raises(MissingFileError, match="tile46"):
            load("tile46")
    with pytest.raises(MissingFileError, match="tile64"):
        finola.load("tile46")

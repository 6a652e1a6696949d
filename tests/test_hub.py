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
    """Working directory whose folder `tile32` is another codec than the bundled one."""
    shutil.copytree(WEIGHTS_FOLDER / "photo256", tmp_path / "tile32")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bundled_name_is_the_bundled_model_and_a_path_is_the_folder(elsewhere: Path) -> None:
    assert resolve("tile32") == local_folder("tile32") == WEIGHTS_FOLDER / "tile32"
    for path in ("./tile32", "tile32/", str(elsewhere / "tile32"), Path("tile32")):
        folder = resolve(path)
        assert folder is not None and folder.resolve() == elsewhere / "tile32"
    Path("tile32").rename("mine")
    assert resolve("mine") == elsewhere / "mine"
    assert resolve("waves/64x1@8:32") is None and resolve("yours") is None


def test_load_and_the_codec_resolve_a_name_alike(elsewhere: Path) -> None:
    names = {digest_of_weights(finola.load(name)): name for name in ("tile32", "photo256")}
    load_codec.cache_clear()
    for word, expected in {"tile32": "tile32", "./tile32": "photo256"}.items():
        codec = load_codec(word)
        assert names[digest_of_weights(finola.load(word))] == expected
        assert names[digest_of_weights(Autoencoder.from_pretrained(word))] == expected
        assert str(codec.model.config) == full_name(expected)
        assert codec.hash == load_codec(expected).hash


def test_calibrate_of_a_bundled_name_does_not_write_into_the_folder(elsewhere: Path) -> None:
    before = (elsewhere / "tile32" / "codec.safetensors").read_bytes()
    assert main(["calibrate", "tile32", "smoke", "--tiles", "16", "--force"]) == 2
    assert (elsewhere / "tile32" / "codec.safetensors").read_bytes() == before


def test_classifiers_and_encoders_are_resolved_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Classifier("test_resnet", "lin", ["a", "b"], 32).save_pretrained(tmp_path / "paper64")
    monkeypatch.chdir(tmp_path)
    assert len(finola.load_classifier("./paper64").classes) == 2
    with pytest.raises(InputError, match="autoencoder"):
        finola.load_classifier("paper64")
    widths = [finola.load_encoder(word, (64, 64)).channels for word in ("./paper64", "test_resnet")]
    assert widths[0] == widths[1]


def test_an_untrained_bundled_name_is_the_created_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, created in UNTRAINED.items():
        (tmp_path / name).mkdir()
        assert resolve(name) is None and full_name(name) == created
        assert str(finola.load(name).config) == str(load_codec(name).model.config) == created


def test_bundled_configurations_have_a_type() -> None:
    assert bundled_models() == bundled_models("autoencoder") and not bundled_models("classifier")
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
    classifier = str(tmp_path / "classifier")
    Classifier("test_resnet", "lin", ["a", "b"], 32).save_pretrained(classifier)
    for load, name, wanted in (
        (finola.load, classifier, "finola.load_classifier"),
        (finola.load, "mf-w720", "finola.load_encoder"),
        (Autoencoder.from_pretrained, classifier, "finola.load_classifier"),
        (finola.load_detector, classifier, "finola.load_classifier"),
        (finola.load_classifier, str(tmp_path / "autoencoder"), "finola.load."),
        (finola.load_detector, "tile32", "finola.load."),
    ):
        with pytest.raises(InputError) as caught:
            load(name)
        assert wanted in str(caught.value) and repr(name) in str(caught.value)


def test_an_unknown_name_raises_with_the_name_and_similar_ones() -> None:
    for load in (finola.load, finola.load_classifier, finola.load_detector, Autoencoder.from_pretrained):
        with pytest.raises(MissingFileError, match="tile23"):
            load("tile23")
    with pytest.raises(MissingFileError, match="tile32"):
        finola.load("tile23")

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from finola.autoencoder import Autoencoder
from finola.cli import main
from finola.cli.inputs import find_photos
from finola.image_io import save_photo
from finola.wave.analysis import waves

MODEL = "waves/64x1@8:32"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    for index, size in enumerate([(32, 32), (40, 70), (33, 31)]):
        save_photo(torch.rand(3, *size), tmp_path / "photos" / f"{index}.png")
    return tmp_path / "photos"


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON number")


def run_json(capsys, *arguments: str) -> dict:
    assert main(["waves", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    return json.loads(out, parse_constant=refuse)


def test_table_contains_speeds_and_residuals(capsys, folder):
    assert main(["waves", MODEL, "--images", str(folder)]) == 0
    out = capsys.readouterr().out
    for words in (
        "right-down",
        "left-up",
        "infinite",
        "plane waves",
        "3 of 3 photos",
        "path inconsistency",
        "white noise",
        "fixed by construction",
        "σ from 1",
    ):
        assert words in out


def test_json_contains_finite_numbers_only(capsys, folder):
    result = run_json(capsys, MODEL, "--images", str(folder), "--limit", "2", "--quadrant", "left-up")
    assert result["images"] == 2 and result["of"] == 3 and len(result["photos"]) == 2
    assert result["residual"]["mean"] <= 1e-4 and result["controls"]["white noise"]["residual"]["mean"] <= 1e-4
    assert result["explained"]["fitted"] is None and 0 < result["explained"]["model_Q"] < 1
    assert result["path_inconsistency"] <= 1e-5
    assert set(result["quadrants"]) == {"right-down", "left-down", "right-up", "left-up"}
    assert result["quadrants"]["left-up"]["cond_B"] == "infinite"
    assert len(result["speeds"]) == len(result["kinds"]) == 63
    for speed, kind in zip(result["speeds"], result["kinds"], strict=True):
        assert speed == {"infinite": "infinite", "static": "none"}.get(kind, speed)
        assert isinstance(speed, str) or all(isinstance(part, float) for part in speed)


def test_crop_measures_each_resized_photo_as_one_image(capsys, tmp_path, folder):
    torch.manual_seed(0)
    Autoencoder("test_resnet/16x1@4:16+patch").save_pretrained(tmp_path / "model")
    result = run_json(capsys, str(tmp_path / "model"), "--images", str(folder), "--crop", "16")
    images = [photo.read_cropped((16, 16)) for photo in find_photos([str(folder)])]
    expected = waves(Autoencoder.from_pretrained(tmp_path / "model")).residual(images)
    assert result["path_inconsistency"] == pytest.approx(expected.path_inconsistency, rel=1e-4)


def test_saved_model_with_invertible_B_has_Q(capsys, tmp_path, folder):
    Autoencoder("mf-w720/16x1@4:32").save_pretrained(tmp_path / "model")
    result = run_json(capsys, str(tmp_path / "model"), "--images", str(folder / "0.png"))
    assert result["quadrants"]["right-down"]["has_Q"] and not result["printed"]
    assert result["quadrants"]["right-down"]["description"].startswith("Q = AB⁻¹ is diagonalised")
    assert main(["waves", str(tmp_path / "model"), "--images", str(folder / "0.png"), "--quadrant", "right-up"]) == 0
    assert "speeds of right-up" in capsys.readouterr().out


def test_controls_and_printed_form(capsys, tmp_path, folder):
    Autoencoder("mf-w720/4x1@8:32").save_pretrained(tmp_path / "model")
    arguments = [str(tmp_path / "model"), "--images", str(folder)]
    result = run_json(capsys, *arguments, "--random", "--printed", "--quadrant", "right-down")
    assert list(result["controls"]) == ["white noise", "random A, B"] and result["printed"]
    assert len(result["speeds"]) == 4 and sum(result["quadrants"]["random A, B"]["shares"].values()) == 1
    for found in (result, *result["controls"].values()):
        assert found["explained"]["fitted"] <= 1 and found["images"] == 3
    assert main(["waves", *arguments, "--random"]) == 0
    out = capsys.readouterr().out
    assert "random A, B" in out and "explained" in out and "by construction" not in out


def test_plot_is_written(capsys, tmp_path):
    target = tmp_path / "waves.png"
    assert main(["waves", "waves/32x1@4:256", "--plot", str(target)]) == 0  # on scikit-image's astronaut
    assert str(target) in capsys.readouterr().out
    assert target.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-model"], "no-such-model"),
        ([MODEL, "--images", "/no/such/folder"], "/no/such/folder"),
        ([MODEL, "--images", "skimage:nobody"], "nobody"),
        ([MODEL, "--plot", "waves.doc"], "waves.doc"),
        ([MODEL, "--plot", "/no/such/folder/waves.png"], "no folder"),
        ([MODEL, "--limit", "0"], "--limit"),
    ],
)
def test_invalid_input_prints_one_line_and_returns_2(capsys, arguments, words):
    assert main(["waves", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.startswith("finola waves: ")
    assert captured.err.count("\n") == 1 and not captured.out


def test_empty_folder_and_model_without_waves_are_rejected(capsys, tmp_path):
    assert main(["waves", MODEL, "--images", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    Autoencoder("mf-w720/8x1@4:32+linear").save_pretrained(tmp_path / "linear")
    assert main(["waves", str(tmp_path / "linear")]) == 2
    assert "norm+linear" in capsys.readouterr().err


def test_verb_does_not_import_heavy_packages():
    heavy = ["torch", "matplotlib", "rich", "numpy"]
    code = f"import sys, finola.cli.verbs.waves; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

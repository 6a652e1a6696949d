"""Output files of the command line: originals are kept, and ambiguous outputs are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from faults import failed, no_training

import finola
from finola.cli import main
from finola.image_io import read_photo, save_photo

WAVES = "waves/64x1@8:32"


def test_original_next_to_a_compressed_photo_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_photo(torch.rand(3, 40, 50), "photo.png")
    original = Path("photo.png").read_bytes()
    assert main(["compress", "photo.png", "--model", "waves512"]) == 0
    assert main(["decompress", "photo.finola"]) == 0
    assert Path("photo.png").read_bytes() == original and read_photo("photo.finola.png").shape == (3, 40, 50)
    capsys.readouterr()
    assert "photo.finola.png" in failed(capsys, ["decompress", "photo.finola"])
    assert main(["decompress", "photo.finola", "--force"]) == 0
    assert Path("photo.png").read_bytes() == original
    capsys.readouterr()
    for arguments in (["compress", "photo.png", "-o", "photo.png"], ["reconstruct", "photo.png", "-o", "."]):
        failed(capsys, [*arguments, "--force"])
        assert Path("photo.png").read_bytes() == original


@pytest.mark.parametrize(
    "arguments",
    [
        ["compress", "a.png", "b.png", "-o", "x.finola"],
        ["compress", "a.png", "-o", "x.jpg"],
        ["compress", "a.png", "a.jpg", "-o", "new"],
        ["compress", "a.png", "./a.png", "-o", "new"],
        ["compress", "a.png", "sub/A.png", "-o", "new"],
        ["compress", "a.png", "-o", "b.png/new"],
        ["decompress", "x", "-o", "x.finola"],
        ["reconstruct", "a.png", "b.png", "-o", "b.png"],
        ["reconstruct", "a.png", "-o", "new.png"],
        ["reconstruct", "a.png", "a-beside-original.png", "--side-by-side", "-o", "new"],
        ["evaluate", WAVES, "a.png", "-o", "new.json"],
        ["compare", "a.png", "--methods", "dct:1", "--plot", "new.png", "--sheet", "./new.png"],
    ],
    ids=" ".join,
)
def test_ambiguous_output_is_rejected_before_the_computation(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for name in ("a.png", "b.png", "a.jpg", "sub/A.png", "a-beside-original.png"):
        save_photo(torch.rand(3, 8, 8), name)
    before = sorted(tmp_path.rglob("*"))
    failed(capsys, arguments)
    assert sorted(tmp_path.rglob("*")) == before


def test_unreachable_bit_rate_is_reported(tmp_path, capsys):
    save_photo(torch.rand(3, 64, 64), tmp_path / "noise.png")
    arguments = ["compress", str(tmp_path / "noise.png"), "--model", "waves512", "--json", "--force"]
    for bpp, reached in (("1e-6", False), ("50", True)):
        assert main([*arguments, "--bpp", bpp]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["photos"][0]["bpp_reached"] is reached
        assert said.err.count("\n") == (not reached) and ("--bpp 1e-06" in said.err) == (not reached)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_recipe_does_not_name_a_folder_outside_of_its_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("finola.training.run.train", no_training)
    (tmp_path / "recipe.yaml").write_text(f'base: smoke\nname: "{name}"\n')
    assert f"{name!r}" in failed(capsys, ["train", str(tmp_path / "recipe.yaml")])


def test_trained_model_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("finola.training.run.train", no_training)
    finola.create(WAVES).save_pretrained(tmp_path / "run" / "model")
    arguments = ["train", "smoke", "--out", str(tmp_path / "run")]
    assert "config.json" in failed(capsys, arguments)
    arguments += [f"model.weights={tmp_path / 'run' / 'model'}", "--force"]
    assert "input" in failed(capsys, arguments)

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from finola.cli import main
from finola.image_io import read_photo, save_photo
from finola.paper.recipes import RECIPES


def test_help_imports_nothing_heavy():
    heavy = ["torch", "timm", "lightning", "matplotlib", "rich", "scipy", "numpy"]
    code = "import sys; from finola.cli import build_parser; build_parser(); "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_importing_finola_loads_no_torch():
    code = "import sys, finola; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_models_counts_a_name(capsys):
    assert main(["models", "mf-w2880/1024x16@64", "waves/64x1@8:32", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["models"]
    assert first["latent"] == 16384 and first["parameters_per_matrix"] == 1_048_576
    assert second["parameters"]["all"] == sum(v for k, v in second["parameters"].items() if k != "all")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tile32"], ["tile32"]),
        (["-m", "tile32"], ["tile32"]),
        (["tile32", "-m", "paper64"], ["paper64", "tile32"]),  # in the order of the list
        (["tile3?", "waves/64x1@8:32"], ["tile32", "waves/64x1@8:32"]),
        (["paper/channels/3072"], ["mf-w2880/3072x1@16"]),
        (["masked/e-*"], ["masked/e-w720", "masked/e-w1440", "masked/e-w2880"]),
    ],
)
def test_models_are_chosen_by_name_recipe_or_pattern(words, names, capsys):
    assert main(["models", *words, "--json"]) == 0
    assert [row["model"] for row in json.loads(capsys.readouterr().out)["models"]] == names


def test_models_of_all_recipes_of_the_paper_are_listed_once(capsys):
    assert main(["models", "paper/*", "--json"]) == 0
    names = [row["model"] for row in json.loads(capsys.readouterr().out)["models"]]
    trained = {recipe["model"]["name"] for name, recipe in RECIPES.items() if name.startswith("paper/")}
    assert sorted(names) == sorted(trained)


def test_models_prints_a_table(capsys):
    assert main(["models", "waves/64x1@8:32"]) == 0
    assert "waves/64x1@8:32" in capsys.readouterr().out


def test_reconstruct_reports_the_metrics_of_the_written_file(tmp_path, capsys):
    photo = read_photo("skimage:astronaut")[:, 100:170, 200:301]
    save_photo(photo, tmp_path / "face.png")
    arguments = ["reconstruct", str(tmp_path / "face.png"), "-o", str(tmp_path / "out"), "--side-by-side", "--json"]
    assert main([*arguments, "-m", "waves/256x1@16:64"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["photos"]
    rebuilt = read_photo(row["written"])
    assert rebuilt.shape == photo.shape and row["latents"] == 2 * 2 * 256
    error = -10 * torch.log10((rebuilt - photo).square().mean())
    assert abs(row["psnr"] - float(error)) < 0.2 and row["psnr"] > 20
    assert (tmp_path / "out" / "face-beside-original.png").is_file()


def test_photos_with_equal_names_do_not_overwrite_each_other(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save_photo(torch.rand(3, 16, 16), tmp_path / folder / "photo.png")
    assert main(["reconstruct", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "out"), "--json"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["photo-2.png", "photo.png"]


@pytest.mark.parametrize("verb", ["reconstruct", "compress"])
def test_damaged_photo_is_reported_and_others_are_processed(verb, tmp_path, capsys):
    save_photo(torch.rand(3, 70, 60), tmp_path / "whole.png")
    (tmp_path / "damaged.png").write_bytes((tmp_path / "whole.png").read_bytes()[:100])
    assert main([verb, str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert "damaged.png" in said.err and "whole" in said.out
    assert [path.stem for path in (tmp_path / "out").iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reconstruct", "/nowhere/photo.png"], "photo.png"),
        (["reconstruct", "skimage:astronaut", "-m", "tile"], "'tile'"),
        (["models", "mf-w720/1x1"], "'mf-w720/1x1'"),
        (["models", "-m", "tile23"], "tile32"),
        (["models", "tile32", "no-such/*"], "'no-such/*'"),
        (["reconstruct", "."], "."),
        (["compress", "skimage:astronaut", "--mode", "paper", "--bpp", "0.2"], "paper"),
        (["probe", "test_resnet", "smoke", "--neighbours", "0"], "--neighbours"),
        (["evaluate", "tile32", "smoke", "--limit", "0"], "0"),
        (["classify", "skimage:astronaut", "-m", "mine", "--top", "0"], "--top"),
        (["spectrum", "smoke", "-o", "x.json", "--waves", "0"], "--waves"),
        (["spectrum", "smoke", "-o", "x.json", "--limit", "-1"], "--limit"),
    ],
)
def test_invalid_input_prints_one_line_and_returns_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "suggestion", "command"),
    [
        (["wave", "tile32"], "waves", "finola"),
        (["reconstrct"], "reconstruct", "finola"),
        (["latent", "interpolat"], "interpolate", "finola latent"),
        (["waves", "tile32", "--device", "cud"], "cuda", "finola waves"),
        (["info", "--jsn"], "--json", "finola info"),
        (["latent", "mean", "--outt", "x", "-o", "x.png"], "--out", "finola latent mean"),
        (["info", "a", "b"], "b", "finola info"),
    ],
)
def test_mistyped_words_print_a_suggestion_and_the_help_to_read(arguments, suggestion, command, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"{command}: ") and said.err.endswith(f"See {command} --help.\n")
    assert suggestion in said.err


@pytest.mark.parametrize("arguments", [["info", ""], ["reconstruct", ""], ["evaluate", "tile32", ""], ["waves", ""]])
def test_an_empty_argument_does_not_mean_the_working_directory(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_photo(torch.rand(3, 32, 32), "photo.png")
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and "empty" in said.err and [path.name for path in tmp_path.iterdir()] == ["photo.png"]


def test_export_prints_the_differences_of_every_part(tmp_path, capsys):
    assert main(["export", "waves/16x1@4:16", "-o", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["part"] for row in found["verified"]] == ["encoder", "decoder", "model"]
    assert all(row["difference"] < 1e-4 for row in found["verified"])
    assert found["model"] == "waves/16x1@4:16" and (tmp_path / "out" / "export.json").is_file()
    assert main(["export", "waves/16x1@4:16", "-o", str(tmp_path / "out")]) == 2
    assert "--force" in capsys.readouterr().err

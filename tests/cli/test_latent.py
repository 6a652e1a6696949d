from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

import finola
from finola.autoencoder import Autoencoder
from finola.cli import main
from finola.evaluation.latent.statistics import FILE
from finola.image_io import save_photo
from finola.masked import MaskedFinola

MODEL = "waves/64x1@8:32"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Photos of several sizes, one of them unreadable, and statistics of q over them."""
    folder = tmp_path_factory.mktemp("latent")
    (folder / "photos").mkdir()
    generator = torch.Generator().manual_seed(0)
    for index, size in enumerate([(64, 64), (40, 70), (33, 31), (64, 90), (80, 80), (50, 50)]):
        noise = torch.rand(1, 3, 5, 5, generator=generator)
        photo = torch.nn.functional.interpolate(noise, size=size, mode="bicubic").clamp(0, 1)
        save_photo(photo[0], folder / "photos" / f"{index}.png")
    (folder / "photos" / "2b.png").write_bytes(b"damaged")
    arguments = ["latent", "fit", str(folder / "photos"), "--split", "all", "-m", MODEL, "--crop", "64"]
    assert main([*arguments, "-o", str(folder / "q.safetensors")]) == 2  # one photo is unreadable
    return folder


def run_json(capsys, *arguments: str, code: int = 0) -> dict:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def looked_at(place, act: str, *arguments: str) -> list[str]:
    common = ["-m", MODEL, "-o", str(place / f"{act}.png"), "-s", str(place / "q.safetensors")]
    return ["latent", act, *arguments, *common, *([] if act in ("mean", "sample") else ["--crop", "64"])]


def test_statistics_count_readable_photos_by_their_tiles(capsys, place):
    arguments = ["latent", "fit", str(place / "photos"), "--split", "all", "-m", MODEL, "--components", "7"]
    words = [*arguments, "--crop", "64", "-o", str(place / "few.safetensors"), "--incremental"]
    result = run_json(capsys, *words, code=2)
    assert result["count"] == 6 * 4 and result["components"] == 7 and 0.5 < result["variance_held"] < 1
    assert main([*arguments, "-o", str(place / "few.safetensors"), "--limit", "3", "--crop", "32", "--force"]) == 2
    assert "over 2 photos" in capsys.readouterr().out  # of three from all over the seven, one cannot be read


def test_missing_statistics_error_names_the_command(capsys, place):
    assert main(["latent", "mean", "-m", MODEL, "-o", str(place / "none.png")]) == 2
    assert "finola latent fit" in capsys.readouterr().err


def test_statistics_in_the_model_folder_are_used(capsys, place):
    finola.load(MODEL).save_pretrained(place / "model")
    (place / "model" / FILE).write_bytes((place / "q.safetensors").read_bytes())
    assert run_json(capsys, "latent", "mean", "-m", str(place / "model"), "-o", str(place / "own.png"))["written"]


def test_default_model_has_bundled_statistics(capsys, place):
    assert run_json(capsys, "latent", "mean", "-o", str(place / "first.png"))["written"]


@pytest.mark.parametrize("act", ["fade", "mirror", "pca"])
def test_interpolations_are_plotted(capsys, place, act):
    photos = [str(place / "photos" / f"{index}.png") for index in (0, 1)]
    result = run_json(capsys, *looked_at(place, act, *photos))
    with Image.open(place / f"{act}.png") as picture:
        assert min(picture.size) > 200
    if act == "pca":
        psnrs = torch.tensor(result["psnr"])  # (K, photos)
        assert result["components"] == sorted(result["components"]) and bool((psnrs.mean(1).diff() > 0).all())
    else:
        assert result["t"][0] == 0 and result["t"][-1] == {"fade": 1, "mirror": 2}[act]
        assert all(
            last < first for first, last in zip(result["std"][0], result["std"][len(result["t"]) // 2], strict=True)
        )
    if act == "mirror":
        assert max(result["correlation_of_mirror"]) < -0.95


def test_mean_samples_and_interpolations_are_plotted(capsys, place):
    assert run_json(capsys, *looked_at(place, "mean"))["std"] < 0.2
    assert len(run_json(capsys, *looked_at(place, "sample", "--count", "3"))["std"]) == 3
    photos = [str(place / "photos" / f"{index}.png") for index in (0, 4)]
    arguments = ["latent", "interpolate", *photos, "-m", MODEL, "-o", str(place / "mix.png"), "--steps", "3"]
    assert run_json(capsys, *arguments)["psnr_to_pixel_mix"]["0.50"][0] > 30
    for act in ("mean", "sample"):
        assert (place / f"{act}.png").stat().st_size > 5_000


def test_nearest_neighbour_is_the_photo_itself_and_unreadable_photos_are_skipped(capsys, place):
    photo = place / "photos" / "4.png"
    words = looked_at(place, "neighbours", str(photo), str(place / "photos"), "--count", "2")
    found = run_json(capsys, *words, code=2)
    best, second = found["neighbours"]
    assert best["photo"].endswith("4.png") and best["similarity"] == pytest.approx(1, abs=1e-3)
    assert second["similarity"] < 0.9
    single = run_json(capsys, *words, "--batch", "1", "--force", code=2)
    for one, other in zip(single["neighbours"], found["neighbours"], strict=True):
        assert one["photo"] == other["photo"] and one["similarity"] == pytest.approx(other["similarity"], abs=1e-3)
    assert main([*looked_at(place, "neighbours", str(photo), str(place / "photos")), "--force"]) == 2
    assert "4.png" in capsys.readouterr().out


def test_observations_are_printed_and_saved(capsys, place):
    arguments = ["latent", "observe", str(place / "photos"), "--split", "all", "-m", MODEL, "--crop", "64"]
    saved = place / "observed.json"
    assert main([*arguments, "-s", str(place / "q.safetensors"), "-o", str(saved)]) == 2
    assert "reverses colours" in capsys.readouterr().out
    result = json.loads(saved.read_text())
    assert result["images"] == 6 and result["fitted_on"] == 24
    assert result["mean"]["share_of_an_image"] < 1 and result["mirror"]["correlation"] < -0.9
    assert result["interpolation"]["psnr_to_pixel_mix"]["0.5"] > 30
    assert result["components"]["rises_with_k"] and result["components"]["k"][-1] == 23
    fitted_here = run_json(capsys, *arguments, "--limit", "4", code=2)  # the train split has the unreadable photo
    assert fitted_here["images"] == 4  # from all over the data
    assert fitted_here["fitted_on"] <= 16  # at most four photos of the train split


def test_photo_and_wave_are_animated(capsys, place):
    photo = str(place / "photos" / "3.png")
    grown = run_json(capsys, "grow", photo, "-m", MODEL, "-o", str(place / "grow.webp"), "--whole")
    assert grown["frames"] == 9 and (grown["width"], grown["height"]) == (90, 64)
    wave = run_json(capsys, "grow", photo, "-m", MODEL, "-o", str(place / "wave.gif"), "--wave", "3")
    assert wave["frames"] == 4 and wave["bytes"] == (place / "wave.gif").stat().st_size
    assert main(["grow", photo, "-m", MODEL, "-o", str(place / "grow.gif"), "--frames", "3"]) == 0
    assert "3 frames of 32×32" in capsys.readouterr().out


def test_curvature_of_two_models(capsys, place):
    MaskedFinola("mf-w720/8x1@4:64+patch", "b").save_pretrained(place / "masked")
    Autoencoder("mf-w720/8x1@4:64").save_pretrained(place / "plain")
    arguments = ["curvature", "skimage:astronaut", "-m", str(place / "plain"), "--beside", str(place / "masked")]
    result = run_json(capsys, *arguments, "-o", str(place / "curved.png"))
    plain, masked = result["models"]
    assert masked["model"] == str(place / "masked") and plain["channels"] == masked["channels"] == 8
    assert plain["most_curved"][0]["rms"] == plain["rms_of_peaks"]["max"] > 0
    assert (place / "curved.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["latent", "mean", "-s", "none.safetensors", "-o", "mean.png", "-m", MODEL], "finola latent fit"),
        (["latent", "mean", "-s", "none.safetensors", "-o", "mean.doc"], "mean.doc"),
        (["latent", "fit", "smoke", "-m", MODEL, "-o", "q.safetensors", "--crop", "40"], "--crop 40"),
        (["latent", "fit", "smoke", "-m", MODEL, "-o", "q.safetensors", "--limit", "0"], "--limit"),
        (["latent", "fit", "smoke", "-m", MODEL, "-o", "none/q.safetensors", "--limit", "2"], "no folder"),
        (["latent", "observe", "smoke", "-m", MODEL, "-o", "none/q.json"], "no folder"),
        (["latent", "interpolate", "skimage:cat", "skimage:cat", "-m", MODEL, "-o", "a.png"], "cat"),
        (["latent", "interpolate", "skimage:cat", "skimage:cat", "-o", "a.png", "--steps", "1"], "--steps"),
        (["grow", "skimage:chelsea", "-o", "grow.avi"], "grow.avi"),
        (["grow", "skimage:chelsea", "-m", MODEL, "-o", "grow.gif", "--wave", "1", "--frames", "2"], "--frames"),
        (["curvature", "skimage:cat", "-m", MODEL, "-o", "a.png"], "cat"),
        (["curvature", "skimage:chelsea", "-m", MODEL, "-o", "a.png", "--map", "encoder"], "no encoder map"),
    ],
)
def test_invalid_input_prints_one_line_and_returns_2(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert list(tmp_path.iterdir()) == []


def test_verbs_do_not_import_heavy_packages():
    verbs = "finola.cli.verbs.latent, finola.cli.verbs.maps"
    heavy = ["torch", "matplotlib", "rich", "numpy", "PIL"]
    code = f"import sys, {verbs}; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

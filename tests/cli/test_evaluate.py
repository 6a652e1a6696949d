from __future__ import annotations

import csv
import json

import pytest
import torch
from faults import failed

import finola
from finola.cli import main
from finola.cli.inputs import find_photos
from finola.heads import Classifier
from finola.image_io import read_photo, save_photo
from finola.metrics import psnr

MODEL = "waves/64x1@4:16"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    astronaut = read_photo("skimage:astronaut")
    for number, size in enumerate([(48, 64), (17, 23), (176, 180), (16, 16)]):
        save_photo(astronaut[:, 60 : 60 + size[0], 150 : 150 + size[1]], folder / f"{number}.png")
    return folder


def test_metrics_match_the_model(photos, tmp_path, capsys):
    (photos / "broken.png").write_bytes(b"no picture")
    assert main(["evaluate", MODEL, str(photos), "--split", "all", "--json", "-o", str(tmp_path / "out")]) == 2
    summary = json.loads(capsys.readouterr().out)
    model = finola.load(MODEL)
    originals = [read_photo(photos / f"{number}.png")[None] for number in range(4)]
    with torch.no_grad():
        expected = [psnr(model(original), original).item() for original in originals]
    assert summary["images"] == 4
    assert summary["psnr"] == pytest.approx(sum(expected) / 4, abs=2e-3)
    assert len(summary["unreadable"]) == 1 and "broken.png" in summary["unreadable"][0]
    rows = list(csv.DictReader((tmp_path / "out" / "images.csv").read_text().splitlines()))
    assert [float(row["psnr"]) for row in rows] == pytest.approx(expected, abs=2e-3)
    assert [row["ms_ssim"] != "" for row in rows] == [False, False, True, False]  # too small for five scales
    assert read_photo(tmp_path / "out" / "contact-sheet.png").shape[0] == 3


def test_crop_encodes_each_resized_photo_as_one_vector(photos, capsys):
    assert main(["evaluate", MODEL, str(photos), "--split", "all", "--json", "--crop", "16"]) == 0
    summary = json.loads(capsys.readouterr().out)
    model = finola.load(MODEL)
    names = [str(photos / f"{number}.png") for number in range(4)]
    originals = torch.stack([photo.read_cropped((16, 16)) for photo in find_photos(names)])
    with torch.no_grad():
        expected = psnr(model.decode(model.propagate(model.encode(originals))), originals)
    assert summary["crop"] == 16
    assert summary["psnr"] == pytest.approx(expected.mean().item(), abs=2e-3)


def test_classifier_accuracy_matches_classes_by_name(tmp_path, capsys):
    for number, name in enumerate(("ape", "bee", "cat")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for copy in range(2 + number):
            save_photo(torch.full((3, 40, 40), 0.2 * copy), tmp_path / "photos" / name / f"{copy}.png")
    model = Classifier("test_resnet", "lin", ["cat", "dog", "bee"], 32).eval()
    torch.nn.init.zeros_(model.head.linear.weight)
    model.head.linear.bias.data = torch.tensor([1.0, 0.0, 2.0])  # bee, then cat, whatever it sees
    model.save_pretrained(tmp_path / "model")
    words = ["evaluate", str(tmp_path / "model"), str(tmp_path / "photos"), "--split", "all"]
    assert main([*words, "--json", "-o", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 7 and found["accuracy"] == pytest.approx(3 / 7, abs=1e-4)
    assert found["by_class"] == {"bee": 1.0, "cat": 0.0} and found["unknown_classes"] == ["ape"]
    rows = list(csv.DictReader((tmp_path / "out" / "images.csv").read_text().splitlines()))
    assert {(row["class"], row["found"], row["rank"]) for row in rows} == {("bee", "bee", "1"), ("cat", "bee", "2")}
    assert main(words) == 0 and "ape" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "model"), str(tmp_path / "photos" / "cat"), "--split", "all"]) == 2
    assert "cat, dog, bee" in capsys.readouterr().err


ELASTIC = "waves+nets/64x1@4:16+elastic2"


@pytest.mark.parametrize(
    ("options", "kind"), [([], "elastic"), (["--budget", "2048"], "elastic"), (["--per-tile", "8"], "fixed")]
)
def test_elastic_models_report_what_is_meant_and_used(options, kind, photos, tmp_path, capsys):
    words = [ELASTIC, str(photos), "--split", "all", *options, "--effort", "1"]
    assert main(["evaluate", *words, "--json", "-o", str(tmp_path / "out")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["allocation"] == kind and summary["effort"] == 1
    assert summary["refined_psnr"] >= summary["psnr"]
    assert 0 < summary["side_per_256"] < summary["latents_per_256"]
    if "--budget" in options:
        assert summary["budget"] == 2048 and summary["latents_per_256"] <= 2048
    rows = list(csv.DictReader((tmp_path / "out" / "images.csv").read_text().splitlines()))
    assert all(float(row["refined_psnr"]) >= float(row["psnr"]) for row in rows)
    assert main(["evaluate", *words, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert kind in out and "amortised" in out and "refined" in out


def test_reconstruct_counts_the_latents_of_elastic_models(photos, monkeypatch, capsys):
    monkeypatch.chdir(photos)
    model, photo = finola.create(ELASTIC).eval(), "0.png"
    words = ["reconstruct", photo, "-m", ELASTIC, "-o", "out", "--effort", "1"]
    assert main([*words, "--per-tile", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["photos"]
    assert found["allocation"] == "fixed" and found["per_tile"] == 8
    assert row["latents"] - row["side"] == 3 * 4 * 8 and row["side"] == 2
    assert row["latents_per_256"] == pytest.approx(row["latents"] * 256**2 / (48 * 64), abs=0.1)
    assert row["refined"]["psnr"] >= row["psnr"]
    expected = finola.decode(model, finola.encode(model, read_photo(photo), per_tile=8, effort=1)).clamp(0, 1)
    assert (read_photo(row["written"]) - expected).abs().max() < 0.01
    assert main([*words, "--budget", "4096", "--force"]) == 0
    out = capsys.readouterr().out
    assert "elastic, at most 4,096" in out and "refined" in out


@pytest.mark.parametrize("verb", ["evaluate", "reconstruct"])
@pytest.mark.parametrize(
    ("model", "options", "word"),
    [
        (MODEL, ["--budget", "4096"], "elastic"),
        (MODEL, ["--per-tile", "64"], "elastic"),
        (ELASTIC, ["--budget", "4096", "--per-tile", "8"], "--per-tile"),
        (ELASTIC, ["--budget", "3"], "3"),
        (ELASTIC, ["--per-tile", "9"], "9"),
        (ELASTIC, ["--effort", "10"], "10"),
    ],
)
def test_invalid_options_print_one_line(verb, model, options, word, photos, capsys):
    arguments = [model, str(photos)] if verb == "evaluate" else [str(photos / "0.png"), "-m", model]
    assert word in failed(capsys, [verb, *arguments, *options])


def test_options_of_autoencoders_are_rejected_for_classifiers(photos, tmp_path, capsys):
    Classifier("test_resnet", "lin", ["cat", "dog"], 32).save_pretrained(tmp_path / "classifier")
    assert "classifier" in failed(capsys, ["evaluate", str(tmp_path / "classifier"), str(photos), "--effort", "1"])


def test_table_is_printed(photos, capsys):
    assert main(["evaluate", MODEL, str(photos), "--split", "all", "--limit", "2"]) == 0
    assert "PSNR" in capsys.readouterr().out


def test_no_readable_photo_prints_one_line(tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(b"no picture")
    assert main(["evaluate", MODEL, str(tmp_path), "--split", "all"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1

from __future__ import annotations

import csv
import json

import pytest
import torch

import finola
from finola.cli import main
from finola.images import read_photo, save_photo
from finola.metrics import psnr

MODEL = "waves/64x1@4:16"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    astronaut = read_photo("skimage:astronaut")
    for number, size in enumerate([(48, 64), (17, 23), (176, 180), (16, 16)]):
        save_photo(astronaut[:, 60 : 60 + size[0], 150 : 150 + size[1]], folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


def test_figures_are_those_of_the_model(photos, tmp_path, capsys):
    assert main(["evaluate", MODEL, str(photos), "--split", "all", "--json", "-o", str(tmp_path / "out")]) == 0
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


def test_a_table_for_people(photos, capsys):
    assert main(["evaluate", MODEL, str(photos), "--split", "all", "--limit", "2"]) == 0
    assert "PSNR" in capsys.readouterr().out


def test_nothing_readable_is_one_sentence(tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(b"no picture")
    assert main(["evaluate", MODEL, str(tmp_path), "--split", "all"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1

"""Codecs of elastic models: calibration on photos, files of version 2, and their header."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from faults import failed

import finola
from finola.cli import main
from finola.codec.calibration import ElasticCodec, load_codec
from finola.codec.codec import decompress
from finola.codec.samples import TILES_PER_SIDE, photo_coordinates
from finola.data import open_data
from finola.image_io import read_photo, save_photo
from finola.metrics import psnr

NAME = "waves+nets/64x1@4:16+elastic2"


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small elastic model, calibrated by the command."""
    folder = tmp_path_factory.mktemp("codec") / "mine"
    finola.create(NAME).save_pretrained(folder)
    assert main(["calibrate", str(folder), "smoke", "--photos", "5"]) == 0
    return folder


def test_calibrated_elastic_model_is_a_codec(codec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(load_codec(str(codec)), ElasticCodec)
    photo = read_photo("skimage:astronaut")[:, 60:130, 150:250]
    save_photo(photo, tmp_path / "p.png")
    assert main(["compress", str(tmp_path / "p.png"), "-m", str(codec), "--quality", "80", "--json"]) == 0
    file = tmp_path / "p.finola"
    rebuilt = decompress(file, model=str(codec))[None].float() / 255
    assert float(psnr(rebuilt, photo[None])) > 25
    capsys.readouterr()
    assert main(["info", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["mode"], facts["version"], facts["model"]) == ("elastic", 2, "mine")
    assert facts["bytes"] == file.stat().st_size and 0 <= facts["step"] < 256 and facts["tiles"] is None
    assert main(["info", str(file)]) == 0 and "elastic" in capsys.readouterr().out


def test_header_of_a_bundled_codec_has_the_number_of_tiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = finola.compress(torch.rand(3, 70, 130), model="waves512")
    (tmp_path / "p.finola").write_bytes(made.data)
    assert main(["info", str(tmp_path / "p.finola"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["tiles"], facts["mode"], facts["version"]) == (2 * 3, "coded", 1)


def test_samples_differ_by_kind_of_model(codec: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "x.safetensors")]
    assert "--photos" in failed(capsys, ["calibrate", str(codec), "smoke", "--tiles", "16", *out])
    assert "--tiles" in failed(capsys, ["calibrate", "waves/32x1@4:32", "smoke", "--photos", "16", *out])


def test_large_photos_are_cropped_and_unreadable_ones_skipped(tmp_path: Path) -> None:
    model = finola.create(NAME)
    save_photo(torch.rand(3, 40, 700), tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no photo")
    ((p, columns),) = photo_coordinates(model, open_data(str(tmp_path), "all"))
    assert columns == TILES_PER_SIDE and len(p) == 3 * TILES_PER_SIDE

"""Photos, data and models are given in the same way to every command."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow
import pytest
import torch
from faults import failed
from pyarrow import parquet

import finola
from finola.cli import build_parser, main, output
from finola.cli.inputs import Photo, find_photos
from finola.errors import InputError
from finola.evaluation import reconstruction
from finola.image_io import read_photo, save_photo
from finola.metrics import psnr

MODEL = "waves/64x1@8:32"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data folder FINOLA_DATA with photos in files and in a Parquet file, and a working directory beside it."""
    (tmp_path / "home" / "photos" / "deep").mkdir(parents=True)
    (tmp_path / "home" / "rows").mkdir()
    (tmp_path / "here").mkdir()
    generator = torch.Generator().manual_seed(0)
    files = []
    for number in range(5):
        path = tmp_path / "home" / "photos" / ("deep" if number == 4 else "") / f"{number}.png"
        save_photo(torch.rand(3, 40, 32 + 8 * (number // 3), generator=generator), path)
        files.append(path)
    table = pyarrow.table({"image": [path.read_bytes() for path in files[:2]], "name": ["a/x", "a/y"]})
    parquet.write_table(table, tmp_path / "home" / "rows" / "all.parquet")
    monkeypatch.setenv("FINOLA_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def test_photos_are_files_folders_patterns_and_data_names(home):
    names = [str(home / "photos" / name) for name in ("0.png", "1.png", "2.png", "3.png", "deep/4.png")]
    assert [photo.name for photo in find_photos(["photos"])] == names
    assert [photo.name for photo in find_photos([str(home / "photos")])] == names
    assert [photo.name for photo in find_photos(["photos/*.png"])] == names[:4]
    assert [photo.name for photo in find_photos([names[3], "skimage:coffee"])] == [names[3], "skimage:coffee"]
    assert [photo.name for photo in find_photos(["photos"], limit=3)] == [names[0], names[2], names[4]]
    rows = find_photos(["rows"])
    assert len(rows) == 2 and all(photo.data is not None for photo in rows)
    assert torch.equal(rows[1].read(), read_photo(names[1]))


@pytest.mark.parametrize("verb", ["reconstruct", "compress"])
def test_photos_of_a_data_set_are_processed(verb, home, capsys):
    assert main([verb, "rows", "-o", "out/", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["photos"]
    assert len(rows) == 2 and all(row["psnr"] > 5 for row in rows)


def test_batches_give_the_metrics_of_single_photos(home, capsys):
    model = finola.load(MODEL)
    found = {}
    for batch in ("1", "3"):
        arguments = ["reconstruct", "photos", "-m", MODEL, "-o", f"out-{batch}", "--batch", batch, "--device", "cpu"]
        assert main([*arguments, "--json"]) == 0
        found[batch] = json.loads(capsys.readouterr().out)
    assert found["1"]["model"] == MODEL and [row["width"] for row in found["1"]["photos"]] == [32, 32, 32, 40, 40]
    for single, batched in zip(found["1"]["photos"], found["3"]["photos"], strict=True):
        photo = read_photo(single["photo"])[None]
        with torch.no_grad():
            expected = float(psnr(model(photo).clamp(0, 1), photo))
        assert single["psnr"] == pytest.approx(expected, abs=2e-3)
        assert batched["psnr"] == pytest.approx(expected, abs=2e-3)


def test_the_smallest_photos_are_reconstructed(home, capsys):
    for side in range(1, 4):
        save_photo(torch.rand(3, side, side), f"tiny-{side}.png")
    assert main(["reconstruct", "tiny-1.png", "tiny-2.png", "tiny-3.png", "-m", "tile32", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["photos"]
    assert [(row["width"], row["height"], row["ssim"]) for row in rows] == [(1, 1, None), (2, 2, None), (3, 3, None)]


def test_a_photo_that_cannot_be_encoded_does_not_stop_its_batch(home, capsys, monkeypatch):
    encode = reconstruction.encode

    def encode_unless_white(model, images, **options):
        if bool((images > 0.99).flatten(1).all(1).any()):
            raise InputError("A photo is white.")
        return encode(model, images, **options)

    monkeypatch.setattr(reconstruction, "encode", encode_unless_white)
    for number in range(2):
        save_photo(torch.ones(3, 32, 32), f"white-{number}.png")
    assert main(["reconstruct", "white-0.png", "white-1.png", "photos", "-m", MODEL, "--json"]) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert len(found["photos"]) == 5 and len(found["unreadable"]) == said.err.count("\n") == 2


def test_the_model_is_an_option_wherever_it_is_meant(home, capsys):
    results = []
    for words in ([MODEL, "photos"], ["-m", MODEL, "photos"], ["photos", "--model", MODEL]):
        assert main(["evaluate", *words, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1] == results[2] and results[0]["model"] == MODEL
    assert MODEL in failed(capsys, ["evaluate", "tile32", "photos", "-m", MODEL])
    failed(capsys, ["evaluate"])
    failed(capsys, ["waves", "tile32", "-m", MODEL])


@pytest.mark.parametrize("limit", ["0", "-3", "many"])
def test_a_limit_below_one_is_rejected(limit, capsys):
    parsers = build_parser()._subparsers._group_actions[0].choices
    verbs = [name for name, parser in parsers.items() if "--limit" in parser._option_string_actions]
    assert {"reconstruct", "classify", "compress", "evaluate", "compare", "spectrum", "waves"} <= set(verbs)
    for verb in verbs:
        assert limit in failed(capsys, [verb, "--limit", limit, "-m", "x"]) or verb == "spectrum"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "arguments", [["reconstruct", "photos", "-m", MODEL], ["compare", "photos", "--methods", MODEL]]
)
def test_a_device_that_is_not_there_is_rejected(arguments, home, capsys):
    assert "cuda" in failed(capsys, [*arguments, "--device", "cuda"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["reconstruct", "no-such.jpg"],
        ["compress", "no-such.jpg"],
        ["compress", "x.jpg", "--quality", "500"],
        ["decompress", "no-such.finola"],
        ["classify", "no-such.jpg", "-m", "classifier"],
        ["reconstruct", "x.jpg", "-m", "tile23"],
        ["classify", "x.jpg", "-m", "tile23"],
        ["detect", "no-such.jpg", "-m", "x"],
        ["evaluate", "tile32", "no-such-data"],
        ["compare", "no-such-data"],
        ["probe", "mf-w720", "no-such-data"],
        ["probe", "mf-w720", "smoke", "--probes", "svm"],
        ["calibrate", "tile32", "no-such-data", "-o", "x.safetensors"],
        ["spectrum", "no-such-data", "-o", "x.json"],
        ["waves", "tile32", "--images", "no-such.jpg"],
        ["waves", "tile32", "--images", ".", "--plot", "x.doc"],
        ["latent", "fade", "no-such.jpg", "-o", "x.png"],
        ["grow", "no-such.jpg", "-o", "x.gif"],
        ["curvature", "no-such.jpg", "-m", "tile32", "-o", "x.png"],
        ["reconstruct"],
        ["no-such-verb"],
    ],
    ids=" ".join,
)
def test_a_mistyped_argument_is_reported_before_torch_is_imported(arguments, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"")
    code = f"import sys; from finola.cli import main; print(main({arguments}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False"] and done.stderr.count("\n") == 1


def test_progress_is_reported_when_standard_error_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(output, "PROGRESS_SECONDS", 0.0)
    assert list(output.progress("abc", 3, "reading")) == ["a", "b", "c"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "reading" in lines[0] and "2 of 3" in lines[1]


def test_every_verb_is_listed_in_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in build_parser()._subparsers._group_actions[0].choices)


def test_a_photo_has_the_stem_of_its_file():
    assert [Photo(name).stem for name in ("a/b.jpg", "skimage:cat", "c")] == ["b", "cat", "c"]

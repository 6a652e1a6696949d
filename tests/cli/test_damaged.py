"""A damaged photo is named on standard error, the others are processed, outputs are written, and the exit code is 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from cocos import rectangle, write_coco

from finola.cli import main
from finola.codec.codec import compress
from finola.heads import Classifier
from finola.heads.detector import Detector
from finola.heads.mask_rcnn import Segmenter
from finola.image_io import save_photo

WAVES = "waves/64x1@8:32"
ALL = ["--split", "all"]

COMMANDS: dict[str, tuple[list[str], str]] = {  # arguments, and what is written
    "reconstruct": (["PHOTOS", "-m", WAVES, "-o", "OUT"], "OUT/whole.png"),
    "classify": (["PHOTOS", "-m", "CLASSIFIER"], ""),
    "detect": (["PHOTOS", "-m", "DETECTOR", "-o", "OUT"], "OUT/objects.json"),
    "segment": (["PHOTOS", "-m", "SEGMENTER", "-o", "OUT"], "OUT/objects.json"),
    "compress": (["PHOTOS", "-m", "waves512", "-o", "OUT"], "OUT/whole.finola"),
    "compress in two processes": (["PHOTOS", "-m", "waves512", "-o", "OUT", "--workers", "2"], "OUT/whole.finola"),
    "compress to shards": (["PHOTOS", "-m", "waves512", "-o", "OUT", "--shards"], "OUT/shard-00000.tar"),
    "decompress": (["FILES", "-o", "OUT"], "OUT/whole.png"),
    "embed": (["PHOTOS", "-m", WAVES, "-o", "OUT"], "OUT/part-00000.parquet"),
    "evaluate an autoencoder": ([WAVES, "PHOTOS", *ALL, "-o", "OUT"], "OUT/images.csv"),
    "evaluate a classifier": (["CLASSIFIER", "PHOTOS", *ALL, "-o", "OUT"], "OUT/images.csv"),
    "evaluate a detector": (["DETECTOR", "COCO", *ALL, "-o", "OUT"], "OUT/results.json"),
    "compare": (["PHOTOS", "--methods", "dct:1", WAVES, "--workers", "1", "-o", "OUT.json"], "OUT.json"),
    "compare in two processes": (["PHOTOS", "--methods", "dct:1", WAVES, "--workers", "2"], ""),
    "compare with a KLT": (["KLT", "--methods", "klt32:1", "--train", "PHOTOS", "--crop", "32"], ""),
    "probe": (["test_resnet", "PHOTOS", "--probes", "knn", "--size", "32"], ""),
    "waves": ([WAVES, "--images", "PHOTOS", "--plot", "OUT.png"], "OUT.png"),
    "spectrum": (["PHOTOS", *ALL, "--sides", "16", "--waves", "8", "-o", "OUT.json"], "OUT.json"),
    "calibrate": ([WAVES, "PHOTOS", *ALL, "--tiles", "64", "-o", "OUT.safetensors"], "OUT.safetensors"),
    "latent fit": (["PHOTOS", *ALL, "-m", WAVES, "-o", "OUT.safetensors"], "OUT.safetensors"),
    "latent observe": (["PHOTOS", *ALL, "-m", WAVES, "-s", "STATISTICS", "-o", "OUT.json"], "OUT.json"),
    "latent neighbours": (["PHOTO", "PHOTOS", "-m", WAVES, "-s", "STATISTICS", "-o", "OUT.png"], "OUT.png"),
    "latent fade": (["PHOTOS", "-m", WAVES, "-s", "STATISTICS", "-o", "OUT.png"], "OUT.png"),
    "latent mirror": (["PHOTOS", "-m", WAVES, "-s", "STATISTICS", "-o", "OUT.png"], "OUT.png"),
    "latent pca": (["PHOTOS", "-m", WAVES, "-s", "STATISTICS", "-o", "OUT.png"], "OUT.png"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, intact photos in two classes, as compressed files and with objects, and devices that no command opens."""
    folder = tmp_path_factory.mktemp("damaged")
    generator = torch.Generator().manual_seed(0)
    (folder / "files").mkdir()
    for name in ("cat/whole", "cat/1", "cat/2", "dog/3", "dog/4", "dog/5"):
        path = folder / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_photo(torch.rand(3, 64, 64, generator=generator), path)
    photo = folder / "photos" / "cat" / "whole.png"
    (folder / "files" / "whole.finola").write_bytes(compress(str(photo), model="waves512").data)
    if os.name != "nt":
        for link in ("photos/cat/device.png", "photos/device.jpg", "photos/device.tar", "files/device.finola"):
            (folder / link).symlink_to(os.devnull)
    write_coco(folder / "coco", {"val2017": [[rectangle(8, 8, 16, 16)] for _ in range(3)]}, (64, 64))
    Classifier("test_resnet", "lin", ["cat", "dog"], 32).save_pretrained(folder / "classifier")
    Detector("test_resnet", "mf-dec-211", classes=["box"], size=(64, 64)).save_pretrained(folder / "detector")
    Segmenter("test_resnet", classes=["box"], size=(64, 64)).save_pretrained(folder / "segmenter")
    arguments = ["latent", "fit", str(folder / "photos"), *ALL, "-m", WAVES, "-o", str(folder / "q.safetensors")]
    assert main(arguments) == 0
    return folder


def filled(command: str, place: Path, folder: Path) -> tuple[list[str], str]:
    """Command line with inputs in `place` and outputs in `folder`, and the file that it writes."""
    words = {"PHOTOS": place / "photos", "PHOTO": place / "photos" / "cat" / "whole.png", "FILES": place / "files"}
    words |= {"COCO": place / "coco", "KLT": place / "photos" / "dog", "STATISTICS": place / "q.safetensors"}
    words |= {name: place / name.lower() for name in ("CLASSIFIER", "DETECTOR", "SEGMENTER")}
    words |= {f"OUT{suffix}": folder / f"out{suffix}" for suffix in ("", ".json", ".png", ".safetensors")}
    arguments, written = COMMANDS[command]
    verb = command.split()[: 2 if command.startswith("latent") else 1]
    arguments = [*verb, *(str(words.get(word, word)) for word in arguments), "--device", "cpu"]
    if verb == ["spectrum"]:
        arguments = arguments[:-2]
    if verb == ["compare"]:
        arguments += ["--cache", str(folder / "cache")]
    return arguments, written.replace("OUT", str(folder / "out"))


@pytest.fixture
def damaged(place: Path):
    """The same inputs with a damaged photo of each kind among them."""
    paths = [place / "photos" / "cat" / "damaged.png", place / "files" / "damaged.finola"]
    paths[0].write_bytes((place / "photos" / "cat" / "whole.png").read_bytes()[:100])
    paths[1].write_bytes((place / "files" / "whole.finola").read_bytes()[:20])
    second = place / "coco" / "val2017" / "2.png"
    intact = second.read_bytes()
    second.write_bytes(intact[:50])
    yield place
    second.write_bytes(intact)
    for path in paths:
        path.unlink()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_photo_is_reported_and_the_others_are_processed(command, damaged, tmp_path, capsys):
    arguments, written = filled(command, damaged, tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert ("2.png" if "COCO" in COMMANDS[command][0] else "damaged.") in error
    assert all(line.startswith(f"finola {arguments[0]}: ") for line in error.splitlines())
    assert not written or Path(written).is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_intact_photos_end_with_exit_code_0(command, place, tmp_path, capsys):
    arguments, written = filled(command, place, tmp_path)
    assert main(arguments) == 0
    assert capsys.readouterr().err == "" and (not written or Path(written).is_file())


def test_photos_that_are_all_damaged_are_an_error(damaged, tmp_path, capsys):
    photo = str(damaged / "photos" / "cat" / "damaged.png")
    statistics = ["-m", WAVES, "-s", str(damaged / "q.safetensors"), "-o", str(tmp_path / "out.png")]
    for arguments in (["compare", photo, "--methods", "dct:1"], ["latent", "fade", photo, *statistics]):
        assert main(arguments) == 2
        assert "damaged.png" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()

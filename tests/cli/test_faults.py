"""Every verb: existing files are not overwritten, an error prints one line and returns exit code 2, JSON is alike."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import failed, no_training

import finola
from finola.cli import build_parser, main
from finola.cli.output import print_json
from finola.codec.codec import compress
from finola.encoders.elastic import ElasticEncoder
from finola.encoders.waves import WaveEncoder
from finola.heads import Classifier
from finola.heads.detector import Detector
from finola.heads.mask_rcnn import Segmenter
from finola.image_io import read_photo, save_photo

WAVES = "waves/64x1@8:32"
FEW = ["--split", "all", "--limit", "1"]

WRITES: dict[str, tuple[list[str], str]] = {  # arguments, and a file that they write
    "calibrate": (["MODEL", "INPUT", "--tiles", "32", "-o", "OUT/x.safetensors"], "x.safetensors"),
    "compare": (["INPUT", "--methods", "METHOD", "--workers", "1", "--cache", "CACHE", "-o", "OUT/x.json"], "x.json"),
    "compress": (["INPUT", "--model", "CODEC", "-o", "OUT/x.finola"], "x.finola"),
    "curvature": (["INPUT", "-m", "MODEL", "-o", "OUT/x.png"], "x.png"),
    "decompress": (["COMPRESSED", "--model", "CODEC", "-o", "OUT/x.png"], "x.png"),
    "detect": (["INPUT", "-m", "DETECTOR", "-o", "OUT"], "objects.json"),
    "embed": (["INPUT", "-m", "MODEL", "-o", "OUT"], "part-00000.parquet"),
    "evaluate": (["MODEL", "INPUT", "-o", "OUT"], "images.csv"),
    "export": (["MODEL", "--format", "torch", "-o", "OUT"], "export.json"),
    "grow": (["INPUT", "-m", "MODEL", "-o", "OUT/x.gif"], "x.gif"),
    "latent fit": (["INPUT", *FEW, "--crop", "64", "-m", "MODEL", "-o", "OUT/x.safetensors"], "x.safetensors"),
    "latent mean": (["-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.png"], "x.png"),
    "latent fade": (["INPUT", "-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.png"], "x.png"),
    "latent mirror": (["INPUT", "-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.png"], "x.png"),
    "latent interpolate": (["INPUT", "INPUT", "-m", "MODEL", "-o", "OUT/x.png"], "x.png"),
    "latent sample": (["-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.png"], "x.png"),
    "latent pca": (["INPUT", "-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.png"], "x.png"),
    "latent neighbours": (["INPUT", "INPUT", *FEW, "-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.png"], "x.png"),
    "latent observe": (["DATA", "--split", "all", "-m", "MODEL", "-s", "STATISTICS", "-o", "OUT/x.json"], "x.json"),
    "reconstruct": (["INPUT", "-m", "MODEL", "-o", "OUT"], "photo.png"),
    "segment": (["INPUT", "-m", "SEGMENTER", "-o", "OUT"], "objects.json"),
    "spectrum": (["INPUT", "--sides", "SIDE", "--waves", "8", "-o", "OUT/x.json"], "x.json"),
    "train": (["smoke", "data.path=INPUT", "--out", "RUN", "--export", "OUT"], "config.json"),
    "waves": (["MODEL", "--images", "INPUT", "--plot", "OUT/x.png"], "x.png"),
}
FROM_FILES = [verb for verb in WRITES if verb != "export"]  # its input is a folder, whose files have other names
ON_PHOTOS = {verb for verb, (arguments, _) in WRITES.items() if {"MODEL", "INPUT"} <= {*arguments}}
READS = {  # verbs without an argument for an output file
    "classify": ["INPUT", "-m", "CLASSIFIER"],
    "info": ["INPUT"],
    "models": ["INPUT"],
    "probe": ["test_resnet", "INPUT"],
    "reproduce": ["table:comp-norm", "--data", "INPUT"],  # --report has its own test
}
WITHOUT_INPUT = {"app", "plan"}
NO_MODEL = dict.fromkeys(["MODEL", "DETECTOR", "SEGMENTER", "CLASSIFIER"], "no-such-model")
NO_MODEL |= {"CODEC": "no-such-model", "METHOD": "no-such-method", "SIDE": "1"}


def verbs(
    parser: argparse.ArgumentParser | None = None, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every verb with its parser; subcommands of `latent` count as verbs."""
    parser = parser or build_parser()
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield name, parser
    for action in inner:
        for word, choice in action.choices.items():
            yield from verbs(choice, f"{name} {word}".strip())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, str]:
    """Small inputs for every verb."""
    folder = tmp_path_factory.mktemp("inputs")
    save_photo(read_photo("skimage:astronaut")[:, 50:114, 200:264], folder / "photo.png")
    (folder / "photo.finola").write_bytes(compress(str(folder / "photo.png"), model="waves512").data)
    Detector("test_resnet", "mf-dec-211", classes=["cat"], size=(64, 64)).save_pretrained(folder / "detector")
    Segmenter("test_resnet", classes=["cat"], size=(64, 64)).save_pretrained(folder / "segmenter")
    Classifier("test_resnet", "lin", ["cat", "dog"], 64).save_pretrained(folder / "classifier")
    (folder / "data").mkdir()
    for number in range(3):
        save_photo(torch.rand(3, 64, 64), folder / "data" / f"{number}.png")
    statistics = str(folder / "q.safetensors")
    assert main(["latent", "fit", str(folder / "data"), "--split", "all", "-m", WAVES, "-o", statistics]) == 0
    names = {"INPUT": "photo.png", "COMPRESSED": "photo.finola", "STATISTICS": "q.safetensors"}
    names |= {"DETECTOR": "detector", "SEGMENTER": "segmenter", "CLASSIFIER": "classifier", "DATA": "data"}
    return {key: str(folder / name) for key, name in names.items()} | {
        "MODEL": WAVES,
        "CODEC": "waves512",
        "METHOD": "dct:1",
        "SIDE": "16",
    }


def filled(verb: str, arguments: list[str], place: Path, words: dict[str, str]) -> list[str]:
    """Fill in the command line of a verb, with outputs in `place`."""
    words = {"CACHE": str(place.parent / "cache"), "RUN": str(place.parent / "run"), "OUT": str(place)} | words
    for key, value in words.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    return [*verb.split(), *arguments]


def test_every_verb_is_covered_here():
    parsers = dict(verbs())
    assert set(parsers) == {*WRITES, *READS, *WITHOUT_INPUT}
    for name, parser in parsers.items():
        writes = parser._option_string_actions.keys() & {"-o", "--out", "--plot", "--sheet", "--export"}
        assert bool(writes) == (name in WRITES), name
        assert ("--force" in parser._option_string_actions) == (name in WRITES or name == "reproduce"), name


def test_options_have_one_meaning_in_all_verbs():
    """-m is the model and --model its long name, with a device except where a model is only listed or exported."""
    meanings: dict[str, set[object]] = {"--limit": set(), "--device": set(), "--batch": set()}
    for name, parser in verbs():
        options = parser._option_string_actions
        assert "--batch-size" not in options
        if "-m" in options:
            assert "--model" in options["-m"].option_strings, name
            assert "--device" in options or name in ("export", "models"), name
        for option in meanings.keys() & options.keys() if name != "plan" else ():
            action = options[option]
            meanings[option].add((action.type, tuple(action.choices or ())))
    assert all(len(found) == 1 for found in meanings.values()), meanings


def test_every_verb_but_the_page_has_json():
    assert [name for name, parser in verbs() if "--json" not in parser._option_string_actions] == ["app"]


JSON = {verb: arguments for verb, (arguments, _) in WRITES.items() if verb != "train"}
JSON |= {"classify": READS["classify"], "info": ["COMPRESSED"], "models": ["MODEL"]}
JSON |= {"info installation": [], "reproduce": ["--list"], "train": ["--list"]}
FORMER = {"image", "name", "bits_per_pixel", "latents_per_256x256", "out", "folder", "errors"}
"""Other words for keys of JSON, which must not come back."""


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Keys of all objects in a JSON value, with their values."""
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from entries(item)
    if isinstance(value, dict):
        yield from value.items()


@pytest.mark.parametrize("verb", JSON)
def test_json_is_an_object_with_one_name_for_one_thing(verb, inputs, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    words = filled(verb.removesuffix(" installation"), JSON[verb], tmp_path / "out", inputs)
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    if verb in ("detect", "segment"):  # in COCO format
        assert found.keys() == {"images", "annotations", "categories"}
        return
    found.pop("graphs", None)  # of export: names of tensors
    for key, value in entries(found):
        assert key not in FORMER
        assert key != "photos" or all(isinstance(one["photo"], str) for one in value)
        assert key != "unreadable" or value == []
        assert key not in ("images", "bytes", "width", "height") or isinstance(value, int)
        assert key not in ("model", "config", "written", "file", "photo") or isinstance(value, str)


@pytest.mark.parametrize("verb", WRITES)
def test_existing_output_is_rejected_before_the_computation(verb, inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("finola.training.run.train", no_training)
    arguments, name = WRITES[verb]
    arguments = filled(verb, arguments, tmp_path / "out", inputs | NO_MODEL)  # the computation would fail
    target = tmp_path / "out" / name
    target.parent.mkdir()
    target.write_bytes(b"kept")
    assert str(target) in failed(capsys, arguments)
    assert target.read_bytes() == b"kept"
    assert str(target) not in failed(capsys, [*arguments, "--force"])


@pytest.mark.parametrize("link", [os.link, os.symlink])
@pytest.mark.parametrize("verb", FROM_FILES)
def test_an_input_is_never_overwritten(verb, link, inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("finola.training.run.train", no_training)
    arguments, name = WRITES[verb]
    key = next(key for key in ("INPUT", "COMPRESSED", "STATISTICS") if any(key in word for word in arguments))
    (tmp_path / "out").mkdir()
    link(inputs[key], tmp_path / "out" / name)
    before = Path(inputs[key]).read_bytes()
    arguments = filled(verb, arguments, tmp_path / "out", inputs)
    assert "input" in failed(capsys, [*arguments, "--force"])
    assert Path(inputs[key]).read_bytes() == before


@pytest.mark.parametrize("verb", WRITES)
def test_unwritable_folder_prints_one_line(verb, inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("finola.training.run.train", no_training)
    (tmp_path / "file.txt").write_text("a file")
    arguments = filled(verb, WRITES[verb][0], tmp_path / "file.txt" / "out", inputs | NO_MODEL)
    assert "file.txt" in failed(capsys, arguments)
    assert (tmp_path / "file.txt").read_text() == "a file"


@pytest.mark.parametrize("verb", [verb for verb in WRITES if verb != "train"])
def test_full_disk_prints_one_line_and_leaves_no_file(verb, inputs, tmp_path, monkeypatch, capsys):
    arguments, _ = WRITES[verb]
    (tmp_path / "out").mkdir()
    replace = os.replace

    def full(source, target, **options):
        if Path(target).parent == tmp_path / "out":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target, **options)

    monkeypatch.setattr(os, "replace", full)
    error = failed(capsys, filled(verb, arguments, tmp_path / "out", inputs))
    assert os.strerror(errno.ENOSPC) in error and str(tmp_path / "out") in error
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("nowhere", ["/nowhere", "~nowhere"])  # the second is the home folder of an unknown user
@pytest.mark.parametrize("verb", [*FROM_FILES, *READS])
def test_missing_input_prints_one_line(verb, nowhere, inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FINOLA_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = WRITES[verb][0] if verb in WRITES else READS[verb]
    names = {"INPUT": "photo.png", "COMPRESSED": "photo.finola", "STATISTICS": "q"}
    missing = {key: f"{nowhere}/{name}" for key, name in names.items()}
    (tmp_path / "out").mkdir()
    assert "nowhere" in failed(capsys, filled(verb, arguments, tmp_path / "out", inputs | missing))


@pytest.mark.parametrize("verb", [verb for verb, (arguments, _) in WRITES.items() if "MODEL" in arguments])
def test_a_model_of_an_unknown_user_prints_one_line(verb, inputs, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    words = inputs | {"MODEL": "~nowhere/model"}
    assert "~nowhere/model" in failed(capsys, filled(verb, WRITES[verb][0], tmp_path / "out", words))


@pytest.mark.parametrize(
    "verb", sorted(ON_PHOTOS - {"embed"})
)  # embed says that a single photo is too large for the model
def test_lack_of_memory_names_the_photo(verb, inputs, tmp_path, monkeypatch, capsys):
    def encode(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    for encoder in (WaveEncoder, ElasticEncoder):
        monkeypatch.setattr(encoder, "forward", encode)
    (tmp_path / "out").mkdir()
    assert main(filled(verb, WRITES[verb][0], tmp_path / "out", inputs)) == 2
    assert "photo.png" in (error := capsys.readouterr().err) and "Traceback" not in error


@pytest.mark.parametrize("verb", [verb for verb, (words, _) in WRITES.items() if {"INPUT", "COMPRESSED"} & {*words}])
def test_a_failing_disk_names_the_file(verb, inputs, tmp_path, monkeypatch, capsys):
    read = Path.read_bytes

    def failing(path):
        if path.stem == "photo":
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # as the operating system reports it, without the name
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    (tmp_path / "out").mkdir()
    assert main(filled(verb, WRITES[verb][0], tmp_path / "out", inputs)) == 2
    assert "photo." in (error := capsys.readouterr().err) and "Traceback" not in error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
@pytest.mark.parametrize("verb", ["info", "decompress", "reconstruct"])
def test_a_named_pipe_is_not_read(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.finola")
    assert "not a regular file" in failed(capsys, [verb, "pipe.finola"])


@pytest.mark.parametrize(
    "arguments",
    [["evaluate", WAVES], ["probe", "test_resnet"], ["spectrum", "-o", "x.json"], ["latent", "observe", "-m", WAVES]],
)
def test_missing_data_setting_prints_one_line(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FINOLA_DATA", raising=False)
    assert "FINOLA_DATA" in failed(capsys, arguments)


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.bin"),
        FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "x.bin"),
        MemoryError(),
        RecursionError("maximum recursion depth exceeded"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        ValueError("one\nand another line"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_errors_of_any_class_print_one_line(fault, monkeypatch, capsys):
    monkeypatch.setattr("finola.cli.verbs.models.run", raising(fault))
    error = failed(capsys, ["models"])
    assert not isinstance(fault, OSError) or ("x.bin" in error and str(fault.strerror) in error)


def test_damaged_or_mismatched_weights_print_one_line(tmp_path, capsys):
    finola.create(WAVES).save_pretrained(tmp_path / "model")
    weights, config = tmp_path / "model" / "model.safetensors", tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace("64x1", "32x1"))
    assert weights.name in failed(capsys, ["waves", str(tmp_path / "model")])
    weights.write_bytes(b"damaged")
    failed(capsys, ["waves", str(tmp_path / "model")])


def test_defects_raise_with_traceback(monkeypatch):
    monkeypatch.setattr("finola.cli.verbs.models.run", raising(KeyError("a defect")))
    with pytest.raises(KeyError):
        main(["models"])


def raising(fault: BaseException):
    def run(args: argparse.Namespace) -> None:
        raise fault

    return run


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_unencodable_characters_are_escaped(encoding, inputs, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["waves", WAVES, "--images", inputs["INPUT"], "--quadrant", "right-down"]) == 0
    stream.flush()
    assert b"\\u03bb" in stream.buffer.getvalue()
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"λ": "é😀\udcff"})
    stream.flush()
    assert json.loads(stream.buffer.getvalue()) == {"λ": "é😀\\xff"}

"""Models are loaded strictly, whatever their folder contains."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import finola
from finola.autoencoder import Autoencoder
from finola.errors import CorruptFileError, InputError, MissingFileError
from finola.heads import Classifier
from finola.heads.contrastive import MoCo
from finola.heads.detector import Detector
from finola.heads.mask_rcnn import Segmenter
from finola.hub import WEIGHTS_FOLDER, bundled_models, model_type, read_config
from finola.masked import MaskedFinola
from finola.model_zoo import load, load_encoder
from finola.serialization import Pretrained

State = dict[str, Tensor]
MODELS: dict[str, Callable[[], Any]] = {
    "autoencoder": lambda: Autoencoder("test_resnet/16x1@4:64+patch"),
    "waves": lambda: Autoencoder("waves+conv/16x1@4:16"),
    "fitted to waves": lambda: Autoencoder("test_resnet/16x1@4:64+patch", "waves"),
    "masked": lambda: MaskedFinola("test_resnet/16x1@4:64+patch", "e"),
    "classifier": lambda: Classifier("test_resnet", "lin", ["a", "b"], 32),
    "detector": lambda: Detector("test_resnet", "mf-dec-211", ["a"], size=(64, 96)),
    "segmenter": lambda: Segmenter("test_resnet", classes=["a"], size=(64, 96)),
    "moco": lambda: MoCo("test_resnet", 32, 16),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[type[Pretrained], Path]]:
    folder = tmp_path_factory.mktemp("saved")
    found = {}
    for name, build in MODELS.items():
        torch.manual_seed(1)
        model = build()
        model.save_pretrained(folder / name)
        found[name] = type(model), folder / name
    return found


def without_encoder(state: State) -> State:
    return {key: value for key, value in state.items() if not key.startswith("encoder.")}


def foreign(state: State) -> State:
    return {"other.weight": torch.zeros(3)}


def wrapped(state: State) -> State:
    return {f"module.{key}": value for key, value in state.items()}


def one_more(state: State) -> State:
    return state | {"encoder.extra": torch.zeros(1)}


def misshapen(state: State) -> State:
    key = next(key for key, value in state.items() if value.ndim > 1 and value.is_floating_point())
    return state | {key: torch.cat([state[key], state[key]])}


def integers(state: State) -> State:
    key = next(key for key, value in state.items() if value.ndim > 1 and value.is_floating_point())
    return state | {key: state[key].to(torch.int64)}


@pytest.mark.parametrize("name", MODELS)
def test_mismatched_weights_raise_with_their_keys(saved, tmp_path: Path, name: str) -> None:
    kind, folder = saved[name]
    state = load_file(folder / "model.safetensors")
    again = kind.from_pretrained(folder).state_dict()
    assert again.keys() == state.keys() and all(torch.equal(again[key], state[key]) for key in state)
    named = {
        without_encoder: next(key for key in sorted(state) if key.startswith("encoder.")),
        foreign: "other.weight",
        wrapped: "'module.'",
        one_more: "encoder.extra",
        misshapen: "size mismatch",
        integers: "is integer, not float",
    }
    shutil.copytree(folder, tmp_path / "model")
    for spoil, words in named.items():
        save_file(spoil(state), tmp_path / "model" / "model.safetensors")
        with pytest.raises(CorruptFileError) as caught:
            kind.from_pretrained(tmp_path / "model")
        assert words in str(caught.value), spoil.__name__
        assert str(tmp_path / "model" / "model.safetensors") in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_the_type_is_saved_and_understood_where_it_is_missing(saved, tmp_path: Path, name: str) -> None:
    kind, folder = saved[name]
    config = json.loads((folder / "config.json").read_text())
    assert config["type"] == kind.model_type == model_type(folder)
    shutil.copytree(folder, tmp_path / "older")
    (tmp_path / "older" / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "type"}))
    assert read_config(tmp_path / "older") == config
    own, again = (kind.from_pretrained(path).state_dict() for path in (folder, tmp_path / "older"))
    assert all(torch.equal(own[key], again[key]) for key in own)


def test_a_loaded_model_is_saved_with_the_same_configuration(saved, tmp_path: Path) -> None:
    for name, (kind, folder) in saved.items():
        copy.deepcopy(kind.from_pretrained(folder)).save_pretrained(tmp_path / name)
        assert (tmp_path / name / "config.json").read_text() == (folder / "config.json").read_text()


def test_half_precision_is_loaded_as_float32(saved, tmp_path: Path) -> None:
    kind, folder = saved["autoencoder"]
    shutil.copytree(folder, tmp_path / "model")
    halved = {k: v.half() if v.is_floating_point() else v for k, v in load_file(folder / "model.safetensors").items()}
    save_file(halved, tmp_path / "model" / "model.safetensors")
    again = kind.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(again[key], value.to(again[key])) for key, value in halved.items())
    assert again["transition.A"].dtype == torch.float32


def test_a_recomputed_analysis_is_not_stored(saved, tmp_path: Path) -> None:
    kind, folder = saved["fitted to waves"]
    state = load_file(folder / "model.safetensors")
    assert not [key for key in state if key.startswith("wave_encoder.analysis")]
    shutil.copytree(folder, tmp_path / "model")
    save_file(state | {"wave_encoder.analysis.0": torch.zeros(3, 3)}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CorruptFileError, match=r"wave_encoder\.analysis\.0"):
        kind.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        {"encoder.basis.waves": torch.zeros(2, 5, dtype=torch.int64)},
        {"encoder.basis.waves": torch.full((2, 3), 7)},
        {"encoder.basis.waves": torch.zeros(10**5, 3, dtype=torch.int64)},
        {"encoder.basis.means": torch.tensor([0, 0, 0])},
        {"encoder.basis.period": torch.tensor(0)},
    ],
)
def test_invalid_waves_raise(saved, tmp_path: Path, change: State) -> None:
    kind, folder = saved["waves"]
    shutil.copytree(folder, tmp_path / "model")
    save_file(load_file(folder / "model.safetensors") | change, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CorruptFileError, match="basis"):
        kind.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_weights_are_loaded_unchanged(name: str) -> None:
    model = Classifier.from_pretrained(WEIGHTS_FOLDER / name) if model_type(name) == "classifier" else load(name)
    given, own = load_file(WEIGHTS_FOLDER / name / "model.safetensors"), model.state_dict()
    assert given.keys() == own.keys()
    assert all(torch.equal(value.to(own[key]), own[key]) for key, value in given.items())


CONFIGS = {
    "not JSON": "{name",
    "not UTF-8": b"\xff\xfe\x00",
    "not an object": "[1, 2]",
    "null": "null",
    "deep": "[" * 100_000,
    "deep field": '{"name": "test_resnet/16x1@4:64+patch", "x": ' + "[" * 500 + "]" * 500 + "}",
    "unknown field": '{"name": "test_resnet/16x1@4:64+patch", "colour": 1}',
    "wrong type": '{"name": 7}',
    "wrong type of another field": '{"name": "test_resnet/16x1@4:64+patch", "init": {"a": []}}',
    "no name": "{}",
    "not a model": '{"name": "photo"}',
    "unknown encoder": '{"name": "resnot/16x1@4:64"}',
    "another model": '{"name": "test_resnet/32x1@4:64+patch"}',
    "many channels": '{"name": "test_resnet/1000000000x1@4:64+patch"}',
    "wide matrices": '{"name": "test_resnet/60000x1@4:64+patch"}',
    "many paths": '{"name": "test_resnet/16x1000000000@4:64+patch"}',
    "many digits": '{"name": "test_resnet/' + "9" * 5000 + 'x1@4:64+patch"}',
    "many blocks": '{"name": "test_resnet/16x1@4:64+tran60000"}',
    "large cells": '{"name": "test_resnet/16x1@1:60000+patch"}',
    "large waves": '{"name": "waves/60000x1@4:16"}',
    "waves of a large image": '{"name": "waves/1000x1@16:60000"}',
    "a large timm model": '{"name": "vit_giant_patch14_224/16x1@16:224+patch"}',
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory in /proc")
def test_a_malformed_configuration_raises_one_line_and_allocates_little(saved, tmp_path: Path) -> None:
    """Run in a process with 3 GB of additional address space, which a configuration of 50 bytes must not exceed."""
    _, folder = saved["autoencoder"]
    for number, content in enumerate(CONFIGS.values()):
        shutil.copytree(folder, tmp_path / f"{number}")
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / f"{number}" / "config.json").write_bytes(data)
    code = f"""
import resource, sys, torch, timm
from finola.autoencoder import Autoencoder
from finola.errors import CorruptFileError
torch.set_num_threads(1)
Autoencoder.from_pretrained({str(folder)!r})
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 3 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range({len(CONFIGS)}):
    try:
        Autoencoder.from_pretrained(f"{tmp_path}/{{number}}")
    except CorruptFileError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 1000, error
        assert "config.json" in str(error) or "model.safetensors" in str(error), error
        print(number, error)
    else:
        sys.exit(f"{{number}} was loaded")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 600 * 2**10, f"{{grown}} KiB"
"""
    environment = {"PYTHONPATH": str(Path(finola.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(CONFIGS)


def test_invalid_types_raise_for_the_other_models(saved, tmp_path: Path) -> None:
    changes: list[tuple[str, dict[str, Any]]] = [
        ("classifier", {"classes": 10**9}),
        ("classifier", {"classes": {"a": 1}}),
        ("classifier", {"frozen": "yes"}),
        ("detector", {"size": [64]}),
        ("segmenter", {"size": ["a", "b"]}),
        ("masked", {"variant": "c"}),
    ]
    for number, (name, change) in enumerate(changes):
        kind, folder = saved[name]
        shutil.copytree(folder, tmp_path / f"{number}")
        file = tmp_path / f"{number}" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        with pytest.raises(CorruptFileError, match=r"config\.json"):
            kind.from_pretrained(tmp_path / f"{number}")


def test_a_damaged_weights_file_raises_one_line(saved, tmp_path: Path) -> None:
    kind, folder = saved["waves"]
    whole = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    spoiled = [b"", b"x", whole[:7], whole[: 8 + length // 2], whole[:-1], whole + b"x", b"\xff" * 8 + whole[8:]]
    generator = torch.Generator().manual_seed(0)
    for position in torch.randint(8 + length, (60,), generator=generator).tolist():
        data = bytearray(whole)
        data[position] ^= 0x55
        spoiled.append(bytes(data))
    shutil.copytree(folder, tmp_path / "model")
    for data in spoiled:
        (tmp_path / "model" / "model.safetensors").write_bytes(data)
        with pytest.raises(CorruptFileError, match=r"model\.safetensors"):
            kind.from_pretrained(tmp_path / "model")


def test_a_pickle_file_is_never_read(saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, folder = saved["autoencoder"]
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(MissingFileError, match="safetensors"):
        kind.from_pretrained(tmp_path / "model")
    import huggingface_hub

    def only_pickle(repo: str, file: str, **_: Any) -> str:
        if file == "model.safetensors":
            raise huggingface_hub.errors.LocalEntryNotFoundError("no such file")
        return str(tmp_path / "model" / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", only_pickle)
    with pytest.raises(MissingFileError, match="no such file"):
        kind.from_pretrained("someone/model")


def test_settings_replace_fields_of_the_configuration(saved) -> None:
    kind, folder = saved["classifier"]
    assert kind.from_pretrained(folder, frozen=False).frozen is False
    with pytest.raises(InputError, match="strict"):
        kind.from_pretrained(folder, strict=False)


def test_an_encoder_is_loaded_strictly(saved, tmp_path: Path) -> None:
    _, folder = saved["masked"]
    state = load_file(folder / "model.safetensors")
    own = load_encoder(folder, (64, 64)).state_dict()
    assert all(torch.equal(own[key], state[f"encoder.{key}"]) for key in own)
    shutil.copytree(folder, tmp_path / "model")
    dropped = next(key for key in state if key.startswith("encoder.") and value_is_matrix(state[key]))
    save_file({k: v for k, v in state.items() if k != dropped}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CorruptFileError, match=dropped.removeprefix("encoder.").replace(".", r"\.")):
        load_encoder(tmp_path / "model", (64, 64))


def test_an_encoder_far_larger_than_its_weights_is_not_built(saved, tmp_path: Path) -> None:
    shutil.copytree(saved["classifier"][1], tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder": "mf-w5760"}))
    with pytest.raises(CorruptFileError, match=r"config\.json.*much larger"):
        load_encoder(tmp_path / "model")


def value_is_matrix(value: Tensor) -> bool:
    return value.ndim > 1


@pytest.mark.parametrize("content", ["[]", "{", "{}", '{"name": []}', '{"classes": ["a"], "encoder": 3}'])
def test_the_type_of_a_model_with_a_malformed_configuration_raises(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    for read in (read_config, model_type, load):
        with pytest.raises(CorruptFileError, match=r"config\.json"):
            read(tmp_path)

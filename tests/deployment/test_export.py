"""Exported graphs: equal to PyTorch for any batch and photo size, smaller in half precision, checked when opened."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import finola
from finola.deployment import ExportedModel, export, exporter, load_exported, verify
from finola.deployment.parts import describe
from finola.errors import CorruptFileError, InputError, MissingFileError, OutputExistsError, UnknownNameError
from finola.heads import Classifier
from finola.heads.detector import Detector

FIXED, REFINED = "waves/16x1@4:16", "waves+conv/16x1@4:16"
ELASTIC = "waves+nets/32x1@4:16+elastic2"
LEARNED = "residual-w32/16x2@4:16+scatter+slim16"


@cache
def created(name: str) -> Any:
    """A model whose zero-initialised layers are random, so that every layer has an effect."""
    torch.manual_seed(0)
    model = finola.create(name).eval()
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model


FOLDERS: dict[str, Path] = {}


def exported(name: str, factory: pytest.TempPathFactory) -> Path:
    """Folder of an exported model, written once."""
    if name not in FOLDERS:
        FOLDERS[name] = factory.mktemp("exported")
        export(created(name), FOLDERS[name])
    return FOLDERS[name]


def reconstructed(model: ExportedModel, photo: torch.Tensor) -> torch.Tensor:
    return finola.decode(model, finola.encode(model, photo))


@pytest.fixture(scope="module", params=[REFINED, ELASTIC, LEARNED])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ExportedModel, Path]:
    folder = exported(request.param, tmp_path_factory)
    return created(request.param), load_exported(folder, threads=1), folder


@torch.no_grad()
@pytest.mark.parametrize("size", [(16, 16), (9, 40), (200, 170)])
def test_photos_of_any_size_are_reconstructed_as_by_the_model(pair: Any, size: tuple[int, int]) -> None:
    """The last size has more tiles than one block."""
    model, exported, _ = pair
    image = torch.rand(3, *size)
    options = {"budget": 3000} if model.config.elastic else {}
    expected = finola.decode(model, finola.encode(model, image, **options))
    latents = finola.encode(exported, image, **options)
    assert torch.allclose(finola.decode(exported, latents), expected, atol=1e-4)
    assert torch.allclose(finola.decode(model, latents), expected, atol=1e-4)  # the same latents


def test_an_effort_needs_the_model_itself(pair: Any) -> None:
    with pytest.raises(InputError, match="effort"):
        finola.encode(pair[1], torch.rand(3, 16, 16), effort=1)


@torch.no_grad()
def test_batches(pair: Any) -> None:
    model, exported, _ = pair
    images = torch.rand(3, 3, 16, 32)
    outputs = exported("encoder", images=images)
    assert all(output.shape[:3] == (3, 1, 2) for output in outputs)
    if model.config.elastic:
        assert exported("decoder", values=outputs[0][..., 0, :], bases=torch.zeros(3, 1, 2).long())[0].shape == (
            *images.shape,
        )
    else:
        assert torch.allclose(exported("model", images=images)[0], model(images), atol=1e-4)
        assert torch.allclose(exported("decoder", q=outputs[0])[0], model(images), atol=1e-4)


def test_verify_reports_every_part(pair: Any) -> None:
    model, exported, folder = pair
    rows = verify(model, folder, repeats=1)
    assert [row["part"] for row in rows] == list(exported.graphs)
    assert all(row["difference"] < 1e-4 and row["bytes"] == (folder / row["file"]).stat().st_size for row in rows)


def test_files_contain_no_path_of_the_machine(pair: Any) -> None:
    folder = pair[2]
    for file in folder.iterdir():
        content = file.read_bytes()
        assert str(Path(finola.__file__).parent).encode() not in content and b"site-packages" not in content


@torch.no_grad()
def test_a_photo_outside_the_sphere_is_fitted_into_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = created(REFINED)
    photo = (torch.rand(3, 16, 16) > 0.5).float() * 6 - 2.5  # values that no photo has
    assert model.encoder.analyse(photo[None]).norm() > model.config.channels**0.5
    found = reconstructed(load_exported(exported(REFINED, tmp_path_factory)), photo)
    assert torch.allclose(found, model(photo[None])[0], atol=1e-3)


def test_half_precision_halves_the_file(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    model, image = created(LEARNED), torch.rand(3, 16, 16)
    export(model, tmp_path, half=True)
    full, half = (folder / "encoder.onnx" for folder in (exported(LEARNED, tmp_path_factory), tmp_path))
    assert half.stat().st_size < 0.6 * full.stat().st_size
    with torch.no_grad():
        expected = model(image[None])[0]
    assert 0 < (reconstructed(load_exported(tmp_path), image) - expected).abs().max() < 0.01


def test_torch_format(tmp_path: Path) -> None:
    model = created(FIXED)
    manifest = export(model, tmp_path, "torch")
    assert manifest["graphs"]["decoder"]["file"] == "decoder.pt2"
    assert all(row["difference"] < 1e-4 for row in verify(model, tmp_path, repeats=1, trusted=True))


def test_files_of_torch_export_are_not_opened_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpickle(*_: Any) -> None:
        raise AssertionError("a file was opened")

    model = created(FIXED)
    export(model, tmp_path, "torch")
    monkeypatch.setattr(torch.export, "load", unpickle)
    with pytest.raises(InputError, match="trusted=True"):
        verify(model, tmp_path)
    with pytest.raises(InputError, match=r"torch\.export\.load"):
        load_exported(tmp_path)


@torch.no_grad()
def test_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Classifier("test_resnet", "tran-1", ["a", "b", "c"], 32).eval()
    manifest = export(model, tmp_path)
    exported, images = load_exported(tmp_path), torch.rand(3, 3, 32, 32)
    assert manifest["classes"] == ["a", "b", "c"] and list(exported.graphs) == ["encoder", "head", "model"]
    (logits,), (features,) = exported("model", images=images), exported("encoder", images=images)
    assert torch.allclose(logits, model(images), atol=1e-4)
    assert torch.allclose(exported("head", feature_map=features)[0], logits, atol=1e-4)
    with pytest.raises(InputError, match="autoencoder"):
        finola.encode(exported, images[0])


@torch.no_grad()
def test_detector(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Detector("test_resnet", "mf-dec-211", ["a", "b"], size=(64, 96)).eval()
    export(model, tmp_path)
    exported = load_exported(tmp_path)
    images, sizes = torch.rand(1, 3, 96, 64), torch.tensor([[90, 64]])
    boxes, scores, _ = exported("model", images=images, sizes=sizes.float())
    [expected] = model.detect(images, sizes)
    order = scores[0].argsort(descending=True)
    assert torch.allclose(scores[0, order], expected.scores, atol=1e-4)
    assert torch.allclose(boxes[0, order].sum(0), expected.boxes.sum(0), atol=1e-1)  # in pixels, in any order


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"model\.onnx"):
        export(created(FIXED), tmp_path)
    assert (tmp_path / "model.onnx").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_force_removes_the_graphs_of_the_earlier_export_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(Classifier("test_resnet", "lin", ["a", "b"], 32).eval(), folder, "torch")
    assert (folder / "head.pt2").is_file()
    manifest = json.loads((folder / "export.json").read_text())
    manifest["graphs"] |= {name: {"file": name} for name in ("notes.txt", "../beside.pt2")}
    (folder / "export.json").write_text(json.dumps(manifest))
    for path in (folder / "notes.txt", folder / "decoder.onnx", tmp_path / "beside.pt2"):
        path.write_text("mine")  # the first and the last are listed, but export writes no such files
    export(created(FIXED), folder, "torch", force=True)
    written = {"encoder.pt2", "decoder.pt2", "model.pt2", "export.json"}
    assert {path.name for path in folder.iterdir()} == written | {"notes.txt", "decoder.onnx"}
    assert (tmp_path / "beside.pt2").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"graphs": 3}', '{"graphs": {"head": {"file": [1]}}}'])
def test_force_removes_no_file_that_no_manifest_lists(content: str, tmp_path: Path) -> None:
    (tmp_path / "head.pt2").write_text("mine")
    (tmp_path / "export.json").write_text(content)
    export(created(FIXED), tmp_path, "torch", force=True)
    assert (tmp_path / "head.pt2").read_text() == "mine"


def test_an_interrupted_export_leaves_the_earlier_one_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(created(FIXED), tmp_path, "torch")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "serialise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(created(FIXED), tmp_path, "torch", force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_unknown_format_and_models_that_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="tflite"):
        export(created(FIXED), tmp_path, "tflite")
    with pytest.raises(InputError, match="Linear"):
        describe(nn.Linear(2, 3))


def test_elastic_encoder_gives_what_the_choice_needs() -> None:
    model = created(ELASTIC)
    part = describe(model).parts[0]
    components, errors = part.module(**part.inputs)
    codebook = model.encoder.codebook
    assert components.shape[3:] == (2, codebook.bases.shape[1])
    assert errors.shape[3:] == (2, len(codebook.lengths))
    assert bool((errors.diff(dim=-1) <= 1e-4).all())  # longer is never worse


class OldMessage:
    """A protobuf message whose field descriptors have only what those of protobuf 5 have too."""

    def __init__(self, message: Any) -> None:
        self.message = message

    def ListFields(self) -> list[tuple[Any, Any]]:
        found = []
        for field, value in self.message.ListFields():
            old = SimpleNamespace(name=field.name, type=field.type, TYPE_MESSAGE=field.TYPE_MESSAGE)
            if field.type == field.TYPE_MESSAGE:
                value = OldMessage(value) if hasattr(value, "ListFields") else [OldMessage(one) for one in value]
            found.append((old, value))
        return found


def test_graphs_open_with_protobuf_5(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    load = onnx.load_model_from_string
    monkeypatch.setattr(onnx, "load_model_from_string", lambda data: OldMessage(load(data)))
    assert load_exported(exported(REFINED, tmp_path_factory)).graphs


class TestManifest:
    """Damaged and hostile folders end in CorruptFileError or MissingFileError."""

    @pytest.fixture
    def folder(self, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return Path(shutil.copytree(exported(REFINED, tmp_path_factory), tmp_path / "copy"))

    def change(self, folder: Path, **changes: Any) -> None:
        manifest = json.loads((folder / "export.json").read_text())
        (folder / "export.json").write_text(json.dumps(manifest | changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {"graphs": {"encoder": {"file": "../encoder.onnx", "inputs": {}}}},
            {"graphs": {"../encoder": {"file": "../encoder.onnx", "inputs": {}}}},
            {"graphs": []},
            {"kind": "other"},
            {"tile": [0, 16]},
            {"tile": [16]},
            {"tile": "16"},
            {"context": {"encoder": 0}},
            {"context": {"encoder": -1, "decoder": 1}},
            {"format": ["onnx"]},
        ],
    )
    def test_changed_values(self, folder: Path, changes: dict[str, Any]) -> None:
        self.change(folder, **changes)
        with pytest.raises(CorruptFileError, match=r"export\.json"):
            load_exported(folder)

    def test_damaged_and_missing_files(self, folder: Path) -> None:
        (folder / "decoder.onnx").write_bytes((folder / "decoder.onnx").read_bytes()[:1000])
        with pytest.raises(CorruptFileError, match=r"decoder\.onnx"):
            load_exported(folder)
        (folder / "decoder.onnx").unlink()
        with pytest.raises(MissingFileError, match=r"decoder\.onnx"):
            load_exported(folder)
        (folder / "export.json").write_text("{")
        with pytest.raises(CorruptFileError, match=r"export\.json"):
            load_exported(folder)
        with pytest.raises(MissingFileError, match=r"export\.json"):
            load_exported(folder / "other")

    @pytest.mark.parametrize("sparse", [False, True])
    def test_a_graph_that_refers_to_other_files_is_rejected(self, folder: Path, sparse: bool) -> None:
        model = onnx.load(folder / "decoder.onnx")
        tensor = model.graph.sparse_initializer.add().values if sparse else model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")
        (folder / "decoder.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(CorruptFileError, match="other files"):
            load_exported(folder)

"""Run exported graphs with onnxruntime: `finola.encode` and `finola.decode` take exported models as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from finola.deployment.exporter import MANIFEST, SUFFIXES
from finola.errors import CorruptFileError, InputError, MissingFileError, first_line, require, shorten
from finola.latents import Space, budget_of
from finola.locations import user_path
from finola.tiling import Size
from finola.wave.codebook import share_out, side_bits

MANIFEST_BYTES = 16 * 2**20
KINDS = ("fixed", "elastic", "classifier", "detector", "encoder")


class Graph(Protocol):
    """A loaded graph: inputs by name → outputs."""

    def __call__(self, **inputs: Tensor) -> list[Tensor]: ...


class ExportedModel:
    """A model that `finola.deployment.export` wrote; `load_exported` opens it.

    `model("encoder", images=…)` runs one graph. An autoencoder encodes and decodes photos of any size with
    `finola.encode` and `finola.decode`.
    """

    def __init__(self, manifest: dict[str, Any], graphs: dict[str, Graph]) -> None:
        self.manifest, self.graphs = manifest, graphs

    def __call__(self, part: str, **inputs: Tensor) -> list[Tensor]:
        """Run a part on inputs by name and return its outputs."""
        if part not in self.graphs:
            raise InputError(f"{self.manifest['model']} has no part {part!r}; its parts are {', '.join(self.graphs)}.")
        return self.graphs[part](**inputs)

    @property
    def space(self) -> GraphSpace:
        """Space of the latents of an autoencoder."""
        if self.manifest["kind"] not in ("fixed", "elastic"):
            raise InputError(
                f"{self.manifest['model']} is a model of kind {self.manifest['kind']}, not an autoencoder."
            )
        return GraphSpace(self)


class GraphSpace(Space):
    """Space of an exported autoencoder. The inputs of its decoder take the place of maps, one position per tile."""

    device = torch.device("cpu")
    cells = (1, 1)

    def __init__(self, model: ExportedModel) -> None:
        self.run, manifest = model, model.manifest
        self.name, self.is_elastic = manifest["model"], manifest["kind"] == "elastic"
        self.tile = tuple(manifest["tile"])
        self.context = int(manifest["context"]["encoder"])
        self.margin = (int(manifest["context"]["decoder"]),) * 2
        self.lengths = torch.tensor(manifest.get("lengths", []))
        inputs = manifest["graphs"]["decoder"]["inputs"]
        self.inputs, self.shape = list(inputs), inputs[next(iter(inputs))]["shape"][3:]
        self.side_bits = side_bits(manifest["bases"], len(self.lengths)) if self.is_elastic else 0.0

    def analyse(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.run("encoder", images=images.contiguous()))

    def check(self, budget: int | None, per_tile: int | None) -> None:
        if not self.is_elastic:
            super().check(budget, per_tile)
        if per_tile is not None:
            raise InputError(f"The export of {self.name} has a budget, but no number per tile ({per_tile}).")

    def choose(
        self, parts: tuple[Tensor, ...], size: Size, budget: int | None, per_tile: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not self.is_elastic:
            if list(parts[0].shape[1:]) != self.shape:
                raise CorruptFileError(f"Corrupt file: encoder and decoder of {self.name} do not fit each other.")
            return super().choose(parts, size, budget, per_tile)
        components, errors = parts
        basis, length = share_out(errors, self.lengths, budget_of(size, self.tile, budget, self.side_bits))
        values = components[torch.arange(len(basis)), basis]
        return torch.where(torch.arange(values.shape[1]) < length[:, None], values, 0.0), length, basis

    def to_p(self, values: Tensor, basis: Tensor) -> Tensor:
        return torch.cat([values, basis[:, None]], 1)  # an index is exact as a float

    def maps(self, p: Tensor) -> Tensor:
        return p[..., None, None]

    def paint(self, maps: Tensor) -> Tensor:
        values, basis = maps.movedim(1, 3).split([maps.shape[1] - 1, 1], dim=3)
        parts = [values.unflatten(3, self.shape).contiguous(), basis.squeeze(3).long()]
        image: Tensor = self.run("decoder", **dict(zip(self.inputs, parts, strict=False)))[0]
        return image

    def render(self, p: Tensor, grid: Size) -> Tensor:
        raise InputError(f"The export of {self.name} has no gradients: an effort needs the model itself.")


def load_exported(folder: str | Path, threads: int | None = None) -> ExportedModel:
    """Open a folder of ONNX graphs with onnxruntime, on `threads` threads (default: all).

    Files of `torch.export` are not opened here, because PyTorch unpickles parts of them: load those that you trust with
    `torch.export.load`.
    """
    require("onnx", "onnxruntime")
    folder = user_path(folder)
    manifest = read_manifest(folder)
    if manifest["format"] != "onnx":
        raise InputError(f"{folder} has files of torch.export; load those that you trust with torch.export.load.")
    graphs: dict[str, Graph] = {}
    for name, entry in manifest["graphs"].items():
        path = folder / entry["file"]
        if not path.is_file():
            raise MissingFileError(f"{path} does not exist: {MANIFEST} lists it. Export the model again.")
        graphs[name] = open_graph(path, threads)
    return ExportedModel(manifest, graphs)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check export.json."""
    path = folder / MANIFEST
    if not path.is_file():
        raise MissingFileError(f"{folder} has no {MANIFEST}. Name a folder written by finola export.")
    if path.stat().st_size > MANIFEST_BYTES:
        raise CorruptFileError(f"Corrupt file: {path} has more than {MANIFEST_BYTES:,} bytes.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        _check(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(f"Corrupt file: {path}: {first_line(error)}.") from error
    return dict(manifest)


def _check(manifest: Any) -> None:
    if manifest["format"] not in SUFFIXES or manifest["kind"] not in KINDS or not isinstance(manifest["model"], str):
        raise ValueError(f"format {shorten(manifest['format'])} or kind {shorten(manifest['kind'])} is not known")
    for name, entry in manifest["graphs"].items():
        if entry["file"] != f"{name}{SUFFIXES[manifest['format']]}" or Path(entry["file"]).name != entry["file"]:
            raise ValueError(f"the file of part {shorten(name)} is {shorten(entry['file'])}")
        if not all(isinstance(key, str) for key in entry["inputs"]):
            raise ValueError(f"the inputs of part {shorten(name)} have no names")
    if manifest["kind"] in ("fixed", "elastic"):
        if not {"encoder", "decoder"} <= set(manifest["graphs"]):
            raise ValueError("encoder or decoder is missing")
        numbers = [*manifest["tile"], *(manifest["context"][part] for part in ("encoder", "decoder"))]
        numbers += next(iter(manifest["graphs"]["decoder"]["inputs"].values()))["shape"][3:]
        if manifest["kind"] == "elastic":
            numbers += [manifest["bases"], *manifest["lengths"]]
        if len(manifest["tile"]) != 2 or not all(type(number) is int and 0 <= number < 2**16 for number in numbers):
            raise ValueError("tile, context, lengths, bases or shapes are not numbers in range")
        if min(manifest["tile"]) < 1 or (manifest["kind"] == "elastic" and not manifest.get("lengths")):
            raise ValueError("tile or lengths are empty")


def open_graph(path: Path, threads: int | None = None) -> Graph:
    """Open an ONNX file as a function."""
    import onnx
    import onnxruntime

    data = path.read_bytes()
    try:
        _check_self_contained(onnx.load_model_from_string(data))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        if threads is not None:
            options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )  # without the fallback, which prints to standard output and tries the same provider again
    except Exception as error:  # onnxruntime and protobuf have no common base class of their errors
        raise CorruptFileError(f"Corrupt file: {path} is not an ONNX graph: {first_line(error)}.") from error

    def run(**inputs: Tensor) -> list[Tensor]:
        try:
            found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        except Exception as error:  # the classes of onnxruntime have no common base
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
            raise InputError(f"{path.name} cannot run on {shapes}: {first_line(error)}.") from error
        return [torch.from_numpy(array) for array in found]

    return run


def _check_self_contained(message: Any) -> None:
    """Raise ValueError if a tensor anywhere in an ONNX model is stored in another file."""
    pending = [message]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.name == "external_data" or (field.name == "data_location" and value):
                raise ValueError("it refers to other files")
            if field.type == field.TYPE_MESSAGE:
                # By behaviour: protobuf 5 has no `is_repeated`, and protobuf 7 no `label`.
                pending += [value] if hasattr(value, "ListFields") else list(value)

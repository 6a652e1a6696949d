"""Run exported graphs with onnxruntime; photos of any size are divided into tiles as in `finola.tiling`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from finola.config import DEFAULT_LATENTS
from finola.deployment.exporter import MANIFEST, SUFFIXES
from finola.errors import CorruptFileError, InputError, MissingFileError, first_line, require, shorten
from finola.locations import user_path
from finola.tiling import BLOCK, Block, Size, blocks, grid_of, pad_to_multiple
from finola.wave.codebook import REFERENCE_PIXELS, share_out

MANIFEST_BYTES = 16 * 2**20
KINDS = ("fixed", "elastic", "classifier", "detector", "encoder")


class Graph(Protocol):
    """A loaded graph: inputs by name → outputs."""

    def __call__(self, **inputs: Tensor) -> list[Tensor]: ...


class ExportedModel:
    """A model that `finola.deployment.export` wrote; `load_exported` opens it.

    `model("encoder", images=…)` runs one graph. `reconstruct` encodes and decodes a photo of any size.
    """

    def __init__(self, manifest: dict[str, Any], graphs: dict[str, Graph]) -> None:
        self.manifest, self.graphs = manifest, graphs

    def __call__(self, part: str, **inputs: Tensor) -> list[Tensor]:
        """Run a part on inputs by name and return its outputs."""
        if part not in self.graphs:
            raise InputError(f"{self.manifest['model']} has no part {part!r}; its parts are {', '.join(self.graphs)}.")
        return self.graphs[part](**inputs)

    @property
    def tile(self) -> Size:
        """Size of the tiles of an autoencoder."""
        if self.manifest["kind"] not in ("fixed", "elastic"):
            raise InputError(
                f"{self.manifest['model']} is a model of kind {self.manifest['kind']}, not an autoencoder."
            )
        height, width = self.manifest["tile"]
        return height, width

    def reconstruct(self, image: Tensor, *, latents: int | None = None) -> Tensor:
        """Encode and decode an image (3, H, W) in [0, 1] of any size.

        `latents` is the number of latents per 256×256 pixels of an elastic model (default: 4096).
        """
        encoded = self.encode(image)
        if self.manifest["kind"] == "elastic":
            encoded = self._choose(encoded, image, DEFAULT_LATENTS if latents is None else latents)
        elif latents is not None:
            raise InputError(f"latents applies to elastic models; {self.manifest['model']} has a fixed number.")
        return self.decode(encoded, (image.shape[1], image.shape[2]))

    def encode(self, image: Tensor) -> list[Tensor]:
        """Outputs of the encoder for all tiles of an image, each (rows, columns, …)."""
        tile = self.tile
        padded = pad_to_multiple(image[None], tile)
        grid = grid_of((padded.shape[2], padded.shape[3]), tile)
        found: list[Tensor] = []
        for block in self._blocks("encoder", grid):
            rows, columns = _pixels(block, tile)
            parts = self("encoder", images=padded[:, :, rows, columns].contiguous())
            found = found or [part.new_empty(*grid, *part.shape[3:]) for part in parts]
            top, left = block.rows.start - block.near_rows.start, block.columns.start - block.near_columns.start
            for whole, part in zip(found, parts, strict=True):
                own = part[0, top : top + len(block.rows), left : left + len(block.columns)]
                whole[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] = own
        return found

    def _choose(self, encoded: list[Tensor], image: Tensor, latents: int) -> list[Tensor]:
        """Values and bases of all tiles, with lengths by need within the number of latents."""
        components, errors = encoded
        rows, columns, _, size = components.shape
        lengths = torch.tensor(self.manifest["lengths"])
        budget = latents * image.shape[1] * image.shape[2] / REFERENCE_PIXELS
        bases, length = share_out(errors.flatten(0, 1), lengths, budget)
        values = components.flatten(0, 1)[torch.arange(len(bases)), bases]
        values = torch.where(torch.arange(size) < length[:, None], values, 0.0)
        return [values.reshape(rows, columns, size), bases.reshape(rows, columns)]

    def decode(self, encoded: list[Tensor], size: Size) -> Tensor:
        """Decode the inputs of the decoder for all tiles, each (rows, columns, …), to an image (3, *size)."""
        tile = self.tile
        names = list(self.manifest["graphs"]["decoder"]["inputs"])
        image = torch.empty(3, *size)
        for block in self._blocks("decoder", grid_of(size, tile)):
            window = tuple(slice(near.start, near.stop) for near in (block.near_rows, block.near_columns))
            inputs = {name: part[window][None].contiguous() for name, part in zip(names, encoded, strict=True)}
            (decoded,) = self("decoder", **inputs)
            rows, columns = block.pixels(size, tile)
            y, x = block.near_rows.start * tile[0], block.near_columns.start * tile[1]
            image[:, rows, columns] = decoded[
                0, :, rows.start - y : rows.stop - y, columns.start - x : columns.stop - x
            ]
        return image

    def _blocks(self, part: str, grid: Size) -> Iterator[Block]:
        return blocks(grid, BLOCK, int(self.manifest["context"][part]))


def _pixels(block: Block, tile: Size) -> tuple[slice, slice]:
    """Rows and columns of pixels of a block with its neighbours."""
    rows, columns = block.near_rows, block.near_columns
    return (
        slice(rows.start * tile[0], rows.stop * tile[0]),
        slice(columns.start * tile[1], columns.stop * tile[1]),
    )


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
        numbers += manifest.get("lengths", [])
        if len(manifest["tile"]) != 2 or not all(type(number) is int and 0 <= number < 2**16 for number in numbers):
            raise ValueError("tile, context or lengths are not numbers in range")
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

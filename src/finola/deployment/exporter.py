"""Export of a model to a folder: one graph per part, and a manifest that describes them."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import finola
from finola.deployment.parts import Description, Part, describe
from finola.errors import InputError, UnknownNameError, require
from finola.files import digest_of_weights, output_paths, write_bytes, write_json
from finola.hub import read_json
from finola.layers import fold_norms
from finola.serialization import FULL_PRECISION

MANIFEST = "export.json"
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
PARTS = ("encoder", "decoder", "head", "model")
"""Names of all parts that a model may have."""
SMALLEST = 1024  # elements of tensors that are stored in half precision


def export(
    model: nn.Module,
    folder: str | Path,
    format: str = "onnx",
    *,
    half: bool = False,
    force: bool = False,
    name: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Export the parts of a model to `folder` and return the manifest, which is also written there as export.json.

    `format` is "onnx", or "torch" for files of `torch.export`. With `half`, weights are stored in half precision and
    converted when the graph runs; computation is in single precision. Existing files are overwritten only with
    `force`, which also removes the graphs of an earlier export that the new one does not have. `name` is the name of
    the model in the manifest. `progress(done, total)` counts the parts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = export(finola.load("waves/16x1@4:16"), folder, "torch")
    >>> list(manifest["graphs"])
    ['encoder', 'decoder', 'model']
    """
    if format not in SUFFIXES:
        raise UnknownNameError(f"Unknown format {format!r}; use {' or '.join(SUFFIXES)}.")
    if format == "onnx":
        require("onnx", "onnxscript")
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise InputError(f"The model is on {device}; move it to the CPU before export.")
    described = describe(fold_norms(model))
    targets = output_files(folder, format, force)
    contents: dict[str, bytes] = {}
    for number, part in enumerate(described.parts):  # slow: an export interrupted here leaves the earlier one intact
        progress(number, len(described.parts))
        contents[part.name] = serialise(part, format, half)
    for stale in _graph_files(targets[MANIFEST]) - {targets[part] for part in contents}:
        stale.unlink()
    targets[MANIFEST].unlink(missing_ok=True)  # it describes the files together: half-written exports have none
    graphs: dict[str, Any] = {}
    for part in described.parts:
        data = contents[part.name]
        write_bytes(targets[part.name], data)
        graphs[part.name] = {"file": targets[part.name].name, "bytes": len(data), **_shapes(part)}
    manifest = _manifest(model, described, format, half, graphs, name)
    write_json(targets[MANIFEST], manifest)
    return manifest


def output_files(folder: str | Path, format: str, force: bool = False) -> dict[str, Path]:
    """Check that the files of any model may be written to a folder, and return their paths by part."""
    names = {part: f"{part}{SUFFIXES[format]}" for part in PARTS} | {MANIFEST: MANIFEST}
    paths = output_paths([Path(folder, name) for name in names.values()], force=force, create=True)
    return dict(zip(names, paths, strict=True))


def _graph_files(manifest: Path) -> set[Path]:
    """Existing files of graphs that a manifest lists; names that `export` does not write are ignored."""
    try:
        graphs = read_json(manifest)["graphs"].values()
        listed = {graph["file"] for graph in graphs}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
    known = {f"{part}{suffix}" for part in PARTS for suffix in SUFFIXES.values()}
    return {path for name in known & listed if (path := manifest.parent / name).is_file()}


def serialise(part: Part, format: str, half: bool = False) -> bytes:
    """The graph of a part as the contents of a file."""
    module = HalfWeights(part.module) if half else part.module
    with _quiet(), torch.no_grad():
        program = torch.export.export(
            module.eval(),
            tuple(part.inputs.values()),
            dynamic_shapes=tuple(part.dynamic_shapes().values()),
            strict=False,
        )
        if format == "torch":
            target = io.BytesIO()
            torch.export.save(program, target)
            return target.getvalue()
        graph = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(part.inputs),
            output_names=list(part.outputs),
            verbose=False,
        )
    assert graph is not None
    proto = graph.model_proto
    for item in (proto, proto.graph, *proto.graph.node):
        del item.metadata_props[:]  # source files and lines of this machine
    data: bytes = proto.SerializeToString()
    return data


class HalfWeights(nn.Module):
    """A module whose large weights are stored in half precision and converted in every call."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        # In a list, so that its weights are not registered a second time; a copy, because tracing may leave traced
        # tensors in attributes that are not registered.
        self._module = [copy.deepcopy(module)]
        self.names: dict[str, str] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            small = not tensor.is_floating_point() or tensor.numel() < SMALLEST or FULL_PRECISION in name
            self.names[name] = name.replace(".", "__")
            self.register_buffer(self.names[name], tensor.detach() if small else tensor.detach().half())

    def forward(self, first: Tensor, second: Tensor | None = None) -> Any:
        inputs = (first,) if second is None else (first, second)
        weights = {name: getattr(self, own) for name, own in self.names.items()}
        full = {name: tensor.float() if tensor.dtype == torch.float16 else tensor for name, tensor in weights.items()}
        return torch.func.functional_call(self._module[0], full, inputs)


def _shapes(part: Part) -> dict[str, Any]:
    """Shapes of the inputs, as numbers and names of variable axes, and names of the outputs."""

    def shape(name: str, tensor: Tensor) -> dict[str, Any]:
        sides: list[Any] = list(tensor.shape)
        for axis, (label, multiple) in part.axes.get(name, {}).items():
            sides[axis] = label if multiple == 1 else f"{multiple}*{label}"
        return {"shape": sides, "dtype": str(tensor.dtype).removeprefix("torch.")}

    return {
        "inputs": {name: shape(name, tensor) for name, tensor in part.inputs.items()},
        "outputs": list(part.outputs),
    }


def _manifest(
    model: nn.Module, described: Description, format: str, half: bool, graphs: dict[str, Any], name: str | None
) -> dict[str, Any]:
    return {
        "finola": finola.__version__,
        "model": name or getattr(model, "label", type(model).__name__),
        "weights": digest_of_weights(model),
        "format": format,
        "half": half,
        **described.facts,
        "graphs": graphs,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings and messages of the exporters, which concern their own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

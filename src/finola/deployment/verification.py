"""Comparison of exported files with the model: sizes, differences and times."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finola.deployment.exporter import SUFFIXES
from finola.deployment.parts import Part, describe
from finola.deployment.runtime import open_graph, read_manifest
from finola.errors import InputError, require
from finola.locations import user_path


def verify(model: nn.Module, folder: str | Path, *, repeats: int = 3, trusted: bool = False) -> list[dict[str, Any]]:
    """Compare exported files with the model: one row per part with bytes, largest difference and times in seconds.

    Each part runs on its example inputs, photos of several tiles in a batch, and is timed on one photo of one tile.
    PyTorch unpickles parts of files of `torch.export`, which can run any code. They are opened only with `trusted`: set
    it only for folders that you exported yourself.
    """
    folder = user_path(folder)
    manifest = read_manifest(folder)
    if manifest["format"] == "onnx":
        require("onnx", "onnxruntime")
    elif not trusted:
        raise InputError(
            f"{folder} has files of torch.export, which PyTorch unpickles; pass trusted=True if you wrote them."
        )
    parts = describe(copy.deepcopy(model).eval()).parts
    if missing := [part.name for part in parts if part.name not in manifest["graphs"]]:
        raise InputError(f"{folder} is an export of another model: it has no part {missing[0]!r}.")
    return [_verify(part, folder / manifest["graphs"][part.name]["file"], repeats) for part in parts]


@torch.no_grad()
def _verify(part: Part, path: Path, repeats: int) -> dict[str, Any]:
    if path.suffix == SUFFIXES["onnx"]:
        run = open_graph(path, torch.get_num_threads())
    else:
        # The guards exclude a single row or column of tiles, although the graph computes it correctly.
        loaded = torch.export.load(path).module(check_guards=False)

        def run(**inputs: Tensor) -> list[Tensor]:
            return _outputs(loaded(*inputs.values()))

    several, single = dict(part.inputs), {name: _single(part, name) for name in part.inputs}
    differences = [
        float((expected.double() - found.double()).abs().max())
        for inputs in (several, single)
        for expected, found in zip(_outputs(part.module(**inputs)), run(**inputs), strict=True)
    ]
    return {
        "part": part.name,
        "file": path.name,
        "bytes": path.stat().st_size,
        "difference": float(torch.tensor(differences).max()),  # NaN if any of them is
        "pytorch_seconds": _best(lambda: part.module(**single), repeats),
        "exported_seconds": _best(lambda: run(**single), repeats),
    }


def _single(part: Part, name: str) -> Tensor:
    """The example input cut down to one photo of one tile."""
    tensor = part.inputs[name]
    for axis, (_, multiple) in part.axes.get(name, {}).items():
        tensor = tensor.narrow(axis, 0, multiple)
    return tensor.contiguous()


def _outputs(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _best(run: Callable[[], Any], repeats: int) -> float:
    """Shortest time of several calls, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)

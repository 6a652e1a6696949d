"""Write the model and the example photo of the browser page: python web/assets.py FOLDER

The page reads the files of a bundled model as they are: `codec.safetensors` has the tables of the entropy coder and
`model.safetensors` the waves, the codebook and the weights, so that it checks the hash in a file's header as Python
does. The ONNX graph of the network on pixels refers to its weights in `model.safetensors` instead of repeating them.
Names contain a hash of the contents, so that browsers may cache the files for ever.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import finola
from finola import hub
from finola.codec.calibration import load_codec
from finola.deployment.exporter import serialise
from finola.deployment.parts import Part
from finola.image_io import read_photo, to_pillow

MODEL = "tile32"
PHOTO = "skimage:astronaut"
NETWORK = "decoder.refinement"
WEIGHTS = hub.WEIGHTS


class Product(nn.Module):
    """Batched matrix product, for the linear parts of the codec."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def graph_of(part: Part) -> onnx.ModelProto:
    return onnx.load_model_from_string(serialise(part, "onnx"))


def correction_graph(folder: Path, tile: tuple[int, int]) -> onnx.ModelProto:
    """Graph of the network on pixels of a model, for joined tiles of any number; weights stay in the folder's file."""
    network = finola.load(MODEL).get_submodule(NETWORK)
    axes = {"images": {2: ("rows", tile[0]), 3: ("columns", tile[1])}}
    images = torch.rand(1, 3, 2 * tile[0], 3 * tile[1])
    graph = graph_of(Part("correction", network, {"images": images}, axes, ("corrected",)))
    refer_to_weights(graph, folder / WEIGHTS, dict(network.state_dict()))
    return graph


def refer_to_weights(model: onnx.ModelProto, path: Path, state: dict[str, Tensor]) -> None:
    """Replace the weights of a graph by references to the half-precision tensors of a safetensors file, and casts."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    kept, casts = [], []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        name = next((name for name, own in state.items() if np.array_equal(own.numpy(), values)), None)
        if name is None:
            kept.append(tensor)
            continue
        entry = header[f"{NETWORK}.{name}"]
        if entry["dtype"] != "F16":
            raise ValueError(f"{NETWORK}.{name} is stored as {entry['dtype']}, not F16.")
        begin, end = entry["data_offsets"]
        half = TensorProto(
            name=f"{tensor.name}.half",
            data_type=TensorProto.FLOAT16,
            dims=entry["shape"],
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", WEIGHTS), ("offset", 8 + length + begin), ("length", end - begin)):
            half.external_data.add(key=key, value=str(value))
        kept.append(half)
        casts.append(helper.make_node("Cast", [half.name], [tensor.name], to=TensorProto.FLOAT))
    if len(casts) != len(state):
        raise ValueError(f"The graph has {len(casts)} of the {len(state)} weights of {NETWORK}.")
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]


def product_graph() -> onnx.ModelProto:
    """Graph of `Product` for matrices (1, rows, inner) and (batch, inner, columns)."""
    inputs = {"a": torch.rand(1, 4, 5), "b": torch.rand(3, 5, 6)}
    axes = {
        "a": {1: ("rows", 1), 2: ("inner", 1)},
        "b": {0: ("batch", 1), 1: ("inner", 1), 2: ("columns", 1)},
    }
    return graph_of(Part("product", Product(), inputs, axes, ("product",)))


def photo() -> bytes:
    """The example photo as JPEG."""
    target = io.BytesIO()
    to_pillow(read_photo(PHOTO)).save(target, "JPEG", quality=95, subsampling=0)
    return target.getvalue()


def main(folder: Path) -> None:
    codec, source = load_codec(MODEL), hub.WEIGHTS_FOLDER / MODEL
    config = codec.model.config
    contents = {
        "codec": (source / "codec.safetensors").read_bytes(),
        "model": (source / WEIGHTS).read_bytes(),
        "correction": correction_graph(source, config.image_size).SerializeToString(),
        "product": product_graph().SerializeToString(),
        "photo": photo(),
    }
    suffixes = {"codec": "safetensors", "model": "safetensors", "correction": "onnx", "product": "onnx", "photo": "jpg"}
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if re.fullmatch(r"(codec|model|correction|product|photo)-[0-9a-f]{12}\.\w+", old.name):
            old.unlink()
    files = {}
    for name, data in contents.items():
        path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.{suffixes[name]}"
        path.write_bytes(data)
        files[name] = {"name": path.name, "bytes": len(data)}
    model = {"id": codec.id, "name": str(config), "side": config.image_size[0], "cell": config.cell[0]}
    (folder / "assets.json").write_text(json.dumps({"model": model, "files": files}, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {sum(map(len, contents.values())) / 1e6:.1f} MB to {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

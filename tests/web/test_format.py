"""The TypeScript reader and writer of `.finola` files, run by node: the same integers and bytes as Python's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finola import hub
from finola.codec.calibration import load_codec
from finola.codec.codec import compress
from finola.codec.container import read_container
from finola.codec.elastic_photo import stored_tiles
from finola.codec.rans import Encoder, Table

ROOT = Path(__file__).parents[2]
ESBUILD = ROOT / "web" / "node_modules" / ".bin" / "esbuild"
TABLES = hub.WEIGHTS_FOLDER / "tile32" / "codec.safetensors"
FROZEN = ROOT / "tests" / "codec" / "frozen-tile32.finola"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not ESBUILD.exists(), reason="needs node, and web/node_modules from make web"
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "format.mjs"
    options = ["--bundle", "--platform=node", "--format=esm", "--keep-names", "--log-level=error"]
    subprocess.run([ESBUILD, Path(__file__).with_name("format.ts"), *options, f"--outfile={path}"], check=True)
    return path


def run(script: Path, command: str, given: bytes) -> Any:
    done = subprocess.run(["node", script, command, TABLES], input=given, capture_output=True, check=True)
    return json.loads(done.stdout)


def integers(file: bytes) -> list[dict[str, Any]]:
    """Integers of the tiles of a file, as Python reads them."""
    codec = load_codec("tile32")
    tiles = stored_tiles(read_container(file), codec.coder)
    sizes = codec.coder.contexts.sizes
    rows = zip(tiles.lengths, tiles.means, tiles.index, tiles.values, strict=True)
    return [
        {"means": means.tolist(), "basis": int(index), "values": values[: sizes[kind]].tolist()}
        for kind, means, index, values in rows
    ]


@pytest.mark.parametrize("quality", [None, 1, 100])
def test_integers_and_bytes_equal_those_of_python(script: Path, quality: int | None) -> None:
    file = FROZEN.read_bytes()
    if quality is not None:
        import torch

        file = compress(torch.rand(3, 70, 100), quality=quality).data
    read = run(script, "read", file)
    header = read_container(file)
    assert read["tiles"] == integers(file)
    assert (read["header"]["width"], read["header"]["height"]) == (header.width, header.height)
    assert (read["header"]["step"], bytes(read["header"]["hash"])) == (header.step, header.model_hash)
    assert bytes(run(script, "write", json.dumps(read).encode())) == file


def test_entropy_coder_gives_the_bytes_of_the_specification(script: Path) -> None:
    frequencies, numbers = [16384, 6554, 4915, 3277, 1638], [0, -1, 1, 0, -2, 2, -300, 0, 2**24 - 1, 1 - 2**24]
    encoder = Encoder()
    encoder.put_many([Table(frequencies)] * len(numbers), numbers)
    encoder.put_bits(0xBEEF, 16)
    given = {"frequencies": frequencies, "numbers": numbers, "bits": [[16, 0xBEEF]]}
    coded = run(script, "rans", json.dumps(given).encode())
    assert bytes(coded["stream"]) == encoder.finish()
    assert coded["numbers"] == numbers and coded["bits"] == given["bits"]
    given["numbers"] = numbers[:8]  # the example of docs/format.md
    assert bytes(run(script, "rans", json.dumps(given).encode())["stream"]).hex() == "9b98f80016fe371500" + "40"


def test_damaged_files_are_rejected(script: Path) -> None:
    file = FROZEN.read_bytes()
    position = np.random.default_rng(0).integers(len(file), size=4)
    flipped = [file[:i] + bytes([file[i] ^ 1]) + file[i + 1 :] for i in position]
    for damaged in (b"", file[:3], file[:20], file[:-1], file + b"\0", *flipped):
        assert run(script, "read", damaged)["kind"] == "FormatError"

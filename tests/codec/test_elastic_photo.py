"""Files of elastic codecs: version 2 of the format, any size, any rate, damaged files, invalid tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import finola
from finola.codec.calibration import FILE, ElasticCodec, load_codec
from finola.codec.codec import compress, decompress
from finola.codec.container import ELASTIC, read_container, unpack
from finola.codec.elastic_calibration import calibrate_elastic
from finola.codec.elastic_coder import ElasticCoder
from finola.codec.elastic_photo import stored_tiles
from finola.errors import CorruptFileError, InputError
from finola.image_io import read_photo
from finola.latents import CodebookSpace
from finola.metrics import psnr
from finola.photos import Pixels, analyse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained elastic codec, calibrated on one photo."""
    folder = tmp_path_factory.mktemp("codec") / "small"
    model = finola.create("waves+nets/128x1@4:16+elastic2").eval()
    model.save_pretrained(folder)
    photo = read_photo("skimage:chelsea")[:, :256, :256]
    ((p,),) = analyse(CodebookSpace(model, filtered=False), Pixels(photo))
    calibrate_elastic(model, [(p, 16)] * 5).save(folder / FILE)
    return str(folder)


@pytest.fixture(scope="module")
def photo() -> Tensor:
    return read_photo("skimage:astronaut")[:, 100:230, 100:300]


def test_a_stored_file_decodes_to_the_same_integers() -> None:
    """Written with the bundled tile32; the integers are the same on every machine."""
    file = Path(__file__).with_name("frozen-tile32.finola")
    container, codec = read_container(file), load_codec("tile32")
    assert isinstance(codec, ElasticCodec) and container.model_hash == codec.hash
    tiles = stored_tiles(container, codec.coder)
    arrays = (tiles.lengths, tiles.means, tiles.index, tiles.values)
    content = b"".join(array.astype("<i4").tobytes() for array in arrays)
    assert hashlib.sha256(content).hexdigest()[:16] == "be77d342a30d6fa9"
    y, x = torch.meshgrid(torch.arange(70), torch.arange(90), indexing="ij")
    photo = torch.stack([(3 * x + y) % 256, (x * x // 40 + 2 * y) % 256, (255 - x - y).clamp_min(0)]) / 255
    assert float(psnr(decompress(file)[None].float() / 255, photo[None])) > 26


def quality_of(data: bytes, photo: Tensor, folder: str) -> float:
    decoded = decompress(data, model=folder).float() / 255
    return float(psnr(decoded[None], photo[None]))


def test_files_are_version_2_and_keep_the_size(folder: str, photo: Tensor) -> None:
    file = compress(photo, model=folder)
    container = unpack(file.data)
    assert (container.mode, file.data[4]) == (ELASTIC, 2)
    assert decompress(file.data, model=folder).shape == photo.shape


def test_the_hash_covers_the_name_of_the_model(folder: str, photo: Tensor, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "small")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"name": f"{config['name']}+corner"}))
    assert load_codec(str(other)).hash != load_codec(folder).hash
    with pytest.raises(InputError, match=load_codec(folder).hash.hex()):
        decompress(compress(photo, model=folder).data, model=str(other))


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (17, 3), (5, 90)])
def test_any_size(folder: str, size: tuple[int, int]) -> None:
    image = torch.rand(3, *size)
    assert decompress(compress(image, model=folder).data, model=folder).shape == image.shape


def test_higher_quality_costs_bytes_and_raises_psnr(folder: str, photo: Tensor) -> None:
    files = [compress(photo, model=folder, quality=quality).data for quality in (10, 40, 80)]
    sizes, values = [len(data) for data in files], [quality_of(data, photo, folder) for data in files]
    assert sizes == sorted(sizes) and values == sorted(values)


def test_the_budget_is_met_and_used(folder: str, photo: Tensor) -> None:
    file = compress(photo, model=folder, bpp=0.8)
    assert 0.7 < file.bits_per_pixel <= 0.8


def test_effort_lowers_error_plus_rate(folder: str, photo: Tensor) -> None:
    plain, refined = (compress(photo, model=folder, bpp=0.6, effort=effort).data for effort in (0, 4))
    assert len(refined) <= 0.6 * photo[0].numel() / 8
    assert quality_of(refined, photo, folder) >= quality_of(plain, photo, folder) - 0.02


def test_latents_limit_the_values_of_a_tile(folder: str, photo: Tensor) -> None:
    file = compress(photo, model=folder, quality=90, per_tile=8)
    coder = load_codec(folder).coder
    assert isinstance(coder, ElasticCoder)
    tiles = stored_tiles(unpack(file.data), coder)
    assert int((tiles.values != 0).sum(1).max()) <= 8


def test_a_grey_photo_is_stored_as_grey(folder: str) -> None:
    grey = torch.rand(1, 40, 40).expand(3, -1, -1)
    assert unpack(compress(grey, model=folder).data).grey


def test_the_plain_mode_of_the_paper_needs_a_fixed_length(folder: str, photo: Tensor) -> None:
    with pytest.raises(InputError, match="elastic"):
        compress(photo, model=folder, mode="paper")


def test_a_damaged_payload_raises_or_decodes(folder: str, photo: Tensor) -> None:
    data = compress(photo, model=folder).data
    for position in range(40, len(data) - 4, max(1, len(data) // 24)):
        body = bytearray(data[:-4])
        body[position] ^= 0x40
        damaged = bytes(body) + zlib.crc32(bytes(body)).to_bytes(4, "little")
        with contextlib.suppress(CorruptFileError):
            assert decompress(damaged, model=folder).shape == photo.shape


def test_more_tiles_than_the_payload_can_hold_raise(folder: str) -> None:
    container = unpack(compress(torch.rand(3, 16, 16), model=folder).data)
    bomb = replace(container, width=2**14, height=2**14).pack()
    with pytest.raises(CorruptFileError, match="1048576 tiles"):
        decompress(bomb, model=folder)


@pytest.mark.parametrize("name", ["expected", "length", "index", "value", "mean"])
def test_invalid_tables_raise(folder: str, name: str, tmp_path: Path) -> None:
    tensors = load_file(Path(folder) / FILE)
    for damaged in (tensors[name][:-1].contiguous(), tensors[name] * 0 + 200):
        save_file(tensors | {name: damaged}, tmp_path / FILE)
        with pytest.raises(CorruptFileError, match=FILE):
            ElasticCoder.load(tmp_path / FILE, finola.load(Path(folder)))


def test_a_version_1_file_cannot_have_the_elastic_mode(folder: str) -> None:
    data = bytearray(compress(torch.rand(3, 16, 16), model=folder).data[:-4])
    data[4] = 1
    with pytest.raises(CorruptFileError, match="version 1"):
        unpack(bytes(data) + zlib.crc32(bytes(data)).to_bytes(4, "little"))

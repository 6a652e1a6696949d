"""`.finola` files: photos of any size, corrupt files, and identical integers on every machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms
from safetensors.torch import load_file, save_file

import finola
from finola.cli import main
from finola.codec import calibration
from finola.codec.calibration import (
    LAST_LEVEL,
    Calibration,
    CodecSpace,
    bundled_codecs,
    codec_hash,
    load_codec,
    plain_ranges,
    quantise_levels,
    rotate,
)
from finola.codec.codec import compress as compress_photo
from finola.codec.codec import decode, decompress, find_codec
from finola.codec.container import Container, read_container, unpack
from finola.codec.payload import integers
from finola.errors import CorruptFileError, InputError
from finola.image_io import read_photo, save_photo
from finola.metrics import psnr
from finola.wave.spectrum import Spectrum

V1 = "waves512"  # codecs of version 1 of the format; test_elastic_photo.py has those of version 2
compress = functools.partial(compress_photo, model=V1)
FROZEN = Path(__file__).with_name("frozen.finola")
FROZEN_INTEGERS = {  # hashes of the integers in one stored file per bundled codec of version 1
    "frozen.finola": "9fe3098f4a6bac9a",
}


def photo(height: int, width: int) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([(3 * x + y) % 256, (x * x // 40 + 2 * y) % 256, (255 - x - y).clamp_min(0)]).to(torch.uint8)


def psnr_of(image: torch.Tensor, original: torch.Tensor) -> float:
    return float(psnr(image[None].float() / 255, original[None].float() / 255))


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (65, 63), (17, 300), (300, 17), (130, 200)])
@pytest.mark.parametrize("mode", ["coded", "paper"])
def test_round_trip_preserves_every_size(size: tuple[int, int], mode: str) -> None:
    image = photo(*size)
    made = compress(image, quality=60 if mode == "coded" else None, mode=mode)
    assert decompress(made.data).shape == image.shape
    assert made.bits_per_pixel == 8 * len(made.data) / (size[0] * size[1])


def test_size_and_psnr_increase_with_quality() -> None:
    image = read_photo("skimage:astronaut")[:, :256, :256]
    made = [compress(image, quality=quality) for quality in (5, 30, 60, 90)]
    sizes = [len(each.data) for each in made]
    values = [psnr_of(decompress(each.data), (255 * image).round()) for each in made]
    assert sizes == sorted(sizes) and values == sorted(values)
    assert values[-1] - values[0] > 3


def test_bpp_is_respected_and_estimated() -> None:
    image = read_photo("skimage:coffee")
    made = compress(image, bpp=0.15)
    assert 0.14 < made.bits_per_pixel <= 0.15
    container = unpack(made.data)
    assert len(made.data) - len(container.payload) <= 32
    assert abs(8 * len(container.payload) / made.estimated_bits - 1) < 0.02


def test_latents_beyond_the_limit_are_zero() -> None:
    made = compress(photo(100, 100), quality=80, per_tile=20)
    container = unpack(made.data)
    assert not integers(container, load_codec(V1))[:, 20:].any()


def test_quality_100_reaches_the_psnr_of_the_model() -> None:
    image = (255 * read_photo("skimage:astronaut")[:, :192, :192]).round()
    model = finola.load(V1)
    with torch.inference_mode():
        best = psnr_of(255 * model(image[None] / 255)[0].clamp(0, 1), image)
    assert psnr_of(decompress(compress(image / 255, quality=100).data), image) > best - 0.15


@pytest.mark.parametrize("name", FROZEN_INTEGERS)
def test_stored_files_decode_to_the_same_integers(name: str) -> None:
    container = read_container(FROZEN.with_name(name))
    values = integers(container, find_codec(container, None))
    assert hashlib.sha256(values.astype("<i4").tobytes()).hexdigest()[:16] == FROZEN_INTEGERS[name]
    assert psnr_of(decompress(FROZEN.with_name(name)), photo(70, 90)) > 16


def test_the_hash_covers_the_waves_of_a_model_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, stored = load_codec("waves512"), read_container(FROZEN)
    assert stored.model_hash == codec.hash
    ranking = Spectrum.bundled((64, 64)).ranking.clone()
    ranking[2, 1] += 1
    changed = dataclasses.replace(Spectrum.bundled((64, 64)), ranking=ranking)
    monkeypatch.setattr(Spectrum, "bundled", lambda *_: changed)
    load_codec.cache_clear()
    codec_hash.cache_clear()
    try:
        assert load_codec("waves512").hash != codec.hash
        with pytest.raises(InputError, match=stored.model_hash.hex()):
            find_codec(stored, None)
    finally:
        load_codec.cache_clear()
        codec_hash.cache_clear()


@pytest.mark.parametrize("name", ["photo256", "tile32"])
def test_the_hash_of_a_file_is_compared_before_the_model_is_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is loaded")

    right = codec_hash(name)
    monkeypatch.setattr(calibration, "load", refuse)
    load_codec.cache_clear()
    container = Container(name, bytes([right[0] ^ 1, *right[1:]]), 64, 64, 20)
    with pytest.raises(InputError, match=container.model_hash.hex()):
        find_codec(container, None)
    with pytest.raises(AssertionError, match="is loaded"):  # the right hash
        find_codec(dataclasses.replace(container, model_hash=right), None)


def test_integers_are_independent_of_threads() -> None:
    container = read_container(FROZEN)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(integers(container, load_codec("waves512")))
    assert np.array_equal(*found)


def test_every_changed_byte_and_truncation_raises() -> None:
    data = FROZEN.read_bytes()
    for place in range(len(data)):
        with pytest.raises(CorruptFileError):
            read_container(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with pytest.raises(CorruptFileError):
            read_container(data[:place])


def test_corrupt_payload_with_valid_checksum_raises_only_corrupt_file_error() -> None:
    container, codec = read_container(FROZEN), load_codec("waves512")
    rng = random.Random(0)
    rejected = 0
    for _ in range(400):
        payload = bytearray(container.payload)
        for _ in range(rng.randint(1, 4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        corrupt = dataclasses.replace(container, payload=bytes(payload))
        try:
            integers(unpack(corrupt.pack()), codec)
        except CorruptFileError:
            rejected += 1
    assert rejected > 390


def test_small_file_that_declares_a_huge_photo_raises() -> None:
    corrupt = dataclasses.replace(read_container(FROZEN), width=16000, height=16000, payload=b"\x00\x00\x01\x00")
    with pytest.raises(CorruptFileError):
        decompress(corrupt.pack())


def test_missing_or_different_model_raises_with_its_name_or_hash() -> None:
    container = read_container(FROZEN)
    with pytest.raises(InputError, match="elsewhere"):
        decompress(dataclasses.replace(container, model="elsewhere").pack())
    with pytest.raises(InputError, match=load_codec("waves512").hash.hex()):
        decompress(dataclasses.replace(container, model_hash=b"\0\0\0\0").pack())


def test_grey_and_exif_are_preserved(tmp_path: Path) -> None:
    grey = Image.fromarray(photo(40, 50)[0].numpy())
    exif = Image.Exif()
    exif[0x010F] = "maker"
    grey.save(tmp_path / "grey.jpg", exif=exif)
    assert main(["compress", str(tmp_path / "grey.jpg"), "--exif", "--json"]) == 0
    assert main(["decompress", str(tmp_path / "grey.finola"), "--json"]) == 0
    with Image.open(tmp_path / "grey.png") as back:
        assert back.mode == "L" and back.getexif()[0x010F] == "maker"
    assert read_container(tmp_path / "grey.finola").grey


def test_icc_profile_is_stored_and_applied(tmp_path: Path) -> None:
    swapped = swapped_profile()
    image = Image.fromarray(photo(64, 64).permute(1, 2, 0).numpy())
    image.save(tmp_path / "wide.png", icc_profile=swapped)
    made = compress(tmp_path / "wide.png", quality=90)
    container = unpack(made.data)
    assert container.icc == swapped
    shown = read_photo(tmp_path / "wide.png")
    assert psnr_of(decompress(made.data), (255 * shown).round()) > 18  # what a viewer shows, not what the file stores
    (tmp_path / "wide.finola").write_bytes(made.data)
    assert main(["decompress", str(tmp_path / "wide.finola"), "-o", str(tmp_path / "back.png"), "--json"]) == 0
    with Image.open(tmp_path / "back.png") as back:
        assert back.info["icc_profile"] == swapped
    image.save(tmp_path / "plain.png", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    assert unpack(compress(tmp_path / "plain.png").data).icc is None


def swapped_profile() -> bytes:
    """sRGB profile with exchanged red and blue primaries, so that ignoring it is visible."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, blue = profile.index(b"rXYZ"), profile.index(b"bXYZ")
    profile[red : red + 4], profile[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(profile).replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be"))


def test_effort_does_not_decrease_psnr_at_equal_rate() -> None:
    image = (255 * read_photo("skimage:astronaut")[:, 100:228, 150:278]).round().to(torch.uint8)
    for mode in ("coded", "paper"):
        refined = compress(image, mode=mode, effort=3)
        # In the coded mode the other file gets the same rate; the paper mode has a fixed rate.
        plain = compress(image, bpp=refined.bits_per_pixel) if mode == "coded" else compress(image, mode=mode)
        assert len(plain.data) <= len(refined.data)
        # Effort minimises the error of the photo before deblocking.
        after, before = (decode(read_container(made.data), deblock=False) for made in (refined, plain))
        assert psnr_of(after, image) > psnr_of(before, image) - 0.05
    within = compress(image, bpp=0.3, effort=2)
    assert within.bits_per_pixel <= 0.3


def test_effort_corrects_a_wrong_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analysis by synthesis does not depend on the encoder: it recovers the image from wrong latents."""
    image = (255 * read_photo("skimage:coffee")[:, 64:192, 64:192]).round().to(torch.uint8)
    good = psnr_of(decompress(compress(image, quality=60).data), image)
    original = CodecSpace.to_latents
    monkeypatch.setattr(CodecSpace, "to_latents", lambda self, q: 0.5 * original(self, q))
    bad = psnr_of(decompress(compress(image, quality=60).data), image)
    found = psnr_of(decompress(compress(image, quality=60, effort=8).data), image)
    assert bad < good - 3 and found > bad + 2 / 3 * (good - bad)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 3000), st.integers(1, 17), st.booleans(), st.integers(1, 100), st.sampled_from(["coded", "paper"])
)
def test_round_trip_for_any_size_and_quality(long: int, short: int, upright: bool, quality: int, mode: str) -> None:
    size = (long, short) if upright else (short, long)
    options = {"mode": mode, "quality": quality if mode == "coded" else None}
    made = compress(photo(*size), **options)
    container, codec = unpack(made.data), load_codec(V1)
    assert (container.height, container.width) == size
    assert decompress(made.data).shape == (3, *size)
    if mode == "coded":
        values = integers(container, codec)
        assert values.shape == (-(-size[0] // 64) * -(-size[1] // 64), len(codec.calibration.mean))
        assert made.data == compress(photo(*size), **options).data


def test_folders_streams_and_info_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        save_photo(photo(60, 80), tmp_path / "in" / f"{name}.png")
    out = str(tmp_path / "out")
    assert main(["compress", str(tmp_path / "in"), "-o", out, "-m", V1, "--quality", "30", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["photos"]
    assert [Path(row["file"]).name for row in rows] == ["a.finola", "b.finola"]
    with (tmp_path / "in" / "a.png").open("rb") as stream:
        assert compress(stream, quality=30).data == (tmp_path / "out" / "a.finola").read_bytes()
    assert (
        main(["compress", str(tmp_path / "in" / "*.png"), "-o", out, "-m", V1, "--quality", "30", "--json", "--force"])
        == 0
    )
    assert [Path(row["file"]).name for row in json.loads(capsys.readouterr().out)["photos"]] == ["a.finola", "b.finola"]
    assert main(["decompress", out, "-o", out, "--json"]) == 0
    capsys.readouterr()
    expected = decompress(tmp_path / "out" / "a.finola")
    assert torch.equal(decompress(io.BytesIO((tmp_path / "out" / "a.finola").read_bytes())), expected)
    assert torch.equal((255 * read_photo(tmp_path / "out" / "a.png")).round().to(torch.uint8), expected)
    assert main(["info", str(tmp_path / "out" / "a.finola"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["width"], facts["height"], facts["model"]) == (80, 60, V1)
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix == ".part"]


def test_calibrated_folder_is_a_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    finola.create("waves/32x1@4:32").save_pretrained(folder)
    assert main(["calibrate", str(folder), "smoke", "--tiles", "200"]) == 0
    save_photo(photo(50, 70), tmp_path / "p.png")
    assert main(["compress", str(tmp_path / "p.png"), "--model", str(folder), "--json"]) == 0
    file = tmp_path / "p.finola"
    assert decompress(file, model=str(folder)).shape == (3, 50, 70)
    with pytest.raises(InputError, match="mine"):
        decompress(file)
    before = load_codec(str(folder)).hash
    (folder / "latent.safetensors").write_bytes(b"whatever else lies beside the weights")
    load_codec.cache_clear()
    assert load_codec(str(folder)).hash == before
    finola.create("waves+conv/32x1@4:32").save_pretrained(folder)  # other weights, the same tables
    load_codec.cache_clear()
    assert load_codec(str(folder)).hash != before


def test_plain_calibration_needs_no_jacobian_and_compresses_in_mode_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full, folder = tmp_path / "full", tmp_path / "plain"
    model = finola.create("waves/32x1@4:32")
    for place in (full, folder):
        model.save_pretrained(place)
    assert main(["calibrate", str(full), "smoke", "--tiles", "200"]) == 0
    monkeypatch.setattr("finola.codec.calibration._pixel_metric", None)
    assert main(["calibrate", str(folder), "smoke", "--tiles", "200", "--plain"]) == 0
    image = photo(50, 70)
    files = [compress(image, model=str(place), mode="paper").data for place in (full, folder)]
    decoded = [decompress(data, model=str(place)) for data, place in zip(files, (full, folder), strict=True)]
    assert torch.equal(*decoded) and len(files[0]) == len(files[1]) - len("plain") + len("full")
    for options in ({"quality": 50}, {"mode": "paper", "effort": 1}):
        with pytest.raises(InputError, match="--plain"):
            compress(image, model=str(folder), **options)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["compress", "skimage:coffee", "--quality", "0"], "quality"),
        (["compress", "skimage:coffee", "--bpp", "0"], "bpp"),
        (["compress", "nowhere.png"], "nowhere.png"),
        (["compress", "skimage:coffee", "--model", "unheard"], "unheard"),
        (["decompress", "nowhere.finola"], "nowhere.finola"),
        (["calibrate", "waves/32x1@4:32"], "-o"),
    ],
)
def test_invalid_input_exits_with_code_2(arguments: list[str], value: str, tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert value in capsys.readouterr().err


@pytest.mark.parametrize("size", [(3, 9_000), (9_000, 3), (70, 7_000)])
def test_tiles_in_memory_are_bounded_for_every_shape(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tiles encoded or propagated at once does not grow with either side of the photo."""
    at_once: list[int] = []
    to_q, to_latents = CodecSpace.to_q, CodecSpace.to_latents

    def grow(self: CodecSpace, p: torch.Tensor) -> torch.Tensor:
        at_once.append(len(p))
        return to_q(self, p)

    def encode(self: CodecSpace, q: torch.Tensor) -> torch.Tensor:
        at_once.append(len(q))
        return to_latents(self, q)

    monkeypatch.setattr(CodecSpace, "to_q", grow)
    monkeypatch.setattr(CodecSpace, "to_latents", encode)
    image = photo(*size)
    rebuilt = decompress(compress(image, quality=60).data)
    assert max(at_once) <= 3 * (CodecSpace.most + 2)
    assert rebuilt.shape == image.shape


def test_blocks_of_a_wide_photo_leave_no_seams() -> None:
    """The middle of a wide photo equals the same tiles decoded with few neighbours."""
    image = photo(64, 64 * 200)
    wide = decode(unpack(compress(image, quality=70).data), deblock=False)
    first = 64 * 90
    part = decode(unpack(compress(image[:, :, first : first + 64 * 12], quality=70).data), deblock=False)
    inside = slice(64, 64 * 11)
    difference = (wide[:, :, first : first + 64 * 12].int() - part.int()).abs()[:, :, inside]
    assert int(difference.max()) <= 1


@pytest.mark.parametrize("name", ["../mine", "/etc", "mine", "./mine", "waves/32x1@4:32", "user/repo"])
def test_model_name_in_a_file_never_selects_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name in a header selects only bundled codecs; a folder must be given by the user."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    opened: list[str] = []
    monkeypatch.setattr("finola.codec.codec.codec_on", lambda word: opened.append(word))
    with pytest.raises(InputError, match=name):
        decompress(dataclasses.replace(read_container(FROZEN), model=name).pack())
    assert not opened


@pytest.mark.parametrize("key", ["mean", "synthesis", "low", "high", "scales", "values", "classes"])
@pytest.mark.parametrize("damage", ["missing", "short", "type", "value"])
def test_corrupt_tables_raise(key: str, damage: str, tmp_path: Path) -> None:
    tensors = load_file(bundled_codecs()["waves512"])
    tensor = tensors.pop(key)
    if damage == "short":
        tensors[key] = tensor[:-1].clone()
    elif damage == "type":
        tensors[key] = tensor.float() if key in ("scales", "values", "classes") else tensor.to(torch.int32)
    elif damage == "value":
        tensors[key] = tensor.clone()
        tensors[key].view(-1)[0] = float("nan") if tensor.is_floating_point() else 2**15 - 1
    path = tmp_path / "codec.safetensors"
    save_file(tensors, path)
    with pytest.raises(CorruptFileError, match=path.name):
        Calibration.load(path)


def test_tables_that_are_not_safetensors_raise(tmp_path: Path) -> None:
    path = tmp_path / "codec.safetensors"
    for data in (b"", b"\x00" * 7, b"\xff" * 64, bundled_codecs()["waves512"].read_bytes()[:1000]):
        path.write_bytes(data)
        with pytest.raises(CorruptFileError, match=path.name):
            Calibration.load(path)


def test_data_behind_the_last_tile_is_refused() -> None:
    container = read_container(FROZEN)
    with pytest.raises(CorruptFileError):
        decompress(
            dataclasses.replace(container, payload=container.payload[:4] + b"\0\0" + container.payload[4:]).pack()
        )
    with pytest.raises(CorruptFileError):
        decompress(dataclasses.replace(container, payload=container.payload + b"\0\0").pack())


def test_rotated_latents_have_like_variances_and_rotate_back() -> None:
    """The fixed-length mode rotates the channels, which leaves norms, and their products with constants, unchanged."""
    torch.manual_seed(0)
    latents = torch.randn(500, 96) * torch.logspace(0, -3, 96)
    rotated = rotate(latents)
    assert torch.allclose(rotate(rotated), latents, atol=1e-5)
    assert torch.allclose(rotated.norm(dim=1), latents.norm(dim=1), rtol=1e-5)
    variances = latents.var(0), rotated.var(0)
    assert variances[0].max() / variances[0].min() > 1e5 and variances[1].max() / variances[1].min() < 100


def test_the_ranges_of_the_fixed_length_mode_have_the_least_error() -> None:
    torch.manual_seed(0)
    x = torch.randn(4000, 8) * torch.arange(1, 9) + 5

    def error(low: torch.Tensor, high: torch.Tensor) -> float:
        levels = quantise_levels(x, low, high)
        return float((low + levels / LAST_LEVEL * (high - low) - x).square().mean())

    low, high = plain_ranges(x)
    centre, half = (low + high) / 2, (high - low) / 2
    assert all(error(low, high) < error(centre - c * half, centre + c * half) for c in (0.8, 1.25))
    # The least mean squared error of 16 uniform levels for a standard normal variable (Max, 1960).
    assert error(low, high) / float(x.var(0).mean()) == pytest.approx(0.01154, rel=0.1)

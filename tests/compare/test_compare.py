"""`finola compare`: results independent of the number of processes, resumable runs, and clear errors."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from placement import ELSEWHERE, SecondDevice

import finola
from finola.cli import main
from finola.cli.inputs import find_photos
from finola.compare import runner
from finola.compare.bjontegaard import bd_psnr, bd_rate, common_rates
from finola.compare.methods import build_method, identity
from finola.compare.report import deltas, fixed_length, label, quoted
from finola.compare.runner import Measurement, Photos, Row, Task
from finola.errors import InputError
from finola.image_io import read_photo, save_photo
from finola.jobs.pool import Pool
from finola.metrics import psnr


@dataclass
class KilledOnce(Measurement):
    """A measurement whose worker is killed at the second photo, once."""

    marker: Path = Path()

    def __call__(self, task: Task) -> list[Row] | str:
        if task.index == 1 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(task)


METHODS = ["dct:1", "dct:3", "jpeg:20", "webp:20", "jpeg@0.9", "waves/16x1@8:32"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Synthetic train and test photos of several sizes."""
    torch.manual_seed(0)
    for split, count in (("train", 6), ("test", 3)):
        (tmp_path / "photos" / split).mkdir(parents=True)
        for index in range(count):
            base = torch.rand(1, 3, 8, 8)
            size = (256, 256) if split == "train" else (40 + 7 * index, 64)
            image = torch.nn.functional.interpolate(base, size=size, mode="bicubic", align_corners=False)[0]
            save_photo(image.clamp(0, 1), tmp_path / "photos" / split / f"{split}{index}.png")
    return tmp_path / "photos"


def compare(folder: Path, *more: str, data: list[str] | None = None, code: int = 0) -> dict[str, object]:
    """Results for the photos in `folder`, or for `data`; the cache and the output are beside the folder."""
    out = folder.parent / "out.json"
    cache = folder.parent / "cache"
    words = ["--cache", str(cache), "-o", str(out), "--json", "--force", "--device", "cpu"]
    assert main(["compare", *(data or [str(folder)]), *words, *more]) == code
    content: dict[str, object] = json.loads(out.read_text())
    return content


def means(result: dict[str, object]) -> dict[str, tuple[object, ...]]:
    return {m["word"]: (m["psnr"], m["ssim"], m["latents"], m["bpp"]) for m in result["methods"]}  # type: ignore


def test_metrics_are_correct_and_independent_of_workers(folder: Path, tmp_path: Path, capsys) -> None:  # type: ignore
    one = compare(folder, "--methods", *METHODS, "--workers", "1")
    (tmp_path / "cache").rename(tmp_path / "old")
    two = compare(folder, "--methods", *METHODS, "--workers", "2")
    for word, (*quality, latents, bpp) in means(two).items():
        assert (latents, bpp) == means(one)[word][2:]
        # A worker has one thread, so float32 sums over thousands of pixels may have another order: about 1e-6.
        assert quality == pytest.approx(means(one)[word][:2], rel=1e-4)
    method = build_method("dct:3")
    images = [read_photo(path) for path in sorted((folder / "test").iterdir())]
    expected = [float(psnr(method.decode(method.encode(image))[None], image[None])) for image in images]
    assert means(one)["dct:3"][0] == pytest.approx(sum(expected) / 3, abs=1e-3)


def test_second_run_uses_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore
    first = compare(folder, "--methods", "dct:1", "dct:3", "--workers", "1")
    monkeypatch.setattr(runner, "rows_of", lambda *_: pytest.fail("measured again"))
    assert means(compare(folder, "--methods", "dct:1", "dct:3", "--workers", "1")) == means(first)


def test_rows_of_photos_replaced_under_the_same_names_are_measured_again(tmp_path: Path, capsys) -> None:  # type: ignore
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(40):
        save_photo(torch.rand(3, 16, 16), folder / f"{index:02d}.png")
    words = ["--methods", "jpeg:20", "--workers", "1", "--split", "all"]
    before = means(compare(folder, *words))
    for index in (1, 22, 38):
        save_photo(torch.rand(3, 16, 16), folder / f"{index:02d}.png")
    assert means(compare(folder, *words)) != before


def test_a_klt_fitted_to_other_photos_is_measured_again(folder: Path, capsys) -> None:  # type: ignore
    words = ["--methods", "klt32:2", "--crop", "32", "--workers", "1"]
    before = means(compare(folder, *words))
    for path in (folder / "train").iterdir():
        save_photo(torch.rand(3, 64, 64), path)
    assert means(compare(folder, *words)) != before


@pytest.mark.parametrize("name", ["finola-models/mine", "finola/mine", "klt-models/mine", "jpeg/mine"])
def test_a_model_folder_is_no_other_method_whatever_its_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = finola.create("waves/16x1@8:32")
    model.save_pretrained(name)
    before = identity(name)
    assert build_method(name).encode(torch.rand(3, 32, 32)).latents == 16 and label(name) == name
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(name)
    assert identity(name) != before


def test_interrupted_run_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore
    whole = means(compare(folder, "--methods", "dct:1", "--workers", "1"))
    missing, damaged, _ = (folder.parent / "cache" / "photos").iterdir()
    missing.unlink()
    damaged.write_text(damaged.read_text()[:40])
    measured = []
    rows_of = runner.rows_of
    monkeypatch.setattr(runner, "rows_of", lambda image, methods: measured.append(1) or rows_of(image, methods))
    assert means(compare(folder, "--methods", "dct:1", "--workers", "1")) == whole
    assert len(measured) == 2


def test_photos_are_files_folders_patterns_data_names_and_scikit_image(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setenv("FINOLA_DATA", str(folder.parent))
    words = ["--methods", "dct:1", "--workers", "1", "--crop", "32"]
    expected = means(compare(folder, *words))
    files = [str(path) for path in sorted((folder / "test").iterdir())]
    for data in (
        ["photos"],
        [str(folder / "test" / "*.png")],
        files,
        [str(folder / "test" / "test[01].png"), files[2]],
    ):
        assert means(compare(folder, *words, data=data)) == expected
    mixed = compare(folder, *words, data=[str(folder), "skimage:chelsea", files[0]])
    assert mixed["images"] == 5
    names = [photo.name for photo in find_photos([str(folder), "skimage:chelsea"], 2, split="test")]
    assert names == ["test/test0.png", "skimage:chelsea"]  # evenly spread


def test_rows_of_a_photo_do_not_depend_on_how_it_is_named(folder: Path, monkeypatch, capsys) -> None:  # type: ignore
    words = ["--methods", "dct:1", "--workers", "1"]
    expected = means(compare(folder, *words))
    files = [str(path) for path in sorted((folder / "test").iterdir())]
    monkeypatch.setattr(runner, "rows_of", lambda *_: pytest.fail("measured again"))
    assert means(compare(folder, *words, data=files)) == expected


def test_a_killed_worker_loses_no_row(folder: Path, tmp_path: Path, capsys) -> None:  # type: ignore
    words = ["--methods", "dct:1", "jpeg:20"]
    expected = means(compare(folder, *words, "--workers", "1"))
    photos = Photos(tuple(find_photos([str(folder)], split="test")))
    said: list[str] = []
    with Pool(2, say=said.append) as pool:
        work = KilledOnce(photos, {}, torch.device("cpu"), marker=tmp_path / "marker")
        found = dict(pool.run(work, [Task(index, words[1:]) for index in range(3)]))
    psnr_of = [sum(found[index][word]["psnr"] for index in range(3)) / 3 for word in range(2)]  # type: ignore
    assert psnr_of == pytest.approx([expected[word][0] for word in words[1:]], rel=1e-4) and "SIGKILL" in said[0]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_damaged_photo_is_left_out_of_all_methods(folder: Path, workers: str, capsys) -> None:  # type: ignore
    words = ["--methods", *METHODS[:3], "--workers", workers]
    intact = [str(folder / "test" / f"test{index}.png") for index in (0, 2)]
    expected = means(compare(folder, *words, data=intact))
    path = folder / "test" / "test1.png"
    path.write_bytes(path.read_bytes()[:60])
    capsys.readouterr()
    for _ in range(2):  # the second time from the cache
        result = compare(folder, *words, code=2)
        assert [m["images"] for m in result["methods"]] == [2, 2, 2]  # type: ignore
        assert means(result) == expected
        (reason,) = result["unreadable"]  # type: ignore
        said = capsys.readouterr().err
        assert "test1.png" in reason and reason in said and said.count("\n") == 1


def test_a_photo_that_one_method_cannot_encode_is_left_out_of_all(folder: Path, capsys) -> None:  # type: ignore
    save_photo(torch.rand(3, 4, 16400), folder / "test" / "long.png")  # WebP files have at most 16383 pixels per side
    sheet = folder.parent / "sheet.png"
    result = compare(folder, "--methods", "dct:1", "webp:20", "--workers", "1", "--sheet", str(sheet), code=2)
    assert [m["images"] for m in result["methods"]] == [3, 3]  # type: ignore
    assert "long.png" in capsys.readouterr().err and sheet.is_file()


@pytest.mark.parametrize("word", ["waves/16x1@8:32", "finola:30", "finola-paper:4"])
def test_models_run_on_any_device_with_rows_of_their_own(word: str) -> None:
    image = torch.rand(3, 40, 70)
    here = build_method(word)
    expected = here.decode(here.encode(image))
    with SecondDevice():
        there = build_method(word, device=ELSEWHERE)
        code = there.encode(image)
        assert code[1:] == here.encode(image)[1:]
        assert torch.equal(there.decode(code), expected) and expected.device.type == "cpu"
    assert identity(word, ELSEWHERE) == f"{identity(word)} {ELSEWHERE.type}"
    assert identity("jpeg:8", ELSEWHERE) == identity("jpeg:8", "cpu")


def test_models_on_a_device_and_other_methods_are_merged(folder: Path, tmp_path: Path) -> None:
    path = folder / "test" / "test1.png"
    path.write_bytes(path.read_bytes()[:60])
    photos = Photos(tuple(find_photos([str(folder)], split="test")))
    words = ["dct:1", "waves/16x1@8:32", "jpeg:20"]
    expected = runner.run(photos, words, {}, tmp_path, workers=1)
    with SecondDevice():
        found = runner.run(photos, words, {}, tmp_path, workers=1, device=ELSEWHERE)
    assert [row["word"] for row in found.rows] == 2 * words and list(found.left_out) == [1]
    assert [row["psnr"] for row in found.rows] == pytest.approx([row["psnr"] for row in expected.rows])


def test_all_default_methods_on_a_folder(folder: Path, capsys) -> None:  # type: ignore
    out = folder.parent
    result = compare(
        folder, "--workers", "1", "--models", "waves/16x1@8:32", "--budget", "16", "32", "--bpp", "0.9",
        "--plot", str(out / "plot.png"), "--sheet", str(out / "sheet.png"),
    )  # fmt: skip
    words = set(means(result))
    assert {"dct:10", "dwt:ll", "dtcwt:scale2", "jpeg:8", "jpeg@0.9", "waves/16x1@8:32", "klt64:1", "klt64:2"} <= words
    assert (out / "plot.png").stat().st_size > 5000 and (out / "sheet.png").stat().st_size > 1000
    low, high = result["against_jpeg"]["jpeg-progressive"]["rates"]  # type: ignore
    assert 0 < low < high


def test_photo_files_and_printed_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = str(next((folder / "test").iterdir()))
    assert main(["compare", photo, "--methods", "dct:1", "jpeg@2", "--cache", str(folder.parent / "c")]) == 0
    shown = capsys.readouterr().out
    assert "DCT, first 1" in shown and "20.6" in shown and "quoted" in shown


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--methods", "dctt:3"], ["dctt:3", "dct"]),
        (["--methods", "dct:x"], ["dct:x", "'x'"]),
        (["--methods", "klt48:3"], ["klt48:3", "256"]),
        (["--methods", "vae:nowhere"], ["nowhere"]),
        (["--plot", "no/such/folder.png"], [str(Path("no/such"))]),
    ],
)
def test_invalid_arguments_exit_with_code_2(folder: Path, arguments: list[str], values: list[str], capsys) -> None:  # type: ignore
    assert main(["compare", str(folder), "--cache", str(folder.parent / "c"), *arguments]) == 2
    error = capsys.readouterr().err
    assert all(value in error for value in values)


def test_crop_resizes_the_photos_of_every_method(folder: Path, capsys) -> None:  # type: ignore
    words = ["--methods", "klt32:2", "waves/16x1@8:32", "--crop", "32", "--workers", "1"]
    result = compare(folder, *words)
    assert result["crop"] == 32
    assert [m["latents"] for m in result["methods"]] == [2, 16]  # type: ignore  # one tile per photo
    files = [str(path) for path in sorted((folder / "test").iterdir())]
    out = folder.parent / "files.json"
    assert main(["compare", *files, *words, "--train", str(folder), "-o", str(out), "--json"]) == 0
    assert means(json.loads(out.read_text())) == means(result)


def test_klt_is_not_fitted_to_the_test_photos(tmp_path: Path, capsys) -> None:  # type: ignore
    save_photo(torch.rand(3, 40, 40), tmp_path / "only.png")
    assert main(["compare", str(tmp_path / "only.png"), "--json", "--models", "--cache", str(tmp_path / "c")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert any("KLT" in sentence for sentence in result["left_out"])


@pytest.mark.parametrize("budget", [512, 4096])
def test_an_elastic_model_with_a_budget_is_a_method(budget: int) -> None:
    photo, method = torch.rand(3, 96, 80), build_method(f"tile32@{budget}")
    code = method.encode(photo)
    assert code.latents is not None and 0.9 * budget < code.latents * 256**2 / (96 * 80) <= budget
    model = finola.load("tile32")
    expected = finola.decode(model, finola.encode(model, photo, budget=budget))
    assert torch.allclose(method.decode(code), expected, atol=1e-4)
    for word in ("photo256@1024", "tile32@3"):
        with pytest.raises(InputError, match="budget"):
            build_method(word)


def test_the_fixed_length_mode_with_another_codec() -> None:
    method, image = build_method("finola-paper:photo256"), torch.rand(3, 256, 256)
    code = method.encode(image)
    assert code.bits is not None and 4 * 3069 <= code.bits < 4 * 3069 + 2000  # four bits per latent, and the header
    assert method.decode(code).shape == image.shape
    assert label("finola-paper:photo256") == "finola (photo256), bits per latent: 4"


def test_cached_files_depend_on_the_settings_of_their_format() -> None:
    assert "mct" in identity("jpeg2000:20")  # results without the colour transform are not those with it


@pytest.mark.parametrize("word", ["finola-paper:8", "finola-paper@0.2", "finola-paper"])
def test_the_fixed_length_mode_has_four_bits(word: str) -> None:
    with pytest.raises(InputError, match="finola-paper:4"):
        build_method(word)


def test_bjontegaard_is_zero_against_itself_and_antisymmetric() -> None:
    curve = [(0.1, 24.0), (0.2, 26.0), (0.4, 28.5), (0.8, 31.0)]
    other = [(0.12, 24.5), (0.25, 26.4), (0.5, 29.5), (0.9, 31.5)]
    assert bd_rate(curve, curve) == pytest.approx(0) and bd_psnr(curve, curve) == pytest.approx(0)
    assert bd_psnr(curve, other) == pytest.approx(-bd_psnr(other, curve))  # type: ignore[operator]
    forth, back = bd_rate(curve, other), bd_rate(other, curve)
    assert (1 + forth / 100) * (1 + back / 100) == pytest.approx(1)  # type: ignore[operator]
    assert bd_rate(curve, [(10.0, 50.0), (20.0, 52.0)]) is None
    with pytest.raises(InputError):
        bd_psnr(curve, [(0.1, 20.0)])


def test_deltas_are_given_only_for_a_long_common_range_of_rates() -> None:
    jpeg = [[0.1, 24.0], [0.2, 26.0], [0.4, 28.5], [0.8, 31.0]]
    better = [[rate, quality + 1] for rate, quality in jpeg]
    short = [[0.01, 20.0], [0.1, 25.0], [0.29, 28.0]]
    result = deltas({"jpeg": jpeg, "better": better, "short": short, "apart": [[2.0, 40.0], [3.0, 42.0]]})
    assert result["better"]["rates"] == [0.1, 0.8] and result["better"]["bd_psnr_db"] == pytest.approx(1)
    assert result["short"] == {"rates": [0.1, 0.29], "bd_rate_percent": None, "bd_psnr_db": None}
    assert result["apart"] == {"rates": None, "bd_rate_percent": None, "bd_psnr_db": None}
    assert common_rates(jpeg, short) == common_rates(short, jpeg) == (0.1, 0.29)  # type: ignore[arg-type]


def test_plain_codes_are_listed_beside_the_nearest_jpeg_files() -> None:
    rates = {"jpeg:5": 0.1, "jpeg:8": 0.2, "jpeg:15": 0.4, "finola-paper:4": 0.3, "webp:5": 0.25}
    rows = fixed_length([{"word": word, "bpp": rate} for word, rate in rates.items()])
    assert [row["word"] for row in rows] == ["jpeg:8", "finola-paper:4", "jpeg:15"]
    assert fixed_length([{"word": "jpeg:5", "bpp": 0.1}]) == []


def test_page_is_generated_from_the_stored_results() -> None:
    docs = Path(__file__).parents[2] / "docs"
    specification = importlib.util.spec_from_file_location("compare_page", docs / "compare.py")
    page = importlib.util.module_from_spec(specification)  # type: ignore[arg-type]
    specification.loader.exec_module(page)  # type: ignore[union-attr]
    results = page.load()
    assert (docs / "compare.md").read_text(encoding="utf-8") == page.page(results)
    for result in results.values():
        assert result["against_jpeg"] == deltas(result["curves"])
        others = [method for method in result["methods"] if not method["word"].startswith("finola")]
        assert all(method["label"] == label(method["word"]) for method in others)  # finola: the codec of that time


def test_quoted_results_name_existing_methods() -> None:
    for entry in quoted()["latents"]:
        if entry.get("word", "").startswith(("dct", "dwt", "dtcwt")):
            assert build_method(entry["word"]).encode(torch.rand(3, 256, 256)).latents == entry["latents"]

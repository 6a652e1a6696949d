"""Untrusted data files: bounded memory, no access outside their folder, and one-line errors."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from cocos import rectangle, write_coco
from PIL import Image
from pyarrow import parquet

import finola.data.checks as checks
import finola.data.loader as loader
from finola.batch.compression import check_shard
from finola.data import open_data
from finola.data.coco import open_coco
from finola.data.detection import Fit, ObjectDataset
from finola.errors import CorruptFileError, InputError
from finola.evaluation.detection import ground_truth


def png(level: int = 9) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (level,) * 3).save(file, "PNG")
    return file.getvalue()


def refused(work: Callable[[], object], *words: str) -> str:
    """Check that `work` raises an `InputError` with a one-line message that contains `words`; return the message."""
    with pytest.raises(InputError) as raised:
        work()
    message = str(raised.value)
    assert "\n" not in message and len(message) < 1000
    assert all(word in message for word in words), message
    return message


# Parquet


def write_table(path: Path, metadata: dict[str, str] | None = None, **columns: Any) -> Path:
    table = pyarrow.table({"image": [png()] * 2} | columns)
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_paths_in_a_parquet_file_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png())
    outside = str(tmp_path / "secret.png")
    texts = write_table(tmp_path / "texts.parquet", image=[outside, outside])
    refused(lambda: open_data(texts, "all"), "'image'", "string")
    structs = write_table(tmp_path / "structs.parquet", image=[{"path": outside}] * 2)
    refused(lambda: open_data(structs, "all"), "'image'", "struct")
    pictures = [{"bytes": None, "path": outside}, {"bytes": png(40), "path": outside}]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    mixed = open_data(write_table(tmp_path / "mixed.parquet", image=pyarrow.array(pictures, kind)), "all")
    assert int(mixed.sample(0)[0][0, 0, 0]) == 40 and len(mixed.unreadable) == 1
    named = [{"bytes": outside, "path": None}] * 2
    refused(lambda: open_data(write_table(tmp_path / "named.parquet", image=named), "all"), "'image'")


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (pyarrow.array([0.0, 1.7]), "double"),
        (pyarrow.array([None, float("nan")], pyarrow.float32()), "float"),
        (pyarrow.array(["cat", "dog"]), "string"),
        (pyarrow.array([[1], [2, 3]]), "list"),
        (pyarrow.array([{"a": 1}] * 2), "struct"),
        (pyarrow.array([True, False]), "bool"),
        (pyarrow.array([0, 2**64 - 1], pyarrow.uint64()), str(2**64 - 1)),
        (pyarrow.array([0, -7]), "-7"),
    ],
)
def test_invalid_labels_raise(labels: Any, word: str, tmp_path: Path) -> None:
    file = write_table(tmp_path / "odd.parquet", label=labels)
    refused(lambda: open_data(file, "all"), "odd.parquet", word)


def test_null_labels_are_unknown(tmp_path: Path) -> None:
    data = open_data(write_table(tmp_path / "a.parquet", label=pyarrow.array([None, 3], pyarrow.int16())), "all")
    assert [data.sample(number)[1] for number in range(2)] == [-1, 0] and data.class_names == ["3"]


@pytest.mark.parametrize(
    "features",
    ["{", "[1]", "[" * 100_000, '{"info": {"features": {"label": {"names": {"a": 1}}}}}'],
)
def test_hugging_face_metadata_is_validated(features: str, tmp_path: Path) -> None:
    file = write_table(tmp_path / "h.parquet", {"huggingface": features}, label=[0, 1])
    if features == "[1]":  # no names in it
        assert open_data(file, "all").class_names == ["0", "1"]
        return
    refused(lambda: open_data(file, "all"), "h.parquet")


def test_invalid_class_names_raise(tmp_path: Path) -> None:
    names = json.dumps({"info": {"features": {"label": {"names": ["ant", "bee"]}}}})
    file = write_table(tmp_path / "a.parquet", {"huggingface": names}, label=[0, 7])
    refused(lambda: open_data(file, "all"), "7", "2")
    file = write_table(tmp_path / "b.parquet", label=[0, 1], name=[1.5, 2.5])
    refused(lambda: open_data(file, "all"), "'name'", "double")


def test_each_parquet_file_may_have_its_own_image_column(tmp_path: Path) -> None:
    write_table(tmp_path / "1.parquet")
    parquet.write_table(pyarrow.table({"jpg": [png(50)]}), tmp_path / "2.parquet")
    data = open_data(tmp_path, "all")
    assert [int(data.sample(number)[0][0, 0, 0]) for number in range(3)] == [9, 9, 50] and not data.unreadable


# COCO

BASE: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "1.png", "height": 48, "width": 64}],
    "categories": [{"id": 3, "name": "box"}],
    "annotations": [rectangle(4, 5, 20, 30) | {"id": 1, "image_id": 1}],
}


def coco(root: Path, section: str | None = None, change: Any = None, text: str | None = None) -> Path:
    """COCO folder of one photo; `change` is applied to the first entry of `section`, or `text` is the whole file."""
    write_coco(root, {"train2017": [[rectangle(4, 5, 20, 30)]]})
    content = json.loads(json.dumps(BASE))
    if section and callable(change):
        change(content[section])
    elif section:
        content[section][0] |= change
    (root / "annotations" / "instances_train2017.json").write_text(text or json.dumps(content))
    return root


@pytest.mark.parametrize(
    ("section", "change"),
    [
        *((section, lambda entries: entries[0].pop("id")) for section in ("images", "categories")),
        *((section, lambda entries: entries.append(dict(entries[0]))) for section in ("images", "annotations")),
        *(("images", lambda entries, key=key: entries[0].pop(key)) for key in ("file_name", "height", "width")),
        *(("annotations", lambda entries, key=key: entries[0].pop(key)) for key in ("image_id", "category_id", "bbox")),
        ("categories", lambda entries: entries.append({"id": 3, "name": "other"})),
        ("images", lambda entries: entries.append(5)),
        ("images", {"id": "1"}),
        ("images", {"id": [1]}),
        ("images", {"id": True}),
        ("images", {"id": 2**70}),
        ("images", {"height": "48"}),
        ("images", {"height": -48}),
        ("images", {"width": 10**12}),
        ("images", {"height": 2**16, "width": 2**16}),
        ("images", {"file_name": 7}),
        ("images", {"file_name": "../../etc/passwd"}),
        ("images", {"file_name": "a/../../b.png"}),
        ("images", {"file_name": "/etc/passwd"}),
        ("images", {"file_name": "..\\b.png"}),
        ("images", {"file_name": "C:\\b.png"}),
        ("images", {"file_name": "a\0.png"}),
        ("images", {"file_name": ""}),
        ("images", {"file_name": "\ud800.png"}),
        ("images", {"file_name": "a" * 5000}),
        ("categories", {"id": {}}),
        ("categories", {"name": None}),
        ("annotations", {"image_id": {}}),
        ("annotations", {"category_id": []}),
        ("annotations", {"bbox": [1, 2, 3]}),
        ("annotations", {"bbox": "1234"}),
        ("annotations", {"bbox": [1, 2, 3, "4"]}),
        ("annotations", {"bbox": [1, 2, None, 4]}),
        ("annotations", {"bbox": [1, 2, float("nan"), 4]}),
        ("annotations", {"bbox": [1, 2, float("inf"), 4]}),
        ("annotations", {"bbox": [1, 2, 1e30, 4]}),
        ("annotations", {"bbox": [1, 2, 10**400, 4]}),
        ("annotations", {"bbox": [-1000, 2, 3, 4]}),
        ("annotations", {"bbox": [1, 2, -3, 4]}),
        ("annotations", {"area": "12"}),
        ("annotations", {"area": float("nan")}),
        ("annotations", {"iscrowd": 7}),
        ("annotations", {"iscrowd": [0]}),
        ("annotations", {"segmentation": "abc"}),
    ],
)
def test_invalid_coco_annotations_raise(section: str, change: Any, tmp_path: Path) -> None:
    root = coco(tmp_path, section, change)
    message = refused(lambda: open_coco(root, "all"), "instances_train2017.json")
    assert not message.startswith("KeyError")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[]", "null", "{", '{"images": 9' + "9" * 5000, "\xff"]
)
def test_annotations_that_are_not_json_objects_raise(text: str, tmp_path: Path) -> None:
    root = coco(tmp_path, text=text)
    refused(lambda: open_coco(root, "all"), "instances_train2017.json")


def test_oversized_annotations_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_JSON_BYTES", 100)
    refused(lambda: open_coco(coco(tmp_path), "all"), "100")


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1, 2, 3, 4, 5]],
        [[1, 2, 3, 4, 5, "6"]],
        [[1, 2, 3, 4, 5, float("nan")]],
        [[1, 2, 3, 4, 5, 1e9]],
        [[1, 2, 3, 4, 5, 10**400]],
        [{"a": 1}],
        [[0, 0, 63, 47] * 5000],
        {"counts": [0, 48 * 64]},
        {"size": [48, 64], "counts": [10**9, 1]},
        {"size": [48, 64], "counts": [-1, 48 * 64 + 1]},
        {"size": [48, 64], "counts": ["1"]},
        {"size": [2**20, 2**20], "counts": [0, 2**40]},
        {"size": [48, 64], "counts": "PPPPoooo"},
        {"size": [48, 64], "counts": "\x01\u1234"},
        {"size": [48, 64], "counts": None},
    ],
)
def test_invalid_masks_raise_before_memory_is_allocated(segmentation: Any, tmp_path: Path) -> None:
    source = open_coco(coco(tmp_path, "annotations", {"segmentation": segmentation}), "all")
    refused(lambda: source.target(0), "train2017/1.png")
    refused(lambda: ground_truth(source, [0]), "train2017/1.png")
    refused(lambda: ObjectDataset(source, Fit(48, 64), masks=True), "train2017/1.png")


def test_compressed_run_lengths_of_coco_are_read(tmp_path: Path) -> None:
    from pycocotools import mask as coco_mask

    random = np.random.default_rng(0)
    for number in range(20):
        values = np.asfortranarray((random.random((48, 64)) < random.random()).astype(np.uint8))
        runs = coco_mask.encode(values)
        segmentation = {"size": [48, 64], "counts": runs["counts"].decode()}
        source = open_coco(coco(tmp_path / str(number), "annotations", {"segmentation": segmentation}), "all")
        assert source.target(0)["segmentation"] == [segmentation]


# Tar shards


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("label", [b"cat", b"", b"1.5", b"-2", b"9" * 5000, "٣".encode(), b"1_0"])
def test_invalid_label_drops_only_its_own_sample(label: bytes, tmp_path: Path) -> None:
    samples = [
        (f"{number}.{kind}", data) for number in range(4) for kind, data in (("png", png(number)), ("cls", b"1"))
    ]
    samples[3] = ("1.cls", label)
    data = open_data(write_tar(tmp_path / "a.tar", samples), "all")
    assert [data.name(number) for number in range(len(data))] == ["a.tar/0.png", "a.tar/2.png", "a.tar/3.png"]
    assert [data.sample(number)[1] for number in range(3)] == [0, 0, 0]
    assert "1.cls" in data.report() and "a.tar" in data.report()


@pytest.mark.parametrize("name", ["../../evil.png", "/tmp/evil.png", "a/../../evil.png", "a" * 5000 + ".png"])
def test_members_outside_the_archive_are_ignored(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = open_data(write_tar(tmp_path / "in" / "a.tar", [(name, png()), ("good.png", png())]), "all")
    assert [data.name(number) for number in range(len(data))] == ["a.tar/good.png"]
    assert len(data.source.problems) == 1 and "a.tar" in data.report()
    data.sample(0)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.tar"]


def test_corrupt_header_is_reported_with_the_number_of_photos(tmp_path: Path) -> None:
    file = write_tar(tmp_path / "a.tar", [(f"{number}.png", png(number)) for number in range(4)])
    with tarfile.open(file) as tar:
        offset = tar.getmember("2.png").offset
    content = bytearray(file.read_bytes())
    content[offset + 150] ^= 1  # inside the checksum
    file.write_bytes(content)
    data = open_data(file, "all")
    assert len(data) == 2 and "a.tar" in data.report() and "2 photos" in data.report()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_large_headers_of_tar_files_are_not_parsed(kind: bytes, tmp_path: Path) -> None:
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, 200_000
    file = write_tar(tmp_path / "a.tar", [("a.png", png())])
    with tarfile.open(file) as tar:
        end = tar.getmembers()[0].offset_data + len(png()) + -len(png()) % 512
    parts = [file.read_bytes()[:end], header.tobuf(tarfile.USTAR_FORMAT), b"1" * 200_192, bytes(1024)]
    file.write_bytes(b"".join(parts))
    data = open_data(file, "all")
    assert len(data) == 1 and "200192 bytes" in data.report()
    with file.open("rb") as stream, pytest.raises(CorruptFileError, match="200192 bytes"):
        check_shard(stream, 1)


def test_declared_sizes_beyond_the_file_are_not_allocated(tmp_path: Path) -> None:
    file = write_tar(tmp_path / "a.tar", [("0.png", png()), ("1.png", png())])
    for size in (2**62, -512):
        content = file.read_bytes()
        with tarfile.open(file) as tar:
            member = tar.getmember("1.png")
        offset = member.offset
        member.size = size
        header = member.tobuf(tarfile.GNU_FORMAT)
        damaged = tmp_path / f"size{size}.tar"
        damaged.write_bytes(content[:offset] + header + content[offset + 512 :])
        data = open_data(damaged, "all")
        assert len(data) == 1 and damaged.name in data.report()


def test_names_that_are_not_utf_8_are_supported(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.png")
    data = open_data(write_tar(tmp_path / "a.tar", [(name, png()), ("b.png", png())]), "train")
    assert len(data) == 1 and len(open_data(tmp_path / "a.tar", "all")) == 2


# Folders and patterns


def test_class_folders_that_link_to_the_same_folder_raise(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "1.png").write_bytes(png())
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "ant").symlink_to(tmp_path / "own" / "cat")
    (tmp_path / "linked" / "bee").symlink_to(tmp_path / "own" / "dog")
    assert open_data(tmp_path / "linked", "all").class_names == ["ant", "bee"]
    (tmp_path / "linked" / "cow").symlink_to(tmp_path / "own" / "dog")
    refused(lambda: open_data(tmp_path / "linked", "all"), "cow", "bee")


def test_cyclic_links_terminate(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / "a" / str(number)).mkdir(parents=True)
        for name in ("x", "y"):
            (tmp_path / "a" / str(number) / name).symlink_to(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        open_data(tmp_path / "a", "all")


@pytest.mark.parametrize(
    "pattern", ["{0..99999999999}.tar", "{x{0..9999}{0..9999},y}.tar", "{0.tar", "a\0b", "a" * 9000]
)
def test_oversized_and_invalid_patterns_raise(pattern: str, tmp_path: Path) -> None:
    refused(lambda: open_data(f"{tmp_path}/{pattern}"))


def test_unknown_home_folder_raises() -> None:
    with pytest.raises(FileNotFoundError):
        open_data("~nobody-of-this-name/photos")


def test_available_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert loader.available_cores() == 1


def test_corrupt_parquet_raises_corrupt_file_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(CorruptFileError):
        open_data(tmp_path / "a.parquet")

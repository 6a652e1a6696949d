"""Sources of photos of every kind, opened by path, by pattern, by name in FINOLA_DATA, or as `smoke`."""

import copy
import io
import json
import os
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow
import pytest
import torch
import webdataset
from PIL import Image
from pyarrow import parquet

import finola.data.parquet as parquet_module
import finola.data.shards as shards
from finola.data import CentreCrop, RandomResizedCrop, make_loader, open_data
from finola.data.sources import choose_parts, evenly, part_of
from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError

HOME = os.environ.get("FINOLA_DATA")


def png(number: int, side: int = 16) -> bytes:
    """Write a photo whose grey level is its number, so that it can be identified."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (number,) * 3).save(file, "PNG")
    return file.getvalue()


def put(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(number))


def write_parquet(path: Path, numbers: list[int], **columns: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"image": [png(number) for number in numbers], "label": [number % 3 for number in numbers]} | columns
    parquet.write_table(pyarrow.table(table), path, row_group_size=4)


def write_shard(path: Path, numbers: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as shard:
        for number in numbers:
            shard.write({"__key__": f"{number:04d}", "png": png(number), "cls": number % 3})


def levels(dataset: object) -> list[int]:
    return [int(dataset.sample(index)[0][0, 0, 0]) for index in range(len(dataset))]  # type: ignore[attr-defined,arg-type]


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINOLA_DATA", raising=False)


def test_flat_folder_and_single_photo(tmp_path: Path) -> None:
    for number in range(40):
        put(tmp_path / f"{number:02d}.png", number)
    whole = open_data(tmp_path, "all")
    assert levels(whole) == levels(open_data(tmp_path, "test")) == list(range(40))
    image, label = whole.sample(3)
    assert image.shape == (3, 16, 16) and image.dtype == torch.uint8 and label == -1
    assert whole.name(3) == "03.png" and whole.num_classes == 0
    for split in ("train", "val"):
        assert levels(open_data(tmp_path / "07.png", split)) == [7]


def test_folder_without_splits_is_split_by_name(tmp_path: Path) -> None:
    for number in range(100):
        put(tmp_path / f"{number:02d}.png", number)
    train, val = levels(open_data(tmp_path)), levels(open_data(tmp_path, "val"))
    assert sorted(train + val) == list(range(100)) and 1 <= len(val) <= 12
    put(tmp_path / "new.png", 200)
    assert set(train) <= set(levels(open_data(tmp_path))) and set(val) <= set(levels(open_data(tmp_path, "val")))


def test_two_photos_give_both_splits(tmp_path: Path) -> None:
    for number in range(2):
        put(tmp_path / f"{number}.png", number)
    assert sorted(levels(open_data(tmp_path)) + levels(open_data(tmp_path, "val"))) == [0, 1]


def test_class_folders_are_labels_shared_by_the_splits(tmp_path: Path) -> None:
    put(tmp_path / "train" / "cat" / "1.png", 1)
    put(tmp_path / "train" / "dog" / "deep" / "2.png", 2)
    put(tmp_path / "train" / "ant" / "3.png", 3)
    put(tmp_path / "val" / "dog" / "4.png", 4)
    train, val = open_data(tmp_path), open_data(tmp_path, "val")
    assert train.classes == val.classes == {0: "ant", 1: "cat", 2: "dog"} and val.num_classes == 3
    assert [(train.name(i), train.sample(i)[1]) for i in range(3)] == [
        ("train/ant/3.png", 0),
        ("train/cat/1.png", 1),
        ("train/dog/deep/2.png", 2),
    ]
    assert levels(val) == [4] and val.sample(0)[1] == 2
    assert levels(open_data(tmp_path, "test")) == [4] and len(open_data(tmp_path, "all")) == 4


def test_class_named_train_is_not_a_split(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "plane", "ship")):
        put(tmp_path / name / "1.png", number)
    assert open_data(tmp_path, "all").classes == {0: "plane", 1: "ship", 2: "train"}


def test_parquet_by_folder_file_pattern_and_hugging_face_layout(tmp_path: Path) -> None:
    write_parquet(tmp_path / "p" / "train-000.parquet", list(range(10)), name=[f"n{i % 3}" for i in range(10)])
    write_parquet(tmp_path / "p" / "train-001.parquet", list(range(10, 15)), name=["n"] * 5)
    write_parquet(tmp_path / "p" / "val-000.parquet", [100, 101], name=["a", "b"])
    train = open_data(tmp_path / "p")
    assert levels(train) == list(range(15)) and [train.sample(i)[1] for i in range(4)] == [0, 1, 2, 0]
    assert train.name(12) == "train-001.parquet row 2" and train.classes[1] == "n"
    assert levels(open_data(tmp_path / "p", "val")) == [100, 101]
    assert levels(open_data(tmp_path / "p" / "val-000.parquet", "all")) == [100, 101]
    assert levels(open_data(f"{tmp_path}/p/train-*.parquet", "all")) == list(range(15))

    features = {"info": {"features": {"label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"}}}}
    table = pyarrow.table({"image": [{"bytes": png(7), "path": "x.png"}], "label": [2]})
    (tmp_path / "h" / "data").mkdir(parents=True)
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(table, tmp_path / "h" / "data" / "validation-00000-of-00001.parquet")
    hub = open_data(tmp_path / "h", "val")
    assert levels(hub) == [7] and hub.sample(0)[1] == 2 and hub.classes == {0: "ant", 1: "bee", 2: "cat"}


def test_labels_with_gaps_are_consecutive_and_equal_in_every_split(tmp_path: Path) -> None:
    for split, labels in (("train", [0, 217, 482, 217]), ("val", [482, 0, 999])):
        table = pyarrow.table({"image": [png(7)] * len(labels), "label": labels, "name": [f"c{n}" for n in labels]})
        parquet.write_table(table, tmp_path / f"{split}.parquet")
    train, val = (open_data(tmp_path, split) for split in ("train", "val"))
    assert train.class_names == ["c0", "c217", "c482"] and train.num_classes == 3
    assert [train.sample(i)[1] for i in range(4)] == [0, 1, 2, 1]
    val.number_like(train)
    assert [val.sample(i)[1] for i in range(3)] == [2, 0, -1] and val.class_names == train.class_names


def test_classes_of_another_folder_are_matched_by_name(tmp_path: Path) -> None:
    for place in ("own/train/ant", "own/train/cat", "own/train/dog", "other/val/cat", "other/val/dog", "other/val/eel"):
        for number in range(2):
            put(tmp_path / place / f"{number}.png", 1)
    train, val = open_data(tmp_path / "own", "train"), open_data(tmp_path / "other", "val")
    assert [val.sample(i)[1] for i in range(0, 6, 2)] == [0, 1, 2]
    val.number_like(train)
    assert [val.sample(i)[1] for i in range(0, 6, 2)] == [1, 2, -1] and val.class_names == ["ant", "cat", "dog"]


def test_classes_without_names_are_matched_by_label(tmp_path: Path) -> None:
    for split, names in (("train", None), ("val", ["bee", "cow"])):
        columns = {"image": [png(7)] * 2, "label": [3, 9]} | ({"name": names} if names else {})
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{split}.parquet")
    train, val = (open_data(tmp_path, split) for split in ("train", "val"))
    val.number_like(train)
    assert [val.sample(i)[1] for i in range(2)] == [0, 1]
    for place in ("own/train/1", "own/train/2", "other/val/0", "other/val/1"):
        put(tmp_path / place / "a.png", 1)
        put(tmp_path / place / "b.png", 1)
    train, val = open_data(tmp_path / "own", "train"), open_data(tmp_path / "other", "val")
    val.number_like(train)
    assert [val.sample(i)[1] for i in range(0, 4, 2)] == [-1, 0]


def test_large_parquet_data_is_read_by_row_groups_and_visits_each_photo_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "train.parquet", list(range(60)))
    monkeypatch.setattr(parquet_module, "IN_MEMORY", 0)
    monkeypatch.setattr(parquet_module, "CACHED_GROUPS", 2)
    dataset = open_data(tmp_path / "train.parquet", "all")
    assert dataset.source.blocks.tolist() == list(range(0, 60, 4))
    assert sorted(levels(dataset)) == list(range(60)) and len(dataset.source._cache) == 2
    loader = make_loader(dataset, 10)
    visited = [index for batch in loader for index in batch.indices.tolist()]
    assert sorted(visited) == list(range(60)) and visited != list(range(60))
    assert len({index // 4 for index in visited[:16]}) == 4  # one window of row groups at a time
    assert len(open_data(tmp_path, "val").source.blocks) <= 15


def test_shards_by_folder_glob_and_braces(tmp_path: Path) -> None:
    write_shard(tmp_path / "set-train-000.tar", [0, 1, 2, 3])
    write_shard(tmp_path / "set-train-001.tar", [4, 5])
    write_shard(tmp_path / "set-val-000.tar", [9])
    train = open_data(tmp_path)
    assert levels(train) == [0, 1, 2, 3, 4, 5] and [train.sample(i)[1] for i in range(6)] == [0, 1, 2, 0, 1, 2]
    assert train.name(4) == "set-train-001.tar/0004.png" and train.num_classes == 3
    assert levels(open_data(tmp_path, "val")) == [9]
    assert levels(open_data(f"{tmp_path}/set-train-{{000..001}}.tar", "all")) == list(range(6))
    assert levels(open_data(f"{tmp_path}/*-train-*.tar", "all")) == list(range(6))
    with pytest.raises(MissingFileError, match=r"set-train-002\.tar"):
        open_data(f"{tmp_path}/set-train-{{000..002}}.tar")


def test_truncated_shard_is_read_up_to_its_end_and_reported(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [1, 2, 3, 4])
    with tarfile.open(tmp_path / "a.tar") as shard:
        third = shard.getmember("0003.png")
    os.truncate(tmp_path / "a.tar", third.offset_data + 10)
    dataset = open_data(tmp_path / "a.tar", "all")
    assert levels(dataset)[:2] == [1, 2]
    assert "a.tar" in dataset.report()
    (tmp_path / "b.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(CorruptFileError, match=r"b\.tar"):
        open_data(tmp_path / "b.tar")


def test_shards_are_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a shard changes, no other process and no later run reads its headers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shards, "MIN_CACHED_BYTES", 0)
    (tmp_path / "data").mkdir()
    write_shard(tmp_path / "data" / "a.tar", [0, 1, 2])
    write_shard(tmp_path / "data" / "b.tar", [3, 4])
    open_tar, reading = shards.open_tar, set[int]()

    def once(stream: IO[bytes]) -> tarfile.TarFile:
        inode = os.fstat(stream.fileno()).st_ino
        assert inode not in reading, "this shard is indexed already"
        reading.add(inode)
        return open_tar(stream)

    monkeypatch.setattr(shards, "open_tar", once)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: open_data(tmp_path / "data", "all"), range(4)))
    assert all(levels(data) == [0, 1, 2, 3, 4] and not data.source.problems for data in found)
    assert [data.label(4) for data in (data.source for data in found)] == [1] * 4
    monkeypatch.setattr(shards, "open_tar", open_tar)
    write_shard(tmp_path / "data" / "b.tar", [5, 6, 7])
    assert levels(open_data(tmp_path / "data", "all")) == [0, 1, 2, 5, 6, 7]
    for stored in (tmp_path / "cache").rglob("*.json"):
        stored.write_bytes(b'{"state": 3')
    assert levels(open_data(tmp_path / "data", "all")) == [0, 1, 2, 5, 6, 7]


def test_coco_photos_and_objects(tmp_path: Path) -> None:
    for part, number in (("train2017", 1), ("val2017", 2)):
        put(tmp_path / part / f"{number:012d}.png", number)
        content = {
            "images": [{"id": number, "file_name": f"{number:012d}.png", "height": 16, "width": 16}],
            "categories": [{"id": 18, "name": "dog"}],
            "annotations": [
                {"id": 1, "image_id": number, "category_id": 18, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0}
                | {"segmentation": [[1, 2, 4, 2, 4, 6]]}
            ],
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    train, val = open_data(tmp_path), open_data(tmp_path, "val")
    assert levels(train) == [1] and levels(val) == [2] and val.source.categories == {18: "dog"} and not val.classes
    target = val.target(0)
    assert target["boxes"].tolist() == [[1, 2, 4, 6]] and target["categories"].tolist() == [18]
    assert target["size"] == (16, 16) and target["image_id"] == 2 and target["segmentation"] == [[[1, 2, 4, 2, 4, 6]]]
    with pytest.raises(InputError, match="smoke"):
        open_data("smoke").target(0)


def test_smoke_data_and_its_splits() -> None:
    train, val = open_data("smoke"), open_data("smoke", "val")
    assert (len(train), len(val), len(open_data("smoke", "all"))) == (512, 32, 544)
    assert train.sample(5)[0].shape == (3, 256, 256)
    assert torch.equal(train.sample(5)[0], open_data("smoke").sample(5, epoch=9)[0])
    assert not torch.equal(train.sample(0)[0], train.sample(5)[0])  # two crops of the same photo
    assert {train.source.open(i).size for i in range(5)} == {(256, 256)}


def test_names_are_resolved_as_paths_and_then_in_finola_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    put(home / "photos" / "1.png", 1)
    put(here / "mine" / "2.png", 2)
    monkeypatch.chdir(here)
    with pytest.raises(InputError, match="FINOLA_DATA"):
        open_data()
    with pytest.raises(MissingFileError, match=r"'photos'.*FINOLA_DATA"):
        open_data("photos")
    monkeypatch.setenv("FINOLA_DATA", str(home))
    assert levels(open_data("photos")) == [1] and levels(open_data("mine")) == [2] and levels(open_data()) == [1]
    write_parquet(home / "rows" / "train.parquet", [3, 4])
    with pytest.raises(InputError, match="photos, rows"):
        open_data()
    with pytest.raises(MissingFileError, match=r"'elsewhere'.*photos, rows"):
        open_data("elsewhere")
    monkeypatch.setenv("FINOLA_DATA", str(home / "gone"))
    with pytest.raises(MissingFileError, match=r"FINOLA_DATA .*gone"):
        open_data()


def test_invalid_input_raises(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'dev'.*train, val, test, all"):
        open_data("smoke", "dev")
    with pytest.raises(MissingFileError, match=re.escape(str(tmp_path))):
        open_data(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"notes\.txt"):
        open_data(tmp_path / "notes.txt")
    parquet.write_table(pyarrow.table({"pixels": [b"x"]}), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match=r"odd\.parquet.*pixels.*'image'"):
        open_data(tmp_path / "odd.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(CorruptFileError, match=r"bad\.parquet"):
        open_data(tmp_path / "bad.parquet")
    (tmp_path / "c" / "annotations").mkdir(parents=True)
    (tmp_path / "c" / "annotations" / "instances_val2017.json").write_text('{"images": 3}')
    with pytest.raises(CorruptFileError, match=r"instances_val2017\.json"):
        open_data(tmp_path / "c", "val")
    with pytest.raises(InputError, match=r"train.*val"):
        open_data(tmp_path / "c")


@pytest.mark.parametrize("kind", ["photos", "parquet", "tar"])
def test_the_fingerprint_tells_replaced_photos_and_not_folders_apart(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    if kind == "photos":
        put(folder / "0.png", 0)
        put(folder / "1.png", 1)
    elif kind == "parquet":
        write_parquet(folder / "0.parquet", [0, 1])
    else:
        write_shard(folder / "0.tar", [0, 1])
    before = open_data(folder, "all").source.fingerprint()
    shutil.copytree(folder, tmp_path / "b")  # with the times of the files
    assert open_data(tmp_path / "b", "all").source.fingerprint() == before
    file = min(folder.iterdir())
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))  # as another file of the same size
    assert open_data(folder, "all").source.fingerprint() != before


def test_names_of_splits() -> None:
    assert [part_of(name) for name in ("train-00.parquet", "x_valid_2.tar", "trainer", "latest", "test")] == [
        *("train", "val", None, None, "test"),
    ]
    assert choose_parts({"train"}, "val", "x") == () and choose_parts({"train", "test"}, "val", "x") == ("test",)
    assert choose_parts({"train", "val"}, "test", "x") == ("val",)


@pytest.mark.parametrize("pack", ["photos256", "imagenette128", "coco_mini", "kodak"])
def test_real_packs(pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if HOME is None or not Path(HOME, pack).is_dir():
        pytest.skip(f"FINOLA_DATA with {pack} is not set on this machine.")
    monkeypatch.setenv("FINOLA_DATA", HOME)
    for split, transform in (("train", RandomResizedCrop(64)), ("test", CentreCrop(64))):
        dataset = open_data(pack, split, transform=transform)
        batch = next(iter(make_loader(dataset, 8, workers=0)))
        assert batch.images.shape == (8, 3, 64, 64) and 0.02 < batch.images.std() < 0.6
        assert dataset.report() == "" and np.isin(batch.labels.numpy(), [-1, *dataset.classes]).all()


def test_subsets_can_be_sent_to_worker_processes(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path / f"{number}.png", number)
    subset = evenly(open_data(tmp_path, "all").source, 2)
    sent = copy.deepcopy(subset)  # by the protocol of pickle, as multiprocessing does
    assert [sent.name(index) for index in range(2)] == [subset.name(index) for index in range(2)]

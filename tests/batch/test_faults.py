"""Faults of data, outputs and memory: no photo is lost for good, and no secret is written."""

from __future__ import annotations

import json
import tarfile
import weakref
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from finola.batch import compress_dataset, compression, embed, read_embeddings
from finola.batch import embedding as embedding_module
from finola.batch import run as run_module
from finola.batch.run import Run
from finola.batch.shards import Shard, ShardWork
from finola.cli import main
from finola.data.discovery import find_source
from finola.errors import FinolaError, InputError, OutputExistsError
from finola.image_io import save_photo
from finola.jobs.store import Store

MODEL = "waves/64x1@8:32"
PHOTOS = 6


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(PHOTOS):
        save_photo(torch.rand(3, 40, 50), folder / f"{number}.png")
    return folder


def write_tar(data: Path, file: Path) -> bytes:
    with tarfile.open(file, "w") as tar:
        for path in sorted(data.iterdir()):
            tar.add(path, path.name)
    return file.read_bytes()


def write_parquet(data: Path, file: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"image": [path.read_bytes() for path in sorted(data.iterdir())]}), file)


@pytest.mark.parametrize("kind", ["photos", "parquet"])
def test_data_that_is_away_during_a_run_is_read_by_the_next(kind, data, tmp_path, monkeypatch) -> None:
    source, away = data, tmp_path / "away"
    if kind == "parquet":
        source = tmp_path / "photos.parquet"
        write_parquet(data, source)
    make = embedding_module.EmbedTask.make

    def make_without_data(task, *arguments):
        source.rename(away)
        try:
            return make(task, *arguments)
        finally:
            away.rename(source)

    with monkeypatch.context() as patch:
        patch.setattr(embedding_module.EmbedTask, "make", make_without_data)
        assert len(embed(source, tmp_path / "out", MODEL).errors) == PHOTOS
    summary = embed(source, tmp_path / "out", MODEL)
    assert (summary.rows, summary.skipped, summary.errors) == (PHOTOS, 0, [])


def test_a_damaged_photo_is_not_tried_again(data: Path, tmp_path: Path) -> None:
    good = (data / "1.png").read_bytes()
    (data / "1.png").write_bytes(good[: len(good) // 2])
    (data / "2.png").write_bytes(b"no photo")
    assert len(embed(data, tmp_path / "out", MODEL).errors) == 2
    assert embed(data, tmp_path / "out", MODEL).skipped == 1


def test_a_truncated_tar_file_is_reported(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = tmp_path / "photos.tar", tmp_path / "out"
    whole = write_tar(data, file)
    file.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):  # also by a run that finds all shards finished
        assert main(["embed", str(file), "-m", MODEL, "-o", str(out), "--json"]) == 2
        printed = capsys.readouterr()
        found = json.loads(printed.out)
        assert 0 < found["rows"] < PHOTOS and not found["unreadable"]
        assert len(found["problems"]) == 1 and found["problems"][0] in printed.err
        entries = [json.loads(line) for line in (out / "_errors.jsonl").read_text().splitlines()]
        assert [entry["reason"] for entry in entries] == found["problems"]


@pytest.mark.parametrize(("room", "to_encode"), [(1, 1), (3, 3), (4, 1)])
def test_lack_of_memory_halves_the_photos_in_memory(room, to_encode, data, tmp_path, monkeypatch) -> None:
    """At most `room` photos fit in memory, and at most `to_encode` while some are encoded."""
    (data / "2.png").write_bytes(b"no photo")
    held: list[weakref.ref[torch.Tensor]] = []
    crop, encode = embedding_module.centre_crop, embedding_module._encode_batch

    def check(most: int) -> None:
        if sum(one() is not None for one in held) > most:
            raise InputError("unreadable") from MemoryError()  # as `image_io` raises it

    def limited_crop(*arguments):
        image = crop(*arguments)
        held.append(weakref.ref(image))
        check(room)
        return image

    def limited_encode(*arguments):
        try:
            check(to_encode)
        except InputError:
            raise RuntimeError("CUDA out of memory") from None
        return encode(*arguments)

    monkeypatch.setattr(embedding_module, "centre_crop", limited_crop)
    monkeypatch.setattr(embedding_module, "_encode_batch", limited_encode)
    said: list[str] = []
    summary = embed(data, tmp_path / "out", MODEL, say=said.append)
    assert [error.index for error in summary.errors] == [2] and len(said) == 1
    assert [one.index for one in read_embeddings(tmp_path / "out")] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_lack_of_memory_for_a_photo_is_listed_and_tried_again(error, data, tmp_path, monkeypatch) -> None:
    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(compression, "compress", fail)
        summary = compress_dataset(data, tmp_path / "out", "waves512", limit=2)
        assert len(summary.errors) == 2 and all(one.temporary for one in summary.errors)
    assert compress_dataset(data, tmp_path / "out", "waves512", limit=2).rows == 2
    monkeypatch.setattr(compression, "load_codec", fail)
    task = compression.CompressTask("waves512", "")
    with pytest.raises(InputError, match=r"^Out of memory"):
        ShardWork(task, find_source(data), str(tmp_path / "x"), "run")(Shard(0, 0, 1))


@pytest.mark.parametrize("inside", ["", "embeddings", "a/b"])
def test_an_output_inside_the_data_is_rejected_before_the_first_run(inside: str, data: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in data.rglob("*"))
    link = tmp_path / "link"
    link.symlink_to(data)
    for source, out in ((data, data), (link, data), (data, link), (data.as_uri(), data)):
        with pytest.raises(OutputExistsError):
            embed(source, out / inside, MODEL)
    with pytest.raises(FinolaError):
        embed(data.as_uri(), f"{data.as_uri()}/{inside}", MODEL)
    assert sorted(path.name for path in data.rglob("*")) == before
    embed(data, tmp_path / "data2", MODEL)  # a sibling whose name starts with that of the data


class FailingFileSystem(MemoryFileSystem):
    """A file system whose methods raise an exception of their own class, with a secret in the message."""

    protocol = "failing"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    fails = False

    class Error(Exception):
        pass

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("failing://", "memory://"))

    def _open(self, *arguments, **options):
        self._check()
        return super()._open(*arguments, **options)

    def cat_file(self, *arguments, **options):
        self._check()
        return super().cat_file(*arguments, **options)

    def pipe_file(self, *arguments, **options):
        self._check()
        return super().pipe_file(*arguments, **options)

    def _check(self) -> None:
        if type(self).fails:
            raise self.Error("500, message='Internal Server Error', url='https://host/a?token=secret'")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    monkeypatch.setattr(FailingFileSystem, "store", {})
    yield FailingFileSystem
    FailingFileSystem.fails = False


@pytest.mark.parametrize("kind", ["photos", "tar", "parquet"])
def test_errors_of_a_file_system_are_temporary_and_without_secrets(kind, data, tmp_path, failing, monkeypatch) -> None:
    system = fsspec.filesystem("failing")
    if kind == "photos":
        for path in data.iterdir():
            system.pipe_file(f"/photos/{path.name}", path.read_bytes())
    elif kind == "tar":
        system.pipe_file("/photos/a.tar", write_tar(data, tmp_path / "a.tar"))
    else:
        write_parquet(data, tmp_path / "a.parquet")
        system.pipe_file("/photos/a.parquet", (tmp_path / "a.parquet").read_bytes())
    make = embedding_module.EmbedTask.make

    def failing_make(*arguments):
        failing.fails = True
        try:
            return make(*arguments)
        finally:
            failing.fails = False

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(embedding_module.EmbedTask, "make", failing_make)
        assert len(embed("failing://photos", out, MODEL).errors) == PHOTOS
    assert not any("secret" in path.read_text() for path in (out / "_errors.jsonl", out / "_shards" / "00000.json"))
    assert embed("failing://photos", out, MODEL).rows == PHOTOS


def test_an_output_that_cannot_be_written_is_one_sentence(data: Path, failing, capsys: pytest.CaptureFixture) -> None:
    failing.fails = True
    assert main(["embed", str(data), "-m", MODEL, "-o", "failing://out"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Internal Server Error" in error and "secret" not in error


def test_a_changed_byte_in_a_finished_part_is_noticed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(data, out, MODEL, shard_size=3)
    part = out / "part-00000.parquet"
    good = part.read_bytes()
    part.write_bytes(good[:600] + bytes([good[600] ^ 1]) + good[601:])
    assert embed(data, out, MODEL, shard_size=3).skipped == 1
    assert part.read_bytes() == good


def test_half_a_run_is_read_only_if_asked(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(data, out, MODEL, shard_size=3)
    (out / "part-00001.parquet").unlink()
    with pytest.raises(InputError):
        list(read_embeddings(out))
    assert [one.index for one in read_embeddings(out, partial=True)] == [0, 1, 2]


def test_a_manifest_of_countless_photos_is_read_and_replaced(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(data, out, MODEL)
    manifest = json.loads((out / "_manifest.json").read_text())
    (out / "_manifest.json").write_text(json.dumps(manifest | {"photos": 10**15, "shard_size": 1}))
    with pytest.raises(InputError, match="part-00001"):
        list(read_embeddings(out))
    assert len(list(read_embeddings(out, partial=True))) == PHOTOS
    with pytest.raises(InputError, match="photos"):
        embed(data, out, MODEL)
    assert embed(data, out, MODEL, shard_size=4, force=True).shards == 2
    assert len(list(read_embeddings(out))) == PHOTOS


def test_file_urls_are_local_outputs(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert Store(f"file://{out}").is_local and Store(f"file://{out}").path == out
    embed(data, f"file://{out}", MODEL)
    assert embed(data, out, MODEL).skipped == 1


def test_the_device_of_a_cluster_is_not_checked_on_the_driver(data: Path, tmp_path: Path, monkeypatch) -> None:
    class Stopped:
        """A pool that plans a run and does no shard."""

        def __init__(self, workers: int | None, device: str) -> None:
            self.device = device

        __enter__, __exit__ = (lambda self: self), (lambda *_: None)

        def call(self, function, *arguments):
            found = function(*arguments)
            raise InputError(f"{found.work.function.task.device} {self.device} stopped here")

    monkeypatch.setattr(Run, "pool", lambda self, module: Stopped(self.workers, self.device))
    monkeypatch.setattr(run_module, "require", lambda *_: None)
    for number, (module, function, model) in enumerate(
        ((embedding_module, embed, MODEL), (compression, compress_dataset, "waves512"))
    ):
        monkeypatch.setattr(module, "choose_device", refuse)
        with pytest.raises(InputError, match="cuda cuda stopped here"):
            function(data, tmp_path / str(number), model, engine="ray", device="cuda")
        with pytest.raises(InputError, match="no cuda"):
            function(data, tmp_path / f"{number}-local", model, device="cuda")


def refuse(device: str) -> None:
    raise InputError(f"no {device}")

"""Batch jobs: every photo has one row or one error, whatever ends a worker or a run, and any engine gives the same."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from pyarrow import parquet

import finola
from finola.batch import compress_dataset, embed, read_embeddings, reconstruct
from finola.batch import embedding as embedding_module
from finola.batch.shards import ShardWork
from finola.cli import main
from finola.data.transforms import centre_crop
from finola.errors import CorruptFileError, InputError
from finola.image_io import open_photo, read_photo, save_photo
from finola.jobs.memory import Halving
from finola.jobs.pool import with_less_memory

MODEL = "waves/64x1@8:32"
PHOTOS = 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(PHOTOS):
        save_photo(torch.rand(3, 40 + number, 50), folder / f"{number}.png")
    return folder


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


def check_complete(out: Path, photos: int = PHOTOS) -> None:
    found = list(read_embeddings(out))
    assert [one.index for one in found] == list(range(photos))
    assert not list(out.glob(".*"))


def test_rows_are_the_q_of_the_model_and_readable_by_pyarrow(data: Path, tmp_path: Path) -> None:
    summary = embed(data, tmp_path / "out", MODEL, shard_size=4)
    assert (summary.photos, summary.rows, summary.shards) == (PHOTOS, PHOTOS, 3)
    table = parquet.read_table(tmp_path / "out")
    assert table["id"].to_pylist() == [f"{number}.png" for number in range(PHOTOS)]
    model = finola.load(MODEL)
    for one in read_embeddings(tmp_path / "out"):
        image = centre_crop(open_photo(data / one.id), (32, 32))[None] / 255
        assert one.q.shape == (1, 64) and one.size == (40 + one.index, 50)
        np.testing.assert_allclose(one.q, model.encode(image)[0].detach().numpy(), rtol=1e-4, atol=1e-4)


def test_whole_photos_are_reconstructed_from_their_rows(data: Path, tmp_path: Path) -> None:
    embed(data, tmp_path / "out", MODEL, whole=True, limit=2)
    model = finola.load(MODEL)
    for one in read_embeddings(tmp_path / "out"):
        expected = model(read_photo(data / one.id)[None])[0]
        torch.testing.assert_close(reconstruct(model, one), expected, rtol=1e-3, atol=1e-3)


def test_larger_crops_are_cut_into_tiles(data: Path, tmp_path: Path) -> None:
    embed(data, tmp_path / "out", MODEL, crop=64, limit=1, dtype="float16")
    (one,) = read_embeddings(tmp_path / "out")
    assert one.q.shape == (2, 2, 1, 64) and one.q.dtype == np.float16
    image = centre_crop(open_photo(data / one.id), (64, 64))[None] / 255
    model = finola.load(MODEL)
    torch.testing.assert_close(reconstruct(model, one), model(image)[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("features", ["pooled", "map"])
def test_rows_have_the_feature_map_of_the_encoder(features: str, data: Path, tmp_path: Path) -> None:
    model = finola.create("test_resnet/16x1@8:32").eval()
    model.save_pretrained(tmp_path / "model")
    model = finola.load(tmp_path / "model")
    embed(data, tmp_path / "out", str(tmp_path / "model"), features=features, limit=2)
    for one in read_embeddings(tmp_path / "out"):
        with torch.no_grad():
            expected = model.encoder(centre_crop(open_photo(data / one.id), (32, 32))[None] / 255)[0]
        expected = expected.mean((1, 2)) if features == "pooled" else expected
        np.testing.assert_allclose(one.features, expected, rtol=1e-3, atol=1e-3)


def test_labels_are_columns_and_members(data: Path, tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (data / label).mkdir()
    for path in sorted(data.glob("*.png")):
        path.rename(data / ("cat" if int(path.stem) < 4 else "dog") / path.name)
    embed(data, tmp_path / "out", MODEL)
    labels = [0] * 4 + [1] * (PHOTOS - 4)
    assert [one.label for one in read_embeddings(tmp_path / "out")] == labels
    compress_dataset(data, tmp_path / "shards", "waves512")
    with tarfile.open(tmp_path / "shards" / "shard-00000.tar") as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}
    assert {name.partition(".")[2] for name in members} == {"finola", "json", "cls"}
    for number, label in enumerate(labels):
        facts = json.loads(members[f"{number:09d}.json"])
        assert facts.keys() == {"id", "index", "width", "height", "model", "model_hash"}
        assert (facts["index"], members[f"{number:09d}.cls"]) == (number, str(label).encode())


def test_elastic_rows_hold_lengths_and_bases(data: Path, tmp_path: Path) -> None:
    embed(data, tmp_path / "out", "tile32", limit=1)
    (one,) = read_embeddings(tmp_path / "out")
    assert one.lengths is not None and one.shape == (2, 2) and int(one.lengths.sum()) == len(one.q)
    model = finola.load("tile32")
    expected = finola.decode(model, finola.encode(model, read_photo(data / one.id)))
    torch.testing.assert_close(reconstruct(model, one), expected)


def test_a_finished_run_is_skipped_and_a_damaged_shard_is_done_again(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(data, out, MODEL, shard_size=4)
    before = contents(out)
    assert embed(data, out, MODEL, shard_size=4).skipped == 3
    (out / "part-00001.parquet").write_bytes(before["part-00001.parquet"][:-9])
    (out / "_shards" / "00002.json").write_text("[]")
    assert embed(data, out, MODEL, shard_size=4).skipped == 1
    assert contents(out) == before


def test_another_model_setting_or_data_is_rejected(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(data, out, MODEL)
    before = contents(out)
    for change in ({"model": "waves/32x1@8:32"}, {"dtype": "float16"}, {"limit": 3}, {"shard_size": 3}):
        with pytest.raises(InputError):
            embed(data, out, **({"model": MODEL} | change))
    save_photo(torch.rand(3, 64, 64), data / "3.png")
    with pytest.raises(InputError, match="fingerprint"):
        embed(data, out, MODEL)
    assert contents(out) == before
    assert embed(data, out, MODEL, limit=3, force=True).rows == 3
    check_complete(out, 3)


def test_unreadable_photos_are_listed_with_a_reason(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (data / "4.png").write_bytes(b"no photo")
    out = tmp_path / "out"
    assert main(["embed", str(data), "-m", MODEL, "-o", str(out), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == PHOTOS - 1 and [text.partition(":")[0] for text in found["unreadable"]] == ["4.png"]
    assert [json.loads(line)["index"] for line in (out / "_errors.jsonl").read_text().splitlines()] == [4]
    assert [one.index for one in read_embeddings(out)] == [n for n in range(PHOTOS) if n != 4]


def test_lack_of_memory_halves_the_batch_and_is_said_once(data: Path, tmp_path: Path, monkeypatch) -> None:
    encode = embedding_module._encode_batch

    def limited(task, model, images):
        if len(images) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return encode(task, model, images)

    embed(data, tmp_path / "a", MODEL, shard_size=5)
    monkeypatch.setattr(embedding_module, "_encode_batch", limited)
    said: list[str] = []
    embed(data, tmp_path / "b", MODEL, shard_size=5, batch=4, say=said.append)
    assert len(said) == 1
    for one, other in zip(read_embeddings(tmp_path / "a"), read_embeddings(tmp_path / "b"), strict=True):
        assert one.id == other.id
        np.testing.assert_allclose(one.q, other.q, rtol=1e-4, atol=1e-4)


def test_lack_of_memory_for_one_photo_ends_the_run_and_other_errors_pass() -> None:
    def fail(error: Exception):
        def run(size):
            raise error

        return run

    with pytest.raises(MemoryError):
        Halving(4).fit(fail(MemoryError()))
    with pytest.raises(RuntimeError):
        Halving(4).fit(fail(RuntimeError("shape mismatch")))


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_keeps_finished_shards(fault, data, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "out"
    replace = os.replace

    def broken(source, target, **options):
        if Path(target).name == "part-00001.parquet":
            raise OSError(fault, os.strerror(fault))
        replace(source, target, **options)

    command = ["embed", str(data), "-m", MODEL, "-o", str(out), "--shard-size", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and os.strerror(fault) in error
    assert [path.name for path in out.glob("*.parquet")] == ["part-00000.parquet"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    check_complete(out)


def test_a_clock_that_jumps_changes_nothing(data: Path, tmp_path: Path, monkeypatch) -> None:
    embed(data, tmp_path / "a", MODEL, shard_size=4)
    compress_dataset(data, tmp_path / "c", "waves512", limit=2)
    clock = iter(np.random.default_rng(0).uniform(-1e9, 1e10, 100_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    embed(data, tmp_path / "b", MODEL, shard_size=4)
    compress_dataset(data, tmp_path / "d", "waves512", limit=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "c") == contents(tmp_path / "d")


KILLED = """
import os, signal, sys
from pathlib import Path
from finola.jobs.store import Store

write = Store.write

def killed(store, name, data):
    marker = Path(sys.argv[1])
    if name == sys.argv[4] and not marker.exists():
        marker.touch()
        (store.path / f".{Path(name).name}.1.part").write_bytes(data[:9])
        victim = os.getppid() if sys.argv[2] == "main" and __name__ != "__main__" else os.getpid()
        os.kill(victim, getattr(signal, sys.argv[3]))
    write(store, name, data)

Store.write = killed  # in the workers, too, which import this file as their main module

if __name__ == "__main__":
    from finola.cli import main
    sys.exit(main(sys.argv[5:]))
"""


@pytest.mark.parametrize(
    ("victim", "name", "workers", "file"),
    [
        ("worker", "SIGKILL", 2, "part-00001.parquet"),
        ("worker", "SIGKILL", 2, "_manifest.json"),
        ("main", "SIGKILL", 2, "part-00001.parquet"),
        ("main", "SIGKILL", 1, "part-00001.parquet"),
        ("main", "SIGKILL", 1, "_shards/00001.json"),
        ("main", "SIGTERM", 1, "part-00001.parquet"),
    ],
)
def test_a_killed_worker_or_run_loses_no_row(victim, name, workers, file, data, tmp_path) -> None:
    """A process is killed when it, or one of its workers, is about to write `file`."""
    (tmp_path / "killed.py").write_text(KILLED)
    out = tmp_path / "out"
    command = ["embed", str(data), "-m", MODEL, "-o", str(out), "--shard-size", "4", "--workers", str(workers)]
    done = subprocess.run(
        [sys.executable, "killed.py", "marker", victim, name, file, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )  # until no process holds the pipes
    assert (tmp_path / "marker").exists()
    if victim == "worker":
        assert done.returncode == 0 and "SIGKILL" in done.stderr, done.stderr
    else:
        assert done.returncode == (143 if name == "SIGTERM" else -signal.SIGKILL)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("finola: ")]  # progress
        assert len(lines) == (name == "SIGTERM"), done.stderr
        finished = len(list((out / "_shards").glob("*.json")))
        assert finished == 1 or workers == 2
        assert embed(data, out, MODEL, shard_size=4).skipped == finished
    check_complete(out)


def test_later_attempts_at_a_shard_use_smaller_batches() -> None:
    work = ShardWork(embedding_module.EmbedTask(MODEL, MODEL, "", (32, 32), batch=8), None, "out", "run")  # type: ignore
    assert [with_less_memory(work, attempt).task.batch for attempt in range(1, 5)] == [8, 8, 4, 2]
    assert with_less_memory(len, 4) is len


def test_photos_and_outputs_at_urls(data: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in data.iterdir():
        memory.pipe(f"/finola-test/{path.name}", path.read_bytes())
    embed(data, tmp_path / "out", MODEL)
    embed(data.as_uri(), tmp_path / "file", MODEL)
    embed("memory://finola-test", "memory://finola-out", MODEL)
    assert embed("memory://finola-test", "memory://finola-out", MODEL).skipped == 1
    expected = (tmp_path / "out" / "part-00000.parquet").read_bytes()
    assert memory.cat("/finola-out/part-00000.parquet") == expected
    assert (tmp_path / "file" / "part-00000.parquet").read_bytes() == expected
    with pytest.raises(InputError, match="memory"):
        embed("memory://finola-test", tmp_path / "x", MODEL, workers=2)
    memory.rm("/finola-test", recursive=True)
    memory.rm("/finola-out", recursive=True)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_are_read_by_webdataset_and_decoded(data: Path, tmp_path: Path) -> None:
    import webdataset

    out = tmp_path / "out"
    assert compress_dataset(data, out, "waves512", shard_size=4, limit=5).rows == 5
    before = contents(out)
    assert compress_dataset(data, out, "waves512", shard_size=4, limit=5).skipped == 2
    (out / "shard-00000.tar").write_bytes(before["shard-00000.tar"][:1000])
    compress_dataset(data, out, "waves512", shard_size=4, limit=5)
    assert contents(out) == before
    found = list(webdataset.WebDataset([str(path) for path in sorted(out.glob("*.tar"))], shardshuffle=False))
    gc.collect()  # webdataset leaves its files to the garbage collector, which would warn in another test
    assert len(found) == 5
    for sample in found:
        facts = json.loads(sample["json"])
        assert finola.decompress(io.BytesIO(sample["finola"])).shape == (3, facts["height"], facts["width"])


def test_damaged_embeddings_are_rejected(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(data, out, MODEL)
    file = out / "part-00000.parquet"
    for damage in (
        lambda b: b[:-5],
        lambda b: b[:600] + bytes([b[600] ^ 255]) + b[601:],
        lambda b: b"",
        lambda b: b[8:],
    ):
        good = file.read_bytes()
        file.write_bytes(damage(good))
        with pytest.raises(CorruptFileError):
            list(read_embeddings(out))
        file.write_bytes(good)

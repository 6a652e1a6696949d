"""Loader: batches depend on (seed, epoch, step) only, iteration resumes exactly, unreadable photos are reported."""

import itertools
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from finola.data import Batch, EpochSampler, PhotoDataset, RandomCrop, RandomResizedCrop, make_loader, open_data
from finola.data.loader import choose_workers, local_processes
from finola.errors import InputError

BROKEN = (3, 4, 11)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """24 photos of 24×24 pixels with different grey ramps; three of them are unreadable."""
    for number in range(24):
        path = tmp_path / f"{number:02d}.png"
        if number in BROKEN:
            path.write_bytes(b"broken")
        else:
            Image.linear_gradient("L").resize((24, 24)).point(lambda v, n=number: v // 2 + 5 * n).save(path)
    return tmp_path


def open_photos(folder: Path, seed: int = 5, crops: int = 1) -> PhotoDataset:
    return open_data(folder, "all", transform=RandomResizedCrop(8), seed=seed, crops_per_image=crops)


def assert_same(one: list[Batch], two: list[Batch]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x, y)


def test_sample_depends_on_seed_epoch_and_index_only(photos: Path) -> None:
    first, again = open_photos(photos), open_photos(photos)
    backwards = {index: again.sample(index, 2)[0] for index in reversed(range(24))}
    for index in range(24):
        assert torch.equal(first.sample(index, 2)[0], backwards[index])
    assert not torch.equal(first.sample(7, 2)[0], first.sample(7, 3)[0])
    assert not torch.equal(first.sample(7, 2)[0], open_photos(photos, seed=6).sample(7, 2)[0])


@pytest.mark.parametrize(("workers", "method"), [(1, "fork"), (2, "fork"), (2, "spawn")])
def test_batches_and_reports_are_independent_of_workers(photos: Path, workers: int, method: str) -> None:
    alone, helped = open_photos(photos), open_photos(photos)
    plain = make_loader(alone, 6, workers=0)
    loader = make_loader(helped, 6, workers=workers, start_method=method)  # type: ignore[arg-type]
    for epoch in range(2):
        plain.set_epoch(epoch)
        loader.set_epoch(epoch)
        assert_same(list(loader), list(plain))
    assert [name for name, _ in helped.unreadable] == ["03.png", "04.png", "11.png"] == [n for n, _ in alone.unreadable]
    assert helped.report() == alone.report()
    assert "3 of 24 photos" in helped.report() and str(photos / "03.png") in helped.report()


def test_unreadable_photo_is_replaced_by_the_next_readable_one(photos: Path) -> None:
    dataset = open_photos(photos)
    assert dataset.report() == ""
    batch = next(iter(make_loader(dataset, 24, shuffle=False, workers=0)))
    assert batch.indices[[3, 4, 11]].tolist() == [5, 5, 12]
    assert batch.replaced.nonzero().flatten().tolist() == list(BROKEN)
    assert not torch.equal(batch.images[3], batch.images[5])  # a different crop of the same photo


def test_report_is_truncated(photos: Path) -> None:
    dataset = open_photos(photos)
    list(make_loader(dataset, 24, workers=0))
    assert "2 more" in dataset.report(limit=1)


def test_data_without_any_readable_photo_raises(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(b"no")
    with pytest.raises(InputError, match=r"3 photos.*0\.jpg"):
        make_loader(open_data(tmp_path, "all"), 1, workers=1)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("length", "batch"), [(1, 1), (7, 2), (64, 8), (101, 5), (103, 9)])
def test_steps_cover_the_same_photos_for_any_number_of_ranks(
    length: int, batch: int, world: int, epoch: int, drop_last: bool
) -> None:
    def steps(sampler: EpochSampler) -> list[list[tuple[int, int]]]:
        sampler.set_epoch(epoch)
        items = list(sampler)
        assert len(items) == len(sampler)
        return [items[first : first + sampler.batch_size] for first in range(0, len(items), sampler.batch_size)]

    one = steps(EpochSampler(length, batch * world, seed=3, drop_last=drop_last, rank=0, world=1))
    ranks = [steps(EpochSampler(length, batch, seed=3, drop_last=drop_last, rank=r, world=world)) for r in range(world)]
    joint = [sorted(itertools.chain(*parts)) for parts in itertools.zip_longest(*ranks, fillvalue=[])]
    assert joint == [sorted(step) for step in one]
    flat = [index for step in one for _, index in step]
    assert len(set(flat)) == len(flat) == (length // (batch * world) * batch * world if drop_last else length)


def test_two_ranks_give_the_pixels_of_one_process_with_twice_the_batch(photos: Path) -> None:
    whole = list(make_loader(open_photos(photos), 8, rank=0, world=1))
    halves = [list(make_loader(open_photos(photos), 4, rank=rank, world=2)) for rank in range(2)]
    assert len(whole) == len(halves[0]) == len(halves[1]) == 3
    for step, batch in enumerate(whole):
        images = torch.cat([halves[0][step].images, halves[1][step].images])
        order = torch.cat([halves[0][step].indices, halves[1][step].indices])
        joint = {tuple(image.flatten().tolist()) for image in images}
        assert joint == {tuple(image.flatten().tolist()) for image in batch.images}
        assert sorted(order.tolist()) == sorted(batch.indices.tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_iteration_resumes_at_the_next_batch(photos: Path, workers: int) -> None:
    def epochs(first: int, loader: object) -> list[Batch]:
        batches: list[Batch] = []
        for epoch in range(first, 4):
            loader.set_epoch(epoch)  # type: ignore[attr-defined]
            batches += loader  # type: ignore[operator]
        return batches

    whole = epochs(0, make_loader(open_photos(photos), 4, workers=workers))
    assert len(whole) == 24
    stopped = make_loader(open_photos(photos), 4, workers=workers)
    stopped.set_epoch(2)
    for _ in itertools.islice(stopped, 4):
        state = stopped.state_dict()
    assert state == {"epoch": 2, "step": 4}
    resumed = make_loader(open_photos(photos), 4, workers=workers)
    resumed.load_state_dict(state)
    assert len(resumed) == 6
    assert_same(epochs(2, resumed), whole[16:])


def test_state_at_the_end_of_an_epoch_resumes_with_the_next(photos: Path) -> None:
    loader = make_loader(open_photos(photos), 8)
    list(loader)
    state = loader.state_dict()
    assert state == {"epoch": 0, "step": 3}
    resumed = make_loader(open_photos(photos), 8)
    resumed.load_state_dict(state)
    assert list(resumed) == []  # nothing is left of epoch 0
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    loader.set_epoch(1)
    assert_same(list(resumed), list(loader))


def test_interrupted_iteration_does_not_shorten_the_next(photos: Path) -> None:
    loader = make_loader(open_photos(photos), 8, shuffle=False)
    next(iter(loader))
    assert len(list(loader)) == len(list(loader)) == 3


def test_epoch_can_be_set_after_creating_the_iterator(photos: Path) -> None:
    early, late = make_loader(open_photos(photos), 8), make_loader(open_photos(photos), 8)
    iterator = iter(early)
    early.set_epoch(7)
    late.set_epoch(7)
    assert_same(list(iterator), list(late))


def test_loading_does_not_change_the_global_generator(photos: Path) -> None:
    state = torch.get_rng_state()
    list(make_loader(open_photos(photos), 8, workers=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_crops_of_one_photo_are_adjacent(photos: Path) -> None:
    loader = make_loader(open_photos(photos, crops=3), 12)
    batch = next(iter(loader))
    assert len(loader) == 6 and batch.images.shape == (12, 3, 8, 8) and len(batch.labels) == 12
    assert (batch.indices.view(4, 3) == batch.indices[::3, None]).all()
    assert not torch.equal(batch.images[0], batch.images[1])
    stacked, _ = open_photos(photos, crops=3).sample(0)
    assert stacked.shape == (3, 3, 8, 8) and torch.equal(stacked[0], open_photos(photos).sample(0)[0])
    with pytest.raises(InputError, match=r"\b10\b.*\b3\b"):
        make_loader(open_photos(photos, crops=3), 10)


def test_float_and_uint8_batches(photos: Path) -> None:
    floats = next(iter(make_loader(open_photos(photos), 4))).images
    raw = next(iter(make_loader(open_photos(photos), 4, floats=False))).images
    assert floats.dtype == torch.float32 and raw.dtype == torch.uint8
    assert torch.equal(floats, raw.float() / 255)


def test_validation_is_in_order_and_includes_the_last_photos(photos: Path) -> None:
    batches = list(make_loader(open_photos(photos), 5, shuffle=False))
    assert [len(batch.images) for batch in batches] == [5, 5, 5, 5, 4]
    readable = torch.cat([batch.indices[~batch.replaced] for batch in batches])
    assert readable.tolist() == [number for number in range(24) if number not in BROKEN]


@pytest.mark.parametrize("workers", [0, 1])
def test_photos_of_different_sizes_in_one_batch_raise(tmp_path: Path, workers: int) -> None:
    for side in (8, 9):
        Image.new("RGB", (side, 8)).save(tmp_path / f"{side}.png")
    dataset = open_data(tmp_path, "all")
    assert [batch.images.shape[-1] for batch in make_loader(dataset, 1, shuffle=False)] == [8, 9]
    with pytest.raises(InputError, match=r"^Photos .*\(8, 8\).*\(8, 9\)"):
        list(make_loader(dataset, 2, workers=workers))


def test_invalid_settings_raise(photos: Path) -> None:
    with pytest.raises(InputError, match=r"\b24\b.*\b64\b"):
        make_loader(open_photos(photos), 32, rank=0, world=2)
    with pytest.raises(InputError, match="-4"):
        EpochSampler(10, -4)
    with pytest.raises(InputError, match=r"seed.*-1"):
        open_photos(photos, seed=-1).sample(0)
    with pytest.raises(InputError, match=r"step.*-1"):
        EpochSampler(10, 2).set_start(-1)
    with pytest.raises(InputError, match=r"crops_per_image.*0"):
        open_photos(photos, crops=0)
    with pytest.raises(IndexError, match=r"24.*24 photos"):
        open_photos(photos).sample(24)


def test_number_of_workers_follows_the_cores(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = open_photos(photos), open_photos(photos)
    monkeypatch.setattr(PhotoDataset, "__len__", lambda self: 24 if self is small else 5000)
    chosen = {}
    for cores in (1, 2, 4, 64):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert choose_workers(small) == choose_workers(open_data("smoke")) == 0
        chosen[cores] = choose_workers(large)
    assert chosen == {1: 0, 2: 1, 4: 3, 64: 12}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert choose_workers(large) == 7


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"SLURM_PROCID": "3", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "1"}, 8),
        ({"SLURM_PROCID": "17", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "2"}, 4),
        ({"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "8"}, 1),  # in a job, but not started by srun
        ({"WORLD_SIZE": "2"}, 2),
    ],
)
def test_processes_of_every_launcher_are_counted(
    environment: dict[str, str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environment)
    assert local_processes() == processes


def test_smoke_batches() -> None:
    batch = next(iter(make_loader(open_data("smoke", transform=RandomCrop(64)), 16)))
    assert batch.images.shape == (16, 3, 64, 64) and 0.05 < batch.images.std() < 0.5


@pytest.mark.parametrize("crops", [1, 2])
def test_a_plain_data_loader_takes_the_data_set(photos: Path, crops: int) -> None:
    data = open_photos(photos, crops=crops)
    batches = list(DataLoader(data, batch_size=8))
    shape = (3, 8, 8) if crops == 1 else (2, 3, 8, 8)
    assert [images.shape for images, _ in batches] == [(8, *shape)] * 3
    images, labels = (torch.cat(column) for column in zip(*batches, strict=True))
    assert labels.tolist() == [-1] * 24
    for index, image in enumerate(images):
        assert torch.equal(image, data[index][0]) and torch.equal(image, data.sample(index)[0] / 255)
    with pytest.raises(IndexError):
        data[24]

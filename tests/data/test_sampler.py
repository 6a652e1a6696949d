"""Sampler: an epoch that is resumed on another number of ranks continues without losing or repeating a photo."""

from __future__ import annotations

import itertools
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from finola.data import CentreCrop, EpochSampler, make_loader, open_data

BATCH = 12  # photos of a step, divisible by 1, 2, 3, 4, 6 and 12 ranks
RANKS = st.sampled_from([rank for rank in range(1, BATCH + 1) if BATCH % rank == 0])


@st.composite
def shard_starts(draw: st.DrawFn) -> tuple[int, np.ndarray | None]:
    """Number of photos, and the first photo of every shard or None."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9))
    length = sum(sizes) + BATCH
    starts = np.cumsum([0, *sizes])
    return length, np.unique(starts) if draw(st.booleans()) else None


def part(data: tuple[int, np.ndarray | None], world: int, steps: slice, epoch: int) -> list[list[int]]:
    """Photos of some steps of an epoch, with the photos of all ranks together in each step."""
    length, shards = data
    ranks = []
    for rank in range(world):
        sampler = EpochSampler(length, BATCH // world, seed=2, shards=shards, rank=rank, world=world)
        sampler.load_state_dict({"epoch": epoch, "step": steps.start})
        items, size = [index for _, index in sampler], BATCH // world
        ranks.append([items[first : first + size] for first in range(0, len(items), size)])
    whole = [list(itertools.chain(*step)) for step in zip(*ranks, strict=True)]
    return whole[: steps.stop - steps.start]


@given(shard_starts(), RANKS, RANKS, RANKS, st.data())
def test_epoch_resumed_on_other_numbers_of_ranks_is_the_same_epoch(
    data: tuple[int, np.ndarray | None], first: int, second: int, third: int, draw: st.DataObject
) -> None:
    steps, epoch = data[0] // BATCH, draw.draw(st.integers(0, 3))
    stops = sorted(draw.draw(st.lists(st.integers(0, steps), min_size=2, max_size=2)))
    whole = part(data, 1, slice(0, steps), epoch)
    parts = zip((first, second, third), itertools.pairwise([0, *stops, steps]), strict=True)
    resumed = [step for world, (begin, end) in parts for step in part(data, world, slice(begin, end), epoch)]
    assert resumed == whole
    seen = list(itertools.chain(*resumed))
    assert len(set(seen)) == len(seen) == steps * BATCH and set(seen) <= set(range(data[0]))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), RANKS)
def test_ranks_read_different_shards_except_those_that_are_cut(sizes: list[int], world: int) -> None:
    starts = np.cumsum([0, *sizes[:-1]])
    length = sum(sizes)
    if length < BATCH:
        return
    samplers = [EpochSampler(length, BATCH // world, shards=starts, rank=rank, world=world) for rank in range(world)]
    read = [{int(np.searchsorted(starts, index, side="right")) for _, index in sampler} for sampler in samplers]
    shared = sum(map(len, read)) - len(set().union(*read))
    assert shared <= world - 1  # one shard at most between two neighbouring ranks


def test_order_of_shards_changes_with_the_epoch_and_mixes_them() -> None:
    sampler = EpochSampler(400, 8, shards=np.arange(0, 400, 100))
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([index for _, index in sampler])
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(400))
    assert {index // 100 for index in epochs[0][:8]} == {0, 1, 2, 3}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_tar_shards_are_divided_among_ranks(tmp_path: Path, world: int) -> None:
    for shard in range(4):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for number in range(6):
                data = BytesIO()
                Image.new("L", (8, 8), 10 * shard + number).save(data, "png")
                member = tarfile.TarInfo(f"{number}.png")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)
    dataset = open_data(tmp_path, "all", transform=CentreCrop(8))
    loaders = [make_loader(dataset, 4 // world, workers=0, rank=rank, world=world) for rank in range(world)]
    names = [{dataset.name(index) for batch in loader for index in batch.indices.tolist()} for loader in loaders]
    assert sum(map(len, names)) == len(set().union(*names)) == 24
    files = [{name.split("/")[0] for name in rank} for rank in names]
    assert sum(map(len, files)) == 4  # six steps of four photos: every lane is a shard

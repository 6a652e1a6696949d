"""Corrupt recipes, COCO folders, Parquet files, tar shards and .finola files are read or raise an input error."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("reader", "cases"), [("recipe", 60), ("coco", 150), ("parquet", 150), ("shards", 150), ("container", 100)]
)
def test_corrupt_files_are_read_or_raise_an_input_error(
    reader: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of the cases of benchmarks/fuzz_readers.py, in this process."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from fuzz_cases import Samples, run_case

    samples = Samples(tmp_path / "samples")
    outcomes = [(number, *run_case(samples, reader, 1, number, tmp_path / str(number))) for number in range(cases)]
    assert [outcome for outcome in outcomes if outcome[1] == "failed"] == []
    assert any(outcome == "refused" for _, outcome, _ in outcomes)

"""The measurement of a reconstruction reports every stage and which baselines were skipped."""

from __future__ import annotations

import pytest
from speed import reconstruction
from speed.reconstruction import bench_reconstruction


def test_every_station_has_its_time_memory_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "REPEATS", 1)
    monkeypatch.setattr(reconstruction, "find_spec", lambda name: None)
    result = bench_reconstruction("mf-w720/32x1@8:32")
    assert "left out" in result["baseline"]
    assert "time_over_baseline" not in result
    stations = result["stations"]
    for name in ("encode", "propagate", "decode", "all"):
        assert (
            stations[name]["seconds"] > 0 and stations[name]["peak_bytes"] > 0 and stations[name]["share_of_gemm"] > 0
        )
    parts = sum(stations[name]["gflop"] for name in ("encode", "propagate", "decode"))
    assert parts == pytest.approx(stations["all"]["gflop"])


def test_the_flops_of_propagation_are_the_formula_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "REPEATS", 1)
    result = bench_reconstruction("waves/32x1@8:32", quick=True)
    assert result["stations"]["propagate"]["gflop"] == pytest.approx(4 * 32**2 * (8 * 8 - 1) / 1e9, rel=0.15)
    assert "baseline" not in result

"""A claim holds only as clearly as its weakest comparison, and only beyond the noise over seeds."""

from __future__ import annotations

import math
import statistics

import pytest
from scipy import stats

from finola.paper.definitions import at_least, at_most, diverges, drops, gains_at_most, increasing, near
from finola.paper.verdict import FAILS, HOLDS, WEAKLY, Results, student_p, verdict


def psnr(**rows: list[float | None]) -> Results:
    return {name: [{"psnr": value} for value in values] for name, values in rows.items()}


@pytest.mark.parametrize(
    ("results", "status", "margin"),
    [
        (psnr(a=[20.0, 20.2, 20.1], b=[21.0, 21.1, 21.2]), HOLDS, 1.0),
        (psnr(a=[20.0, 20.2], b=[21.0, 21.1]), WEAKLY, 0.95),  # too few seeds
        (psnr(a=[20.0, 21.0, 20.0], b=[21.0, 20.5, 20.2]), WEAKLY, 0.7 / 3),  # the seeds disagree
        (psnr(a=[20.0], b=[21.0]), WEAKLY, 1.0),  # one seed has no noise estimate
        (psnr(a=[21.0, 21.1], b=[20.0, 20.2]), FAILS, -0.95),
        (psnr(a=[20.0, 20.2], b=[20.0, 20.2]), FAILS, 0.0),
        (psnr(a=[None, None, None], b=[20.0, 20.2, 20.1]), HOLDS, math.inf),  # a diverged row is worse than any other
        (psnr(a=[None, None], b=[20.0, 20.2]), WEAKLY, math.inf),
        (psnr(a=[20.0, 20.2], b=[None, None]), FAILS, -math.inf),
        (psnr(a=[None, 19.0, 19.0], b=[20.0, 20.2, 20.4]), WEAKLY, 1.2),
        (psnr(a=[None, None], b=[None, None]), FAILS, 0.0),
    ],
)
def test_an_order_holds_if_its_margin_exceeds_the_noise(results: Results, status: str, margin: float) -> None:
    found = verdict(increasing("a", "b"), results)
    assert found.status == status and found.margin == pytest.approx(margin)


def test_p_is_that_of_a_paired_t_test() -> None:
    low, high = [20.0, 21.0, 20.5, 20.2], [20.4, 21.1, 21.3, 20.3]
    differences = [b - a for a, b in zip(low, high, strict=True)]
    expected = stats.ttest_rel(high, low, alternative="greater").pvalue
    assert student_p(differences) == pytest.approx(expected, rel=1e-6)
    found = verdict(increasing("a", "b"), psnr(a=low, b=high))
    assert found.p == pytest.approx(expected, rel=1e-6)
    assert found.noise == pytest.approx(statistics.stdev(differences))
    assert student_p([-value for value in differences]) == pytest.approx(1 - expected)


def test_the_noise_is_that_of_differences_of_the_same_seed() -> None:
    found = verdict(increasing("a", "b"), psnr(a=[10.0, 20.0, 30.0], b=[11.0, 21.0, 31.0]))
    assert found.status == HOLDS and found.noise == 0


def test_the_weakest_comparison_decides() -> None:
    results = psnr(a=[20.0, 20.0], b=[21.0, 21.1], c=[20.9, 20.8])
    found = verdict([*increasing("a", "b"), *increasing("b", "c")], results)
    assert found.status == FAILS and found.comparison == "c above b"
    assert verdict(increasing("a", "b", "c"), results) == found
    assert verdict(increasing("a", "c", "b"), results).comparison == "b above c"
    assert verdict(increasing("a", "b", "c"), results, {"b": "two"}).comparison == "c above two"


def test_similar_rows() -> None:
    results = psnr(a=[20.0, 20.1, 20.0], b=[20.3, 20.4, 20.3], c=[25.0, 25.0, 25.0])
    assert verdict([near("a", "b", within=0.5)], results).status == HOLDS
    assert verdict([near("b", "a", within=0.5)], results).margin == pytest.approx(0.2)
    assert verdict([near("a", "c", within=0.5)], results).status == FAILS
    assert verdict([gains_at_most("a", "c", limit=0.5)], results).status == FAILS
    assert verdict([gains_at_most("c", "a", limit=0.5)], results).status == HOLDS


@pytest.mark.parametrize("lost", ["a", "b", "both"])
def test_a_diverged_run_is_near_nothing(lost: str) -> None:
    rows = {name: [None] * 3 if lost in (name, "both") else [20.0, 20.1, 20.2] for name in "ab"}
    for check in (near("a", "b", within=0.5), gains_at_most("a", "b", limit=0.5)):
        assert verdict([check], psnr(**rows)).status == FAILS


def test_divergence_and_bounds() -> None:
    assert verdict([diverges("a", floor=10.0)], psnr(a=[None, None, None])).status == HOLDS
    assert verdict([diverges("a", floor=10.0)], psnr(a=[None, 9.0, None])).status == WEAKLY
    assert verdict([diverges("a", floor=10.0)], psnr(a=[None, 20.0, None])).status == FAILS
    share: Results = {"a": [{"share": 0.9}, {"share": 0.8}, {"share": 0.85}]}
    assert verdict([at_least("a", "share", 0.5)], share).status == HOLDS
    assert verdict([at_least("a", "share", 0.95)], share).status == FAILS
    assert verdict([at_most("a", "share", 0.99)], share).status == HOLDS
    assert verdict([at_most("a", "share", 0.5)], share).status == FAILS
    assert verdict([at_most("a", "share", 0.5)], {"a": [{"share": None}] * 3}).status == FAILS


def test_a_drop_between_two_metrics_of_a_row() -> None:
    results: Results = {"a": [{"train": 25.0, "psnr": 16.0}, {"train": 25.0, "psnr": 16.2}]}
    assert verdict([drops("a", first="train", second="psnr", by=1.0)], results).margin == pytest.approx(7.9)
    assert verdict([drops("a", first="train", second="psnr", by=10.0)], results).status == FAILS

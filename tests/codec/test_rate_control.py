from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finola.codec.rate_control import finest_within


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=120), st.integers(0, 4000), st.one_of(st.none(), st.integers(1))
)
def test_result_equals_exhaustive_search(growth, budget, guess):
    sizes = [sum(growth[: level + 1]) for level in range(len(growth))]
    fitting = [level for level, size in enumerate(sizes, start=1) if size <= budget]
    found = finest_within(lambda level: level, lambda level: sizes[level - 1], len(sizes), budget, guess)
    assert found == max(fitting, default=1)


@pytest.mark.parametrize("doublings", [2, 6, 12])
@pytest.mark.parametrize("budget", [300, 1500, 9000])
def test_number_of_steps_is_logarithmic_for_typical_sizes(doublings, budget):
    tried = []

    def make(level: int) -> int:
        tried.append(level)
        return round(200 * 2 ** (doublings * (level / 100) ** 1.3))

    found = finest_within(make, lambda size: size, 100, budget)
    assert found <= budget
    assert len(tried) <= 2 * math.log2(100)

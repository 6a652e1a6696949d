"""The load test of the page recognises answers that are not the visitor's own, and memory that grows."""

from __future__ import annotations

import base64
from itertools import combinations

import numpy as np
import pytest
from page_load import judge
from page_visitor import (
    BAD,
    CLOSEST_DB,
    MODEL,
    Pixels,
    Tally,
    WrongAnswer,
    bad_file,
    check_comparison,
    decibels,
    encoded,
    made_photo,
)

from finola.app.photos import read
from finola.image_io import to_pillow

FLAT = [900.0, 1000.0] * 10


def answer(original: Pixels, rebuilt: Pixels) -> str:
    shown = {"Original": original, f"finola, {MODEL}": rebuilt}
    data = {title: base64.b64encode(encoded(image)).decode() for title, image in shown.items()}
    return "".join(f'<img src="data:image/png;base64,{words}" alt="{title}">' for title, words in data.items())


def test_photos_of_two_visitors_are_told_apart() -> None:
    photos = [made_photo(number, 1, (64, 48)) for number in range(20)]
    assert max(decibels(one, other) for one, other in combinations(photos, 2)) < CLOSEST_DB


def test_only_the_visitor_s_own_photo_is_accepted() -> None:
    mine, later, other = made_photo(3, 1), made_photo(3, 2), made_photo(4, 1, (134, 102))
    blurred = (mine.astype(int) + np.arange(mine.shape[1])[:, None] % 3).clip(0, 255).astype(np.uint8)
    check_comparison(answer(mine, blurred), mine)
    for original, rebuilt in ((later, later), (other, other), (mine, other)):
        with pytest.raises(WrongAnswer):
            check_comparison(answer(original, rebuilt), mine)
    with pytest.raises(WrongAnswer):
        check_comparison("<p>The photo was deleted.</p>", mine)


def test_a_scaled_photo_is_recognised() -> None:
    mine, other = made_photo(3, 0, (1200, 900)), made_photo(5, 0, (1200, 900))
    small, foreign = (made_photo(number, 0, (400, 300)) for number in (3, 5))
    check_comparison(answer(small, small), mine)
    with pytest.raises(WrongAnswer):
        check_comparison(answer(foreign, foreign), mine)
    check_comparison(answer(foreign, foreign), other)


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_bad_and_differ_between_visitors(kind: str) -> None:
    from finola import compress

    file = compress(to_pillow(made_tensor()), model="waves512").data
    name, data = bad_file(kind, b"<1-1>", file)
    with pytest.raises(ValueError):
        read(data, name)
    assert kind == "empty" or bad_file(kind, b"<2-1>", file)[1] != data


def made_tensor():  # type: ignore[no-untyped-def]
    import torch

    return torch.from_numpy(made_photo(0, 0).copy()).permute(2, 0, 1)


def test_the_verdict_needs_flat_memory_and_no_fault() -> None:
    def passed(tally: Tally, readings: list[float], tracebacks: int = 0, ended: bool = False) -> bool:
        return bool(judge(tally, readings, tracebacks, ended, 0)["passed"])

    good = {"photo": [1.0, 2.0], "bad file": [0.1]}
    assert passed(Tally(good), FLAT)
    assert not passed(Tally(good), [1000.0] * 10 + [1100.0] * 10)
    assert not passed(Tally(good, wrong=["visitor 1"]), FLAT)
    assert not passed(Tally(good, failed=["visitor 1"]), FLAT)
    assert not passed(Tally(good), FLAT, tracebacks=1)
    assert not passed(Tally(good), FLAT, ended=True)
    assert not passed(Tally({"bad file": [0.1]}), FLAT)

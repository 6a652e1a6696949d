"""Claims that are judged by the stored outputs of other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finola.reproduce.measured import MEASURED, METHODS, STUDY, MeasuredClaim
from finola.reproduce.statements import STATEMENTS
from finola.reproduce.verdicts import FAILS, NOT_RUN, WEAKLY

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.skipif(not RESULTS.is_dir(), reason="source distributions have no results/")
@pytest.mark.parametrize("claim", MEASURED.values(), ids=MEASURED)
def test_every_claim_is_judged_by_files_of_the_repository(claim: MeasuredClaim) -> None:
    assert all((RESULTS / file).is_file() for file in claim.files)
    assert all(STATEMENTS[label].examined.endswith(".md") for label in claim.labels)
    assert claim.judge(RESULTS).status != NOT_RUN


def test_statements_with_a_page_have_a_claim() -> None:
    pages = {label for label, statement in STATEMENTS.items() if statement.examined.endswith(".md")}
    assert pages == {label for claim in MEASURED.values() for label in claim.labels}


@pytest.mark.parametrize(
    ("lin", "status"), [((40.0, 45.0, 50.0), WEAKLY), ((50.0, 45.0, 55.0), FAILS), ((40.0, 45.0), NOT_RUN)]
)
def test_an_order_of_methods(tmp_path: Path, lin: tuple[float, ...], status: str) -> None:
    (tmp_path / STUDY).mkdir()
    for method, value in zip(("finola", "masked-e", "masked-b"), lin, strict=False):
        row = dict.fromkeys(("lin", "tran-1", "fine-tuned"), value)
        (tmp_path / STUDY / f"{method}-0.json").write_text(json.dumps(row))
    assert MEASURED["masking"].judge(tmp_path).status == status
    assert set(METHODS) >= {"finola", "masked-e", "masked-b"}

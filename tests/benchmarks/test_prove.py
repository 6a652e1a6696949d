"""The table of `make prove`: verdicts follow from the outcomes of tests, commands, checks and stored results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import promises
import pytest
from fuzz_cases import READERS
from promises import (
    OUT,
    PROMISES,
    ROOT,
    Evidence,
    Promise,
    clicks_pass,
    no_failures,
    nothing_unpickles,
    suite_passes,
)
from prove import FAIL, NOT_RUN, PASS, Outcome, as_json, judge_stored, run, table, verdict

TESTED = Evidence("tests", tests=("tests/test_files.py",))
MEASURED = Evidence(
    "measured",
    command=("x.py", "--out", OUT),
    result="x.json",
    holds=lambda found: "" if found["good"] else "it is bad",
)
PRINTED = Evidence("printed", command=("x.py",), result="x.json", holds=MEASURED.holds)
PASSED = {"configuration": "", "passed": 9, "failed": 0}
SUITE = {
    "code": "abc",
    "rows": [PASSED | {"configuration": name} for name in ("aten-default", "avx2", "threads-2", "threads-1")],
}


class Fake:
    """Replaces the processes that are started: writes or prints `content` and ends with `code`."""

    def __init__(self, code: int = 0, content: Any = None) -> None:
        self.code, self.content = code, content
        self.commands: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], captured: bool) -> tuple[int, str]:
        self.commands.append(list(arguments))
        if self.content is not None and not captured:
            Path(arguments[-1]).write_text(json.dumps(self.content), encoding="utf-8")
        return self.code, json.dumps(self.content) if captured else ""


@pytest.mark.parametrize(("code", "expected"), [(0, PASS), (1, FAIL), (5, FAIL)])
def test_tests_pass_if_pytest_does(code: int, expected: str) -> None:
    fake = Fake(code)
    assert run(TESTED, fake).verdict == expected
    assert "tests/test_files.py" in fake.commands[0]


@pytest.mark.parametrize("evidence", [MEASURED, PRINTED], ids=["written", "printed"])
def test_the_output_of_a_command_is_judged(evidence: Evidence) -> None:
    assert run(evidence, Fake(content={"good": True})).verdict == PASS
    failed = run(evidence, Fake(content={"good": False}))
    assert (failed.verdict, failed.note) == (FAIL, "it is bad")
    assert run(evidence, Fake(code=3)).verdict == FAIL


def test_a_command_that_writes_nothing_fails_whatever_its_code() -> None:
    assert run(MEASURED, Fake(code=0)).verdict == FAIL


def test_checks_are_judged_at_once(tmp_path: Path) -> None:
    for words, expected in (("", PASS), ("a.py:3", FAIL)):
        evidence = Evidence("checked", check=lambda words=words: words)  # type: ignore[misc]
        for outcome in (run(evidence, Fake()), judge_stored(evidence, tmp_path, "")):
            assert (outcome.verdict, outcome.note) == (expected, words)


def test_evidence_whose_needs_are_missing_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINOLA_DATA", raising=False)
    fake = Fake(content={"good": True})
    evidence = Evidence("on photos", command=MEASURED.command, holds=MEASURED.holds, needs="data")
    assert run(evidence, fake).verdict == NOT_RUN and fake.commands == []
    monkeypatch.setenv("FINOLA_DATA", "somewhere")
    assert run(evidence, fake).verdict == PASS


def test_stored_results_are_judged(tmp_path: Path) -> None:
    assert judge_stored(MEASURED, tmp_path, "").verdict == NOT_RUN
    for good, expected in ((True, PASS), (False, FAIL)):
        (tmp_path / "x.json").write_text(json.dumps({"good": good}), encoding="utf-8")
        assert judge_stored(MEASURED, tmp_path, "").verdict == expected
    assert judge_stored(Evidence("again", command=("x.py",), holds=MEASURED.holds), tmp_path, "").verdict == NOT_RUN


def test_stored_tests_are_those_of_the_whole_suite_and_of_this_code(tmp_path: Path) -> None:
    path = tmp_path / "portability.json"
    path.write_text(json.dumps(SUITE), encoding="utf-8")
    assert judge_stored(TESTED, tmp_path, "abc") == Outcome(PASS)
    older = judge_stored(TESTED, tmp_path, "def")
    assert older.verdict == NOT_RUN and "other code" in older.note
    path.write_text(json.dumps(SUITE | {"rows": SUITE["rows"][1:]}), encoding="utf-8")
    assert judge_stored(TESTED, tmp_path, "abc").verdict == FAIL


def test_a_suite_passes_only_with_all_configurations_and_no_failure() -> None:
    assert suite_passes(SUITE) == ""
    first, *others = SUITE["rows"]
    assert isinstance(first, dict)
    assert "2 tests in aten-default" in suite_passes({"rows": [first | {"failed": 2}, *others]})
    assert "aten-default" in suite_passes({"rows": others})
    assert "aten-default" in suite_passes({"rows": [first | {"passed": 0}, *others]})


def test_damaged_files_of_every_reader_were_read() -> None:
    found = {"cases": 11, "failures": 0, "readers": {name: {"cases": 1} for name in READERS}}
    assert no_failures(found) == ""
    assert "2 of 11" in no_failures(found | {"failures": 2})
    assert "exported" in no_failures(found | {"readers": {"container": {"cases": 11}}})
    assert "photo" in no_failures(found | {"readers": found["readers"] | {"photo": {"cases": 0}}})


def test_only_the_listed_calls_may_unpickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nothing_unpickles() == ""
    source = tmp_path / "src" / "finola" / "deployment"
    source.mkdir(parents=True)
    (source / "verification.py").write_text("torch.export.load(f)\n", encoding="utf-8")
    monkeypatch.setattr(promises, "ROOT", tmp_path)
    assert nothing_unpickles() == ""
    (source / "runtime.py").write_text("torch.export.load(f)\ntorch.jit.load(f)\n", encoding="utf-8")
    (source / "verification.py").write_text("torch.load(f)\n", encoding="utf-8")
    assert nothing_unpickles().split(", ") == [
        "deployment/runtime.py:1",
        "deployment/runtime.py:2",
        "deployment/verification.py:1",
    ]


@pytest.mark.parametrize(("change", "passes"), [({}, True), ({"minutes": 9.9}, False), ({"passed": False}, False)])
def test_clicks_pass_only_after_ten_minutes(change: dict[str, Any], passes: bool) -> None:
    found = {"minutes": 10.0, "passed": True, "tracebacks": 0, "browser_errors": [], "memory": {"growth": 1.0}}
    assert (clicks_pass(found | change) == "") == passes


def test_the_table_has_each_promise_with_its_evidence() -> None:
    promise = Promise("it holds", (TESTED, MEASURED))
    rows = table([(1, promise, [Outcome(PASS, 62.0), Outcome(FAIL, 1.5, "3 of 4 failed")])])
    assert [row[2] for row in rows] == ["FAIL", PASS, FAIL]
    assert rows[0][:2] == ("1", "it holds") and "3 of 4 failed" in rows[2][1]
    stored = as_json([(1, promise, [Outcome(PASS), Outcome(NOT_RUN)])], True)
    assert [one["verdict"] for one in stored["promises"]] == [PASS]
    assert verdict([]) == NOT_RUN


def test_every_promise_has_evidence_that_exists() -> None:
    for promise in PROMISES:
        assert promise.evidence
        for evidence in promise.evidence:
            assert sum(map(bool, (evidence.tests, evidence.command, evidence.check))) == 1, evidence.name
            assert bool(evidence.command) == (evidence.holds is not None), evidence.name
            scripts = [word for word in evidence.command if word.startswith("benchmarks/")]
            assert all((ROOT / script).exists() for script in scripts), evidence.name
            for test in evidence.tests:
                path, _, name = test.partition("::")
                assert (ROOT / path).exists() and f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), test

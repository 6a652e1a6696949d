"""Show that every promise of the package holds, and print one table: promise, evidence, pass or fail, time.

By default all tests and benchmarks of `promises.py` are run, which takes hours; those on photos need FINOLA_DATA. What
they write is judged and thrown away; run a benchmark itself to renew its file in results/. With --stored, the files in
results/ are judged instead, and the tests by the stored run of the whole suite. Exits with 1 if a promise fails.

    python benchmarks/prove.py [--stored] [--only 1 2 …] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promises import OUT, PROMISES, ROOT, Evidence, Promise, suite_passes

from finola.files import write_text

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
SUITE = "portability.json"
Execute = Callable[[Sequence[str], bool], tuple[int, str]]


@dataclass(frozen=True)
class Outcome:
    """Verdict on one piece of evidence; the note says what is wrong or missing."""

    verdict: str
    seconds: float = 0.0
    note: str = ""


def execute(arguments: Sequence[str], captured: bool) -> tuple[int, str]:
    """Run python with these arguments and return its exit code, and its standard output if asked for."""
    pipe = subprocess.PIPE if captured else None
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=pipe, text=True)
    return done.returncode, done.stdout or ""


def missing(needs: str) -> str:
    """What this machine lacks for a piece of evidence, or nothing."""
    lacks = {
        "data": not os.environ.get("FINOLA_DATA") and "FINOLA_DATA is not set",
        "chromium": not shutil.which("chromium") and "there is no Chromium",
        "linux": platform.system() != "Linux" and "it reads /proc of Linux",
    }
    return lacks.get(needs) or ""


def run(evidence: Evidence, execute: Execute = execute) -> Outcome:
    """Run the tests, command or check, and judge it."""
    if lacking := missing(evidence.needs):
        return Outcome(NOT_RUN, note=lacking)
    begin = time.monotonic()
    note = _faults(evidence, execute)
    return Outcome(FAIL if note else PASS, time.monotonic() - begin, note)


def _faults(evidence: Evidence, execute: Execute) -> str:
    if evidence.check is not None:
        return evidence.check()
    if evidence.tests:
        code, _ = execute(["-m", "pytest", "-n", "2", *evidence.tests], False)
        return f"pytest ended with code {code}" if code else ""
    assert evidence.holds is not None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [str(out) if word == OUT else word for word in evidence.command]
        code, printed = execute(command, OUT not in evidence.command)
        if OUT in evidence.command and out.exists():
            return evidence.holds(json.loads(out.read_text(encoding="utf-8")))
    if code or OUT in evidence.command:
        return f"{evidence.command[0]} ended with code {code}"
    return evidence.holds(json.loads(printed))


def judge_stored(evidence: Evidence, results: Path, code: str) -> Outcome:
    """Judge the stored output; tests by the stored run of the whole suite, which may be of another `code`."""
    if evidence.check is not None:
        note = evidence.check()
        return Outcome(FAIL if note else PASS, note=note)
    if not evidence.tests and not evidence.result:
        return Outcome(NOT_RUN, note="it has to be run")
    path = results / (SUITE if evidence.tests else evidence.result)
    if not path.exists():
        return Outcome(NOT_RUN, note=f"there is no results/{path.name}")
    found = json.loads(path.read_text(encoding="utf-8"))
    holds = suite_passes if evidence.tests else evidence.holds
    assert holds is not None
    if note := holds(found):
        return Outcome(FAIL, note=note)
    if path.name == SUITE and found["code"] != code:
        return Outcome(NOT_RUN, note=f"results/{SUITE} is of other code")
    return Outcome(PASS)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """A promise fails with any of its evidence, and is not shown if none of it was run.

    >>> verdict([Outcome(PASS), Outcome(NOT_RUN)]), verdict([Outcome(PASS), Outcome(FAIL)]), verdict([Outcome(NOT_RUN)])
    ('pass', 'fail', 'not run')
    """
    verdicts = [outcome.verdict for outcome in outcomes]
    return next((one for one in (FAIL, PASS) if one in verdicts), NOT_RUN)


def table(found: Sequence[tuple[int, Promise, Sequence[Outcome]]]) -> list[tuple[str, str, str, str]]:
    """Rows of the table: each promise with its verdict, then its evidence."""
    rows = []
    for number, promise, outcomes in found:
        total = sum(outcome.seconds for outcome in outcomes)
        rows.append((str(number), promise.words, verdict(outcomes).upper(), _time(total)))
        for evidence, outcome in zip(promise.evidence, outcomes, strict=True):
            note = f" ({outcome.note})" if outcome.note else ""
            rows.append(("", f"  {evidence.name}{note}", outcome.verdict, _time(outcome.seconds)))
    return rows


def _time(seconds: float) -> str:
    """
    >>> _time(0.2), _time(61), _time(7200)
    ('', '1.0 min', '120.0 min')
    """
    return "" if seconds < 1 else f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def show(rows: Sequence[tuple[str, str, str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table("", "promise and its evidence", "verdict", "time", box=box.SIMPLE_HEAD)
    for row in rows:
        if row[0]:
            grid.add_section()
        grid.add_row(*row, style="bold" if row[0] else "")
    Console(width=None if sys.stdout.isatty() else 140).print(grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stored", action="store_true", help="judge the files in results/ instead of running")
    parser.add_argument("--only", type=int, nargs="+", choices=range(1, len(PROMISES) + 1), metavar="NUMBER")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    found = []
    for number, promise in enumerate(PROMISES, 1):
        if args.only and number not in args.only:
            continue
        outcomes = []
        for evidence in promise.evidence:
            if args.stored:
                from portability import digest_of_code

                outcomes.append(judge_stored(evidence, ROOT / "results", digest_of_code()))
            else:
                print(f"== {evidence.name}", flush=True)
                outcomes.append(run(evidence))
        found.append((number, promise, outcomes))
    show(table(found))
    if args.out:
        write_text(args.out, json.dumps(as_json(found, args.stored), indent=1) + "\n")
    sys.exit(any(verdict(outcomes) == FAIL for _, _, outcomes in found))


def as_json(found: Sequence[tuple[int, Promise, Sequence[Outcome]]], stored: bool) -> dict[str, Any]:
    promises = [
        {
            "promise": promise.words,
            "verdict": verdict(outcomes),
            "evidence": [
                {"name": evidence.name} | asdict(outcome)
                for evidence, outcome in zip(promise.evidence, outcomes, strict=True)
            ],
        }
        for _, promise, outcomes in found
    ]
    return {"judged": "stored results" if stored else "run", "promises": promises}


if __name__ == "__main__":
    main()

"""Portability: explicit text encodings, and the report of `make portability`."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import finola

ROOT = Path(__file__).parents[1]
REPORT = """<testsuites><testsuite name="pytest" tests="4" time="3.5">
<testcase classname="tests.a" name="test_passes"/>
<testcase classname="tests.a" name="test_fails"><failure message="assert 1 == 2"/></testcase>
<testcase classname="tests.b" name="test_has_no_fixture"><error message="fixture not found"/></testcase>
<testcase classname="tests.b" name="test_needs_a_browser"><skipped message="no browser"/></testcase>
</testsuite></testsuites>"""


def text_files_opened(tree: ast.Module) -> Iterator[ast.Call]:
    """Every call that reads or writes a text file: Path.read_text, Path.write_text, and open in a text mode."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
        keywords = {keyword.arg for keyword in call.keywords}
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        modes = [mode for mode in modes if set(mode) <= set("rwaxbt+")]
        is_text = "b" not in modes[0] if modes else bool(keywords & {"newline", "errors"})
        is_path_method = isinstance(call.func, ast.Attribute) and name in ("read_text", "write_text")
        if is_path_method or (name == "open" and is_text):
            yield call


def test_every_text_file_of_the_package_names_its_encoding() -> None:
    """The default encoding depends on the system and is often not UTF-8 on Windows."""
    faults = [
        f"{path.name}:{call.lineno}"
        for path in Path(finola.__file__).parent.rglob("*.py")
        for call in text_files_opened(ast.parse(path.read_text(encoding="utf-8")))
        if not any(keyword.arg == "encoding" for keyword in call.keywords)
    ]
    assert faults == []


def test_a_report_of_pytest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    script = runpy.run_path(str(ROOT / "benchmarks" / "portability.py"))
    assert script["read_counts"](tmp_path / "report.xml") == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "failures": ["tests.a::test_fails", "tests.b::test_has_no_fixture"],
    }

"""The hosted workflows run third-party code at a fixed commit only, and fail on a known vulnerability."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

WORKFLOWS = sorted((Path(__file__).parents[1] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit_with_their_release(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))
    others = [action for action in used if not action.startswith("./")]
    assert others and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", action) for action in others), others


@pytest.mark.skipif(shutil.which("bash") is None, reason="the step is a script of bash")
@pytest.mark.parametrize("code", [0, 1])
def test_the_audit_fails_exactly_if_pip_audit_does(code: int, tmp_path: Path) -> None:
    (workflow,) = (path for path in WORKFLOWS if path.stem == "ci")
    steps = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]["audit"]["steps"]
    (script,) = (step["run"] for step in steps if step.get("name") == "pip-audit")
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\nexit {code}\n")
    tool.chmod(0o755)
    places = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    done = subprocess.run(["bash", "-e", "-c", script], env=os.environ | places, cwd=tmp_path, capture_output=True)
    assert done.returncode == code and (tmp_path / "summary").read_text()

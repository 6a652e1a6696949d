"""Standard output and standard error that are closed, full, or read by nobody."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTING = """
import sys
import finola.cli.verbs.models
from finola.cli import main
finola.cli.verbs.models.run = lambda args: print("x" * 100_000)
sys.exit(main(["models"]))
"""
COMMANDS = {
    "long": ["-c", PRINTING],
    "table": ["-m", "finola.cli", "models", "tile32"],
    "json": ["-m", "finola.cli", "info", "--json"],
    "help": ["-m", "finola.cli", "--help"],
    "verb help": ["-m", "finola.cli", "latent", "fade", "--help"],
    "version": ["-m", "finola.cli", "--version"],
}
posix = pytest.mark.skipif(os.name != "posix", reason="closes file descriptors with a POSIX shell")


def shell(arguments: list[str], redirection: str, unbuffered: bool = False) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1" if unbuffered else ""}
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_pipe_without_reader_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, *command], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@posix
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_closed_output_is_an_error_in_one_line(command):
    done = shell(command, ">&-")
    assert done.returncode == 2 and done.stderr.startswith("finola: ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_full_output_is_an_error_in_one_line(command, unbuffered):
    done = shell(command, ">/dev/full", unbuffered)
    assert done.returncode == 2 and done.stderr.startswith("finola") and done.stderr.count("\n") == 1
    assert os.strerror(errno.ENOSPC) in done.stderr


@posix
@pytest.mark.parametrize("redirection", ["2>&-", "2>&- >&-", "2>/dev/full"])
@pytest.mark.parametrize("arguments", [["waves", "no-such-model"], ["no-such-verb"]], ids=" ".join)
def test_the_exit_code_tells_when_no_message_can(arguments, redirection):
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    done = shell(["-m", "finola.cli", *arguments], redirection)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")

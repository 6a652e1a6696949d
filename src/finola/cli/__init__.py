"""finola VERB …: one file in `finola.cli.verbs` per verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence

import finola
import finola.cli.verbs
from finola.cli.output import complain, is_bad_input, sentence


def build_parser() -> argparse.ArgumentParser:
    """The parser of every verb that `finola.cli.verbs` holds."""
    parser = argparse.ArgumentParser(
        prog="finola", description="Images as one-way waves: one vector regrows the whole picture."
    )
    parser.add_argument("--version", action="version", version=f"finola {finola.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for found in sorted(pkgutil.iter_modules(finola.cli.verbs.__path__), key=lambda module: module.name):
        if found.name.startswith("_"):
            continue
        command = importlib.import_module(f"finola.cli.verbs.{found.name}")
        verb = verbs.add_parser(found.name, help=command.HELP, description=command.HELP)
        command.add_arguments(verb)
        verb.set_defaults(run=command.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. Bad input is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a console that cannot show λ shows \u03bb
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(arguments)
    try:
        code: int = args.run(args) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        _discard_output()
        return 0
    except KeyboardInterrupt:
        complain(args.verb, "stopped.")
        return 130
    except Exception as error:  # of any class, because libraries have their own; a defect is raised again
        if not is_bad_input(error):
            raise
        complain(args.verb, sentence(error))
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return 2


def _discard_output() -> None:
    """Send what is left in the buffer of standard output nowhere; Python would raise once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Command line `finola VERB …`: one module per verb in `finola.cli.verbs`, heavy imports only when a verb runs."""

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
from finola.cli.output import describe_error, is_bad_input, print_error


def build_parser() -> argparse.ArgumentParser:
    """Build the argument parser with all verbs of `finola.cli.verbs`."""
    parser = argparse.ArgumentParser(
        prog="finola", description="FINOLA: reconstruct, compress and analyse images with one-way wave equations."
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
    """Run a verb and return its exit code. Invalid input prints one line on standard error and returns 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print \u03bb on consoles that cannot encode λ
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(arguments)
    try:
        code: int = args.run(args) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        _discard_output()
        return 0
    except KeyboardInterrupt:
        print_error(args.verb, "interrupted.")
        return 130
    except Exception as error:  # any class, because libraries define their own; defects are re-raised
        if not is_bad_input(error):
            raise
        print_error(args.verb, describe_error(error))
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return 2


def _discard_output() -> None:
    """Redirect standard output to the null device, so that flushing at exit does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

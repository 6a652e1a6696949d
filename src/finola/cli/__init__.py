"""Command line `finola VERB …`; heavy imports only when a verb runs."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import finola
from finola.cli.output import describe_error, is_bad_input, print_error, print_line
from finola.cli.verbs import Verb
from finola.errors import InputError

GROUPS = {
    "photos": {
        "reconstruct": "photos",
        "compress": "codec",
        "decompress": "codec",
        "info": "info",
        "embed": "embed",
        "classify": "photos",
        "detect": "detect",
        "segment": "detect",
    },
    "models": {"models": "models", "export": "export", "evaluate": "evaluate", "compare": "compare", "probe": "probe"},
    "training": {"train": "train", "plan": "plan", "reproduce": "reproduce", "calibrate": "codec", "spectrum": "waves"},
    "analysis": {"waves": "waves", "latent": "latent", "curvature": "maps", "grow": "maps"},
    "web page": {"app": "app"},
}
"""Verbs by group, each with its module in `finola.cli.verbs`."""


class UsageError(InputError):
    """Invalid command-line arguments."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. See {self.prog} --help.")


class Version(argparse.Action):
    """Option that prints the version and exits; the version is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"finola {finola.__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Build the argument parser with all verbs."""
    found = {name: _verb(name, module) for group in GROUPS.values() for name, module in group.items()}
    lines = [
        f"{group}:\n" + "".join(f"  {name:<12} {found[name].help}\n" for name in names)
        for group, names in GROUPS.items()
    ]
    parser = Parser(
        prog="finola",
        usage="finola VERB …",
        description="FINOLA: reconstruct, compress and analyse images with one-way wave equations.",
        epilog="\n".join(lines) + "\nfinola VERB --help describes the options of a verb.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, help=argparse.SUPPRESS, prog="finola")
    for name, verb in found.items():
        one = verbs.add_parser(name, description=verb.help)
        verb.add_arguments(one)
        one.set_defaults(run=verb.run)
    return parser


def _verb(name: str, module: str) -> Verb:
    found = importlib.import_module(f"finola.cli.verbs.{module}")
    if hasattr(found, "VERBS"):
        verb: Verb = found.VERBS[name]
        return verb
    return Verb(found.HELP, found.add_arguments, found.run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code. Invalid input prints one line on standard error and returns 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print \u03bb on consoles that cannot encode λ
            stream.reconfigure(errors="backslashreplace")
    try:
        args = build_parser().parse_args(arguments)
    except UsageError as error:
        print_line(str(error), sys.stderr)
        return 2
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

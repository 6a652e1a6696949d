"""Command line `finola VERB …`; heavy imports only when a verb runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import finola
from finola.cli.output import describe_error, discard, is_bad_input, print_error, say
from finola.cli.verbs import Verb
from finola.config import nearest
from finola.errors import InputError
from finola.jobs.worker import Terminated, terminating

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
        end = "" if message.endswith(("?", ".")) else "."
        raise UsageError(f"{self.prog}: {message}{end} See {self.prog} --help.")

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file, flush=True)  # argparse ignores that a disk is full

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            suggestion = nearest(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is unknown: {suggestion}")

    def reject(self, words: Sequence[str]) -> NoReturn:
        """Report arguments that are left over, with the options whose names are similar."""
        options = [option for action in self._actions for option in action.option_strings]
        suggestion = f": {nearest(words[0], options)}" if words[0].startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{suggestion}")


class Version(argparse.Action):
    """Option that prints the version and exits; the version is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"finola {finola.__version__}", flush=True)
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
        one.set_defaults(run=verb.run, parser=one)
    return parser


def _verb(name: str, module: str) -> Verb:
    found = importlib.import_module(f"finola.cli.verbs.{module}")
    if hasattr(found, "VERBS"):
        verb: Verb = found.VERBS[name]
        return verb
    return Verb(found.HELP, found.add_arguments, found.run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code. Invalid input prints one line on standard error and returns 2."""
    if sys.stderr is None:  # closed; `print` would write to standard output instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        say("finola: Standard output is closed. Redirect it to a file, or to /dev/null to discard it.")
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print \u03bb on consoles that cannot encode λ
            stream.reconfigure(errors="backslashreplace")
    args = argparse.Namespace(verb="")
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if "" in words:
            raise UsageError("finola: An argument is empty. Remove it, or set the shell variable that it comes from.")
        args, rest = build_parser().parse_known_args(words)
        if rest:
            args.parser.reject(rest)
        # A run of training writes a checkpoint on SIGTERM and handles it itself.
        with contextlib.nullcontext() if args.verb == "train" else terminating():
            code: int = args.run(args) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        discard(sys.stdout)
        return 0
    except KeyboardInterrupt as error:
        print_error(args.verb, str(error) or "interrupted.")
        return 143 if isinstance(error, Terminated) else 130
    except UsageError as error:
        say(str(error))
        return 2
    except Exception as error:  # any class, because libraries define their own; defects are re-raised
        if not is_bad_input(error):
            raise
        try:
            sys.stdout.flush()
        except OSError:
            discard(sys.stdout)
        print_error(args.verb, describe_error(error, _inputs(args)))
        return 2


def _inputs(args: argparse.Namespace) -> str:
    """First inputs of a command as they were given, to be named if an error does not."""
    keys = ("photo", "first", "photos", "files", "file", "data", "images", "recipe", "model")
    found = [value for key in keys if (value := getattr(args, key, None))]
    return " ".join(found[0][:3]) if found and isinstance(found[0], list) else str(found[0]) if found else ""

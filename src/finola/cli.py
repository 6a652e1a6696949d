"""finola VERB …: one file in `finola.commands` per verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import finola
import finola.commands


def build_parser() -> argparse.ArgumentParser:
    """The parser of every verb that `finola.commands` holds."""
    parser = argparse.ArgumentParser(
        prog="finola", description="Images as one-way waves: one vector regrows the whole picture."
    )
    parser.add_argument("--version", action="version", version=f"finola {finola.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for found in sorted(pkgutil.iter_modules(finola.commands.__path__), key=lambda module: module.name):
        if found.name.startswith("_"):
            continue
        command = importlib.import_module(f"finola.commands.{found.name}")
        verb = verbs.add_parser(found.name, help=command.HELP, description=command.HELP)
        command.add_arguments(verb)
        verb.set_defaults(run=command.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Bad input is one sentence on standard error and exit code 2."""
    args = build_parser().parse_args(arguments)
    try:
        return args.run(args) or 0
    except (ValueError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        print(f"finola {args.verb}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain once more at its end
        return 0
    except KeyboardInterrupt:
        print(f"finola {args.verb}: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

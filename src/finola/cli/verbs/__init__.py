"""Commands of `finola`: a module for each group of verbs, or for one large verb.

A module of one verb has `HELP`, `add_arguments(parser)` and `run(args)`; a module of several has `VERBS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Verb(NamedTuple):
    """A command: its one-line description, its arguments, and the function that runs it and returns the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]

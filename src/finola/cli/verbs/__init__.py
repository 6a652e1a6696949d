"""Verbs of the command line. Each module defines `HELP`, `add_arguments(parser)` and `run(args)`."""

"""The verbs of the command line: each file has `HELP`, `add_arguments(parser)` and `run(args)`, and imports late."""

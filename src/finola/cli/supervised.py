"""Entry point of `python -m finola.cli.supervised`: a command that gets SIGTERM when its standard input is closed.

The operating system closes the pipe when the process at its other end is killed.
"""

import os
import signal
import sys
import threading

from finola.cli import main


def _watch() -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock would block the end of the interpreter
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(main())

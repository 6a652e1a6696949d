"""Entry point of `python -m finola.cli`."""

import sys

from finola.cli import main

sys.exit(main())

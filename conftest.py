from __future__ import annotations

import math
import random
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch

from finola.cli import output

# The same examples in every run, and no time limit per example: a test passes or fails on its code alone.
hypothesis.settings.register_profile("finola", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("finola")


@pytest.fixture(autouse=True)
def _independent_of_other_tests() -> Iterator[None]:
    """Start every test from the same seeds, and undo what it changes in torch's global settings."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    output.PROGRESS_SECONDS = math.inf  # what a command prints must not depend on how long it takes
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_flush_denormal(False)  # training turns it on for the process, and Hypothesis needs subnormal numbers

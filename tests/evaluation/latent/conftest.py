"""The model that the tests of q's space look into."""

from __future__ import annotations

import pytest

import finola
from finola.autoencoder import Autoencoder

WAVES = "waves/64x1@8:32"


@pytest.fixture(scope="package")
def model() -> Autoencoder:
    return finola.load(WAVES)

"""FINOLA: an image is one vector, and a first-order norm+linear recurrence regrows the whole picture from it.

>>> import finola
>>> model = finola.create("waves/256x1@16:64")
>>> q = model.encode(images); z = model.propagate(q); out = model.decode(z)     # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder as Autoencoder
    from finola.codec.codec import compress as compress
    from finola.codec.codec import decompress as decompress
    from finola.config import ModelConfig as ModelConfig
    from finola.propagation import Coefficients as Coefficients
    from finola.propagation import propagate as propagate
    from finola.wave.analysis import waves as waves
    from finola.wave.initialisation import initialise_waves as initialise_waves
    from finola.zoo import create as create
    from finola.zoo import load as load

__version__ = "0.1.0"

_HOMES = {
    "Autoencoder": "finola.autoencoder",
    "Coefficients": "finola.propagation",
    "ModelConfig": "finola.config",
    "compress": "finola.codec.codec",
    "create": "finola.zoo",
    "decompress": "finola.codec.codec",
    "initialise_waves": "finola.wave.initialisation",
    "load": "finola.zoo",
    "propagate": "finola.propagation",
    "waves": "finola.wave.analysis",
}
__all__ = [
    "Autoencoder",
    "Coefficients",
    "ModelConfig",
    "compress",
    "create",
    "decompress",
    "initialise_waves",
    "load",
    "propagate",
    "waves",
]


def __getattr__(name: str) -> object:
    """Public names load on first use, so that `import finola` and `finola --help` stay fast."""
    if name not in _HOMES:
        raise AttributeError(f"finola has no {name!r}; its public names are {', '.join(_HOMES)}.")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

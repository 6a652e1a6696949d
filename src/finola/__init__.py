"""FINOLA: encode an image as one vector q and reconstruct it with a first-order norm+linear recurrence.

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
    from finola.model_zoo import create as create
    from finola.model_zoo import load as load
    from finola.model_zoo import load_classifier as load_classifier
    from finola.model_zoo import load_detector as load_detector
    from finola.model_zoo import load_encoder as load_encoder
    from finola.propagation import Coefficients as Coefficients
    from finola.propagation import propagate as propagate
    from finola.wave.analysis import waves as waves
    from finola.wave.initialisation import initialise_waves as initialise_waves

    __version__: str

_MODULES = {
    "Autoencoder": "finola.autoencoder",
    "Coefficients": "finola.propagation",
    "ModelConfig": "finola.config",
    "compress": "finola.codec.codec",
    "create": "finola.model_zoo",
    "decompress": "finola.codec.codec",
    "initialise_waves": "finola.wave.initialisation",
    "load": "finola.model_zoo",
    "load_classifier": "finola.model_zoo",
    "load_detector": "finola.model_zoo",
    "load_encoder": "finola.model_zoo",
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
    "load_classifier",
    "load_detector",
    "load_encoder",
    "propagate",
    "waves",
]


def __getattr__(name: str) -> object:
    """Import a public name on first access, so that `import finola` and `finola --help` stay fast."""
    if name == "__version__":
        return _version()
    if name not in _MODULES:
        raise AttributeError(f"Module finola has no attribute {name!r}; public names: {', '.join(_MODULES)}.")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, "__version__"])


def _version() -> str:
    """Version of the installed distribution; that of a checkout imported by path alone is not known."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("finola")
    except PackageNotFoundError:
        return "0+unknown"

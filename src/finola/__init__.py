"""FINOLA: encode an image as one vector q and reconstruct it with a first-order norm+linear recurrence.

>>> import finola
>>> model = finola.load("tile32")
>>> q = model.encode(images); z = model.propagate(q); out = model.decode(z)     # doctest: +SKIP
>>> latents = finola.encode(model, photo, budget=4096)                          # doctest: +SKIP
>>> photo = finola.decode(model, latents)                                       # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder as Autoencoder
    from finola.codec.codec import compress as compress
    from finola.codec.codec import decompress as decompress
    from finola.config import ModelConfig as ModelConfig
    from finola.image_io import read_photo as read_photo
    from finola.latents import Latents as Latents
    from finola.masked import MaskedFinola as MaskedFinola
    from finola.model_zoo import create as create
    from finola.model_zoo import list_models as list_models
    from finola.model_zoo import load as load
    from finola.model_zoo import load_classifier as load_classifier
    from finola.model_zoo import load_detector as load_detector
    from finola.model_zoo import load_encoder as load_encoder
    from finola.photos import decode as decode
    from finola.photos import encode as encode
    from finola.propagation import Coefficients as Coefficients
    from finola.propagation import propagate as propagate
    from finola.transitions import Propagation as Propagation
    from finola.wave.analysis import waves as waves
    from finola.wave.initialisation import initialise_waves as initialise_waves

    __version__: str

_MODULES = {
    "Autoencoder": "finola.autoencoder",
    "Coefficients": "finola.propagation",
    "Latents": "finola.latents",
    "MaskedFinola": "finola.masked",
    "ModelConfig": "finola.config",
    "Propagation": "finola.transitions",
    "compress": "finola.codec.codec",
    "create": "finola.model_zoo",
    "decode": "finola.photos",
    "decompress": "finola.codec.codec",
    "encode": "finola.photos",
    "initialise_waves": "finola.wave.initialisation",
    "list_models": "finola.model_zoo",
    "load": "finola.model_zoo",
    "load_classifier": "finola.model_zoo",
    "load_detector": "finola.model_zoo",
    "load_encoder": "finola.model_zoo",
    "propagate": "finola.propagation",
    "read_photo": "finola.image_io",
    "waves": "finola.wave.analysis",
}
__all__ = list(_MODULES)


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
    return sorted([*__all__, "__version__"])


def _version() -> str:
    """Version of the installed distribution; that of a checkout imported by path alone is not known."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("finola")
    except PackageNotFoundError:
        return "0+unknown"

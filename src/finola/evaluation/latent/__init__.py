"""Statistics of q over an image set, and operations on q."""

from finola.evaluation.latent.operations import (
    Encoded,
    coordinates,
    decode,
    encode,
    fade,
    interpolate,
    mirror,
    neighbours,
    on_sphere,
    project,
    sample,
)
from finola.evaluation.latent.statistics import Statistics, fit, stored_statistics

__all__ = [
    "Encoded",
    "Statistics",
    "coordinates",
    "decode",
    "encode",
    "fade",
    "fit",
    "interpolate",
    "mirror",
    "neighbours",
    "on_sphere",
    "project",
    "sample",
    "stored_statistics",
]

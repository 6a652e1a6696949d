"""Looking at q: its statistics over an image set, moves in its space, and what they draw."""

from finola.evaluation.latent.operations import (
    Encoded,
    coordinates,
    draw,
    encode,
    fade,
    mirror,
    mix,
    neighbours,
    on_sphere,
    project,
    sample,
)
from finola.evaluation.latent.statistics import Statistics, fit, kept_with

__all__ = [
    "Encoded",
    "Statistics",
    "coordinates",
    "draw",
    "encode",
    "fade",
    "fit",
    "kept_with",
    "mirror",
    "mix",
    "neighbours",
    "on_sphere",
    "project",
    "sample",
]

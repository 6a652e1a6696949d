"""Recipes: what a training run is, as dataclasses and YAML. Reading one imports neither torch nor Fabric."""

from __future__ import annotations

from finola.errors import require

require("yaml")

"""Training: a recipe configures one loop (`loop.py`) and one module per task. Runs resume exactly from any step.

>>> from finola.training import load_recipe, train
>>> train(load_recipe("smoke", ["schedule.epochs=2"]), "runs/smoke")     # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from finola.errors import require

if TYPE_CHECKING:
    from finola.recipes.loading import list_recipes as list_recipes
    from finola.recipes.loading import load_recipe as load_recipe
    from finola.recipes.recipe import Recipe as Recipe
    from finola.training.model_export import export as export
    from finola.training.run import Outcome as Outcome
    from finola.training.run import train as train

_MODULES = {
    "Outcome": "finola.training.run",
    "Recipe": "finola.recipes.recipe",
    "export": "finola.training.model_export",
    "list_recipes": "finola.recipes.loading",
    "load_recipe": "finola.recipes.loading",
    "train": "finola.training.run",
}
__all__ = ["Outcome", "Recipe", "export", "list_recipes", "load_recipe", "train"]

require("lightning", "tensorboard", "yaml")


def __getattr__(name: str) -> object:
    """Import public names on first use: reading a recipe needs neither torch nor Fabric."""
    if name not in _MODULES:
        raise AttributeError(f"finola.training has no attribute {name!r}; available: {', '.join(_MODULES)}.")
    return getattr(importlib.import_module(_MODULES[name]), name)

"""Training: one recipe, one Lightning Trainer, one thin module per task; a run can be killed at any step and resumed.

>>> from finola.training import load_recipe, train
>>> train(load_recipe("smoke", ["schedule.epochs=2"]), "runs/smoke")     # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finola.training.config import Recipe as Recipe
    from finola.training.loading import list_recipes as list_recipes
    from finola.training.loading import load_recipe as load_recipe
    from finola.training.model_export import export as export
    from finola.training.trainer import Outcome as Outcome
    from finola.training.trainer import train as train

_HOMES = {
    "Outcome": "finola.training.trainer",
    "Recipe": "finola.training.config",
    "export": "finola.training.model_export",
    "list_recipes": "finola.training.loading",
    "load_recipe": "finola.training.loading",
    "train": "finola.training.trainer",
}
__all__ = ["Outcome", "Recipe", "export", "list_recipes", "load_recipe", "train"]


def __getattr__(name: str) -> object:
    """Reading a recipe needs neither torch nor Lightning, so they load on first use."""
    if name not in _HOMES:
        raise AttributeError(f"finola.training has no {name!r}; its names are {', '.join(_HOMES)}.")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Recipes derived from the tables: `paper/…`, their small twins `cpu/…`, and those of recognition.

Each entry of `RECIPES` has the form of a YAML recipe: a `base` and the settings that differ from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finola.config import RECURRENT, ModelConfig
from finola.paper.definitions import TWIN, Same
from finola.paper.tables import EVERYTHING, ROWS, cite, row_of

_TABLES = {table.name: table for table in EVERYTHING if table.name}
_REPEATED = {name: row.of for name, row in ROWS.items() if isinstance(row, Same)}


def _paper(name: str) -> dict[str, Any]:
    table, row = _TABLES[name.partition("/")[0]], row_of(name)
    about = f"{cite(table.label, table.part)}: {ROWS[name].about}"
    return {"base": "_paper", "about": about, "model": {"name": row.model}, "paper_psnr": row.psnr}


def _cpu(name: str) -> dict[str, Any]:
    config = ModelConfig.parse(TWIN.model(row_of(name).model))
    model = {"name": str(config)} | ({"transition_scale": 0.3} if config.transition in RECURRENT else {})
    return {"base": "_fit", "about": f"small twin of paper/{name}", "model": model}


RECIPES: dict[str, dict[str, Any]] = (
    {f"paper/{name}": _paper(name) for name in ROWS}
    | {f"cpu/{name}": _cpu(name) for name in ROWS}
    | {
        name: settings | {"about": f"{cite(table.label)}: {settings['about']}"}
        for table in EVERYTHING
        for name, settings in table.recipes.items()
    }
)
"""The settings of every derived recipe by name."""


def _twin_aliases() -> Iterator[tuple[str, str]]:
    """Twins with the model of another twin. Some maps of the paper have the same twin."""
    first: dict[str, str] = {}
    for name in sorted(ROWS, key=lambda name: (name not in _REPEATED.values(), name in _REPEATED)):
        model = RECIPES[f"cpu/{name}"]["model"]["name"]
        if first.setdefault(model, name) != name:
            yield f"cpu/{name}", f"cpu/{first[model]}"


ALIASES: dict[str, str] = (
    {f"paper/{name}": f"paper/{of}" for name, of in _REPEATED.items()}
    | dict(_twin_aliases())
    | {"masked/b-w2880-tran4": "masked/b-w2880-800", "fit": "cpu/channels/3072"}
)
"""Names of recipes that repeat another one: the same settings under the name of another table."""
STARTING_POINTS = ("smoke", "fit", "waves-tile64", "study/masked-b", "study/tran1", "detection/dec-211-w720-192")
"""Recipes to start from: none needs a GPU, the first no data."""
GROUPS: dict[str, str] = {
    **{f"paper/{name}/": f"{cite(table.label, table.part)} of the paper" for name, table in _TABLES.items()},
    "cpu/": "a small version of each paper/… recipe for CPUs",
    "masked/": "masked FINOLA: pre-training, and reconstruction from its encoder",
    "probe/": "classification heads on a frozen encoder",
    "finetune/": "fine-tuning of encoder and head, initialised from a probe",
    "supervised/": "the same encoder and head from scratch with labels",
    "moco/": "MoCo-v2 on the same encoders",
    "study/": "pre-training methods on one small encoder, on a CPU",
    "detection/": "DETR and Mask R-CNN on COCO",
}
"""Recipes that are listed together, by the prefix of their names."""


def canonical(name: str) -> str:
    """The name under which a recipe's model is trained: that of the repeated recipe for an alias, otherwise `name`.

    >>> canonical("paper/normalisation/layer-norm"), canonical("smoke")
    ('paper/channels/3072', 'smoke')
    """
    return ALIASES.get(name, name)

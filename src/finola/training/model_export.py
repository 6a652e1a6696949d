"""Export a run to a folder that `finola.load` reads: weights, config, and a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import finola
from finola.config import show_size
from finola.errors import MissingFileError
from finola.files import write_tensors, write_text
from finola.hub import WEIGHTS
from finola.recipes.loading import RECIPE, load_recipe
from finola.recipes.recipe import ObjectRecipe, Recipe
from finola.recipes.sections import CropSection
from finola.serialization import FULL_PRECISION, load_weights
from finola.training.checkpoint import BEST, CURVE, LAST, read_checkpoint
from finola.training.log import read_curve
from finola.training.tasks.base import task_class

HALF_BUFFER = "codebook.bases"  # rotations: the error of half precision is 70 dB below the image


def export(run: str | Path, target: str | Path, which: str | None = None, *, half: bool = False) -> Path:
    """Export the model of a run directory to `target` with `save_pretrained`, with a model card (README.md).

    Only the run directory is read, not the weights that the run was initialised from. `which` is best.ckpt or
    last.ckpt; by default best.ckpt if it exists. If EMA was enabled, the averaged weights are exported. `half` stores
    parameters in half precision, except for the analysis of a wave encoder; all are loaded as float32.
    """
    run, target = Path(run), Path(target)
    names = [which] if which else [BEST, LAST]
    checkpoint = next((run / name for name in names if (run / name).exists()), None)
    if checkpoint is None:
        raise MissingFileError(f"{run} contains no {' or '.join(names)}. Train first with: finola train … --out {run}")
    recipe, content = load_recipe(run / RECIPE), read_checkpoint(checkpoint)
    model: Any = task_class(recipe).build(recipe, initialise=False)
    task = {key[6:]: value for key, value in content["task"].items() if key.startswith("model.")}
    load_weights(model, content["average"] or task, checkpoint)
    model.eval().save_pretrained(target)
    if half:
        state = model.state_dict().items()
        halved = {key for key, _ in model.named_parameters() if FULL_PRECISION not in key}
        halved |= {key for key, _ in state if key.endswith(HALF_BUFFER)}
        write_tensors(target / WEIGHTS, {key: value.half() if key in halved else value for key, value in state})
    text = card(recipe, read_curve(run / CURVE), content["step"], content["average"] is not None)
    write_text(target / "README.md", text)
    return target


def card(recipe: Recipe, curve: list[dict[str, float]], step: int, ema: bool) -> str:
    """Fill in the model card, `model_card.md.jinja`: usage, data, metrics, training settings and licence."""
    import jinja2

    data, optimiser = recipe.data, recipe.optimiser
    side, head = getattr(data, "val_size", None), getattr(recipe, "head", None)
    size = show_size((side, side) if side else recipe.image_size)
    peak = f"base learning rate {optimiser.base_lr:g}" if optimiser.lr is None else f"learning rate {optimiser.lr:g}"
    settings = {
        "task": f"{recipe.task}, {head.kind}" if head else recipe.task,
        "steps": step,
        "images per step": recipe.images_per_step,
        **({"crop": f"{data.crop}, {data.crops_per_image} per photo"} if isinstance(data, CropSection) else {}),
        {"adamw": "AdamW", "sgd": "SGD"}[optimiser.kind]: f"{peak}, weight decay {optimiser.weight_decay:g}",
        "weights": "exponential moving average (EMA)" if ema else "as trained",
        "seed": recipe.seed,
    }
    text = Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8")
    filled: str = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        recipe=recipe,
        classes=getattr(recipe, "classes", []),
        train=_dataset_name(data.path),
        val=_dataset_name(data.val_path or data.path),
        photos=f"{'photos resized to fit' if isinstance(recipe, ObjectRecipe) else 'centre crops of'} {size}",
        metrics=_metrics(curve, step),
        settings=settings,
        version=finola.__version__,
    )
    return filled


def _metrics(curve: list[dict[str, float]], step: int) -> dict[str, float]:
    """Metrics of the last validation up to step `step`."""
    validated = [row for row in curve if any(key.startswith("val/") for key in row) and row["step"] <= step]
    last = validated[-1] if validated else {}
    return {key[4:].upper().replace("_", "-"): value for key, value in last.items() if key.startswith("val/")}


def _dataset_name(path: str | None) -> str:
    """Name of a data set without its parent folders."""
    return "FINOLA_DATA" if path is None else path if path == "smoke" else Path(path).name or path

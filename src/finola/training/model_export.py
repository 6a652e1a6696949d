"""Export a run to a folder that `finola.load` reads: weights, config, and a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import finola
from finola.config import show_size
from finola.errors import MissingFileError
from finola.files import write_tensors, write_text
from finola.serialization import WEIGHTS, load_weights
from finola.training.checkpoint_files import BEST, LAST, read_checkpoint
from finola.training.config import ON_OBJECTS, Recipe
from finola.training.data_module import image_size
from finola.training.ema import KEY as EMA_KEY
from finola.training.loading import load_recipe
from finola.training.loggers import CURVE, read_curve
from finola.training.run_directory import RECIPE
from finola.training.tasks.base import build_task

FULL_PRECISION = "analysis"  # inverts nearly dependent waves: half precision costs 2 dB here, 0.0001 dB elsewhere

USAGE: dict[str, tuple[str, ...]] = {
    "reconstruction": (
        "import finola",
        'model = finola.load("path/to/this/folder")',
        "out = model(images)  # (N, 3, H, W) in [0, 1]",
    ),
    "classify": (
        "from finola.heads import Classifier",
        'model = Classifier.from_pretrained("path/to/this/folder").eval()',
        "model.rank(image, 5)  # (3, H, W) in [0, 1]: the most likely classes",
    ),
    "masked": (
        "from finola.zoo import load_encoder",
        'encoder = load_encoder("path/to/this/folder")',
        "feature_map = encoder(images)  # (N, 3, H, W) in [0, 1]",
    ),
}
USAGE["moco"] = USAGE["masked"]
USAGE["detect"] = USAGE["segment"] = (
    "from finola.evaluation.detection import detect, load_detector",
    "from finola.image_io import open_photo",
    'model = load_detector("path/to/this/folder")',
    'detect(model, open_photo("photo.jpg"), score=0.5)  # boxes, scores, labels, masks',
)
"""Usage example of the model card, by task."""


def export(run: str | Path, target: str | Path, which: str | None = None, *, half: bool = False) -> Path:
    """Export the model of a run directory to `target` with `save_pretrained`, with a model card (README.md).

    `which` is best.ckpt or last.ckpt; by default best.ckpt if it exists. If EMA was enabled, the averaged weights are
    exported. `half` stores parameters in half precision, except for the analysis of a wave encoder; all are loaded as
    float32.
    """
    run, target = Path(run), Path(target)
    names = [which] if which else [BEST, LAST]
    checkpoint = next((run / name for name in names if (run / name).exists()), None)
    if checkpoint is None:
        raise MissingFileError(f"{run} contains no {' or '.join(names)}. Train first with: finola train … --out {run}")
    recipe = load_recipe(run / RECIPE)
    content = read_checkpoint(checkpoint)
    model: Any = build_task(recipe).model
    load_weights(model, weights_of(content), checkpoint)
    model.eval().save_pretrained(target)
    if half:
        halved = {key for key, _ in model.named_parameters() if FULL_PRECISION not in key}
        state = model.state_dict().items()
        write_tensors(target / WEIGHTS, {key: value.half() if key in halved else value for key, value in state})
    text = card(recipe, read_curve(run / CURVE), int(content["global_step"]), EMA_KEY in content.get("callbacks", {}))
    write_text(target / "README.md", text)
    return target


def weights_of(content: dict[str, Any]) -> dict[str, Any]:
    """Model weights of a checkpoint: the EMA weights if EMA was enabled."""
    ema = content.get("callbacks", {}).get(EMA_KEY)
    if ema is not None:
        mean: dict[str, Any] = ema["mean"]
        return mean
    state = content["state_dict"].items()
    return {key.removeprefix("model."): value for key, value in state if key.startswith("model.")}


def card(recipe: Recipe, curve: list[dict[str, float]], step: int, ema: bool) -> str:
    """Build the model card: usage, data, metrics, training settings and licence."""
    data = recipe.data
    name = recipe.model.name or f"the encoder of {_dataset_name(recipe.model.weights)}"
    size = show_size((data.val_size, data.val_size) if data.val_size else image_size(recipe))
    shown = "photos resized to fit" if recipe.task in ON_OBJECTS else "centre crops of"
    rows = [f"| {key} | {value:.4g}{' dB' if key == 'PSNR' else ''} |" for key, value in _metrics(curve, step).items()]
    settings = {
        "task": f"{recipe.task}, {recipe.head.kind}" if recipe.task in ("classify", *ON_OBJECTS) else recipe.task,
        "steps": step,
        "images per step": data.batch_size,
        "crop": f"{data.crop}, {data.crops_per_image} per photo",
        {"adamw": "AdamW", "sgd": "SGD"}[
            recipe.optimiser.kind
        ]: f"base learning rate {recipe.optimiser.base_rate:g}, weight decay {recipe.optimiser.weight_decay:g}",
        "weights": "exponential moving average (EMA)" if ema else "as trained",
        **({"measured": _encoder_size_note(side)} if (side := recipe.model.encoder_size) else {}),
        "seed": recipe.seed,
    }
    return "\n".join(
        [
            "---",
            "library_name: finola",
            "license: other",
            "license_name: terms-of-the-training-data",
            "tags: [finola, image-reconstruction]",
            "---",
            f"# {name}",
            "",
            (recipe.about and f"Recipe `{recipe.name}`: {recipe.about}.") or f"Recipe `{recipe.name}`.",
            "",
            "```python",
            *USAGE.get(recipe.task, USAGE["reconstruction"]),
            "```",
            "",
            "## Data",
            *([f"Classes: {', '.join(recipe.classes)}.", ""] if 0 < len(recipe.classes) <= 100 else []),
            f"Trained on the train split of `{_dataset_name(data.path)}`, validated on the val split of "
            f"`{_dataset_name(data.val_path or data.path)}`, {shown} {size} pixels.",
            "",
            "## Metrics",
            *(["| mean per image | |", "|---|---|", *rows] if rows else ["Not validated."]),
            "",
            "## Training",
            "| setting | value |",
            "|---|---|",
            *(f"| {key} | {value} |" for key, value in settings.items()),
            "",
            f"Trained with finola {finola.__version__}; the full recipe is `recipe.yaml` in the run directory.",
            "",
            "## Licence",
            "The code is Apache-2.0. The weights are subject to the terms of their training data: read those before "
            "using or sharing them.",
            "",
        ]
    )


def _encoder_size_note(side: int) -> str:
    return f"with encoder inputs of {side} pixels, without the refinement (model.encoder_size)"


def _metrics(curve: list[dict[str, float]], step: int) -> dict[str, float]:
    """Metrics of the last validation before step `step`."""
    validated = [row for row in curve if any(key.startswith("val/") for key in row) and row["step"] < step]
    last = validated[-1] if validated else {}
    return {key[4:].upper().replace("_", "-"): value for key, value in last.items() if key.startswith("val/")}


def _dataset_name(path: str | None) -> str:
    """Name of a data set without its parent folders."""
    return "FINOLA_DATA" if path is None else path if path == "smoke" else Path(path).name or path

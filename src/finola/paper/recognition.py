"""What the tables on recognition share: families of recipes, sequences of commands, and the runs at CPU scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from finola.paper.definitions import Check, Claim, Same, claim, increasing
from finola.paper.tables_main import WIDTHS

EPOCHS = (100, 200, 400, 800)
"""Shorter schedules of pre-training."""
Q_SIZES = (64, 128, 256, 512, 1024, 2048, 3072)


def train(recipe: str, weights: str = "", out: str = "") -> str:
    """`finola train` with a recipe, initialised from the run `weights`, into the run directory `out`."""
    return " ".join(
        ["finola train", recipe, *([f"model.weights=runs/{weights}/model"] if weights else [])]
        + ([f"--out runs/{out}"] if out else [])
    )


def heads(width: int, run: str) -> Iterator[str]:
    """lin, tran-1 and fine-tuning on the encoder of a run."""
    for head in ("lin", "tran1"):
        yield train(f"probe/{head}-w{width}", run, f"{run}-{head}")
    yield train(f"finetune/w{width}", f"{run}-tran1", f"{run}-tran1-ft")


def detectors(width: int, runs: tuple[str, ...], decoders: tuple[str, ...], tuned: bool = False) -> Iterator[str]:
    """DETR on the frozen encoders of runs, and with `tuned` fine-tuned from there."""
    for run in runs:
        for decoder in decoders:
            out = f"{run}-dec-{decoder}"
            yield train(f"detection/dec-{decoder}-w{width}", run, out)
            if tuned:
                yield train(f"detection/finetune-{decoder}-w{width}", out, f"{out}-ft")


def pre_trained(*runs: tuple[str, int]) -> Iterator[str]:
    """Pre-training by recipes, each with its heads."""
    for recipe, width in runs:
        yield train(recipe)
        yield from heads(width, recipe.replace("/", "-"))


def schedules(variant: str, *widths: int) -> Iterator[str]:
    for width in widths:
        names = (*(f"masked/{variant}-w{width}-{epochs}" for epochs in EPOCHS), f"masked/{variant}-w{width}")
        yield from pre_trained(*((name, width) for name in names))


def against_moco() -> Iterator[str]:
    for width in WIDTHS:
        for recipe, run in ((f"masked/b-w{width}", f"masked-b-w{width}"), (f"moco/w{width}", f"moco-w{width}")):
            yield from pre_trained((recipe, width))
            yield from detectors(width, (run, f"{run}-tran1-ft"), ("522",))
            for weights in (run, f"{run}-tran1-ft"):
                yield train(f"detection/mask-rcnn-w{width}", weights, f"{weights}-mask-rcnn")


def against_labels(tuned: bool) -> Iterator[str]:
    """Detection on encoders trained with labels, by masked FINOLA-B, and by it and fine-tuning."""
    for width in WIDTHS:
        yield from (train(f"supervised/w{width}"), *pre_trained((f"masked/b-w{width}", width)))
        runs = (f"supervised-w{width}", f"masked-b-w{width}", f"masked-b-w{width}-tran1-ft")
        yield from detectors(width, runs, ("211", "522"), tuned)


def recipes(names: str, base: str, about: str, run: str = "", **settings: Any) -> dict[str, dict[str, Any]]:
    """Recipes for each width W, which replaces {w} in names and values, initialised from the run directory of a run.

    `settings` has sections of settings, or functions of the width that return them.
    """
    found = {}
    for width in WIDTHS if "{w}" in names else ("",):
        values = {key: value(width) if callable(value) else value for key, value in settings.items()}
        model = values.pop("model", {}) | ({"weights": f"runs/{run}/model".format(w=width)} if run else {})
        model = {key: value.format(w=width) if isinstance(value, str) else value for key, value in model.items()}
        recipe = {"base": base.format(w=width), "about": about.format(w=width), **values}
        found[names.format(w=width)] = recipe | ({"model": model} if model else {})
    return found


def probed(name: str, width: str, title: str, run: str) -> dict[str, dict[str, Any]]:
    """Recipes of lin and tran-1 probing of the encoder of a run."""
    return {
        **recipes(f"probe/{name}-lin", f"probe/lin-w{width}", f"linear probing of {title}", run),
        **recipes(f"probe/{name}-tran1", f"probe/tran1-w{width}", f"tran-1 probing of {title}", run),
    }


NAME = {"name": "mf-w{w}"}
TUNING = {  # mixup, cutmix, layer-wise decay, epochs
    720: (0.0, 0.0, 0.9, 200),
    1440: (0.2, 0.25, 0.9, 150),
    2880: (0.8, 1.0, 0.85, 100),
}
_TRAN = {720: (0.1, 0.0), 1440: (0.2, 0.0), 2880: (0.2, 0.25)}  # dropout, random erasing


def tran(blocks: int) -> dict[str, dict[str, Any]]:
    """Recipes of probing with transformer blocks."""
    return recipes(
        f"probe/tran{blocks}-w{{w}}",
        "_tran",
        f"tran-{blocks} probing of a masked FINOLA-B encoder of {{w}} channels, as in the paper",
        "masked-b-w{w}",
        model=NAME,
        head=lambda w: {"kind": f"tran-{blocks}"} | dict(zip(("dropout", "random_erasing"), _TRAN[w], strict=True)),
    )


def mix(width: int) -> dict[str, float]:
    return {"mixup": TUNING[width][0], "cutmix": TUNING[width][1]}


STUDY_EPOCHS = (5, 10, 20, 41)
"""Lengths of pre-training in the study at CPU scale. Each is a run of its own, whose learning rate falls to the end."""
EPOCH_IMAGES = 4992
"""Images of an epoch: those of imagenette128 in whole batches of 64."""
PARITY = 3.0
"""Accuracies in percent that differ by at most as much are on par: two standard errors on 1,000 val photos."""
KLT_MARGIN = 1.0
"""FINOLA has learnt to reconstruct if its PSNR is at most as many dB below that of a KLT of as many components."""
METHODS = {
    "finola": ("study/finola", "FINOLA"),
    "masked-e": ("study/masked-e", "masked FINOLA-E"),
    "masked-b": ("study/masked-b", "masked FINOLA-B"),
    "moco": ("study/moco", "MoCo-v2"),
    "supervised": ("study/supervised", "supervised"),
}
"""Methods of the study by name, with their recipes: one encoder, the same photos and the same optimiser."""


def studied(method: str, epochs: int = STUDY_EPOCHS[-1], what: str = "", *overrides: str) -> Same:
    """Row of a method of the study after some epochs, with `overrides` that `what` describes."""
    recipe, about = METHODS[method]
    words = [about, *([what] if what else []), f"{epochs * EPOCH_IMAGES:,} images"]
    return Same(recipe, ", ".join(words), overrides=(f"schedule.epochs={epochs}", *overrides))


def over_images(*methods: str) -> dict[str, Same]:
    """Rows of methods after each of `STUDY_EPOCHS`, as METHOD-EPOCHS; the last is METHOD."""
    longest = STUDY_EPOCHS[-1]
    return {m if n == longest else f"{m}-{n}": studied(m, n) for m in methods for n in STUDY_EPOCHS}


_FIXED = "1e-30"  # a learning rate that changes no weight
STUDY = {
    "random": Same(
        "study/supervised",
        "random weights",
        overrides=("trainer.max_steps=1", f"optimiser.lr={_FIXED}", f"optimiser.groups.matrices.lr={_FIXED}"),
    ),
    **over_images("finola", "masked-e", "masked-b", "moco"),
    "supervised": studied("supervised"),
}
"""Methods of pre-training on one encoder at CPU scale."""
SHORT = 20
"""Epochs of the ablations of the study."""
STUDY_BLOCKS = (1, 2, 4)
STUDY_Q_SIZES = (48, 96, 192, 384)
DEPTHS = {
    f"blocks-{blocks}": studied("masked-b", SHORT, f"blocks in the decoder: {blocks}", *overrides)
    for blocks in STUDY_BLOCKS
    for overrides in [(f"model.name=residual-map-w64/192x1@8:64+tran{blocks}w128",)]
}
SIZES = {
    f"q-{size}": studied("finola", SHORT, f"size of q: {size}", f"model.name=residual-map-w64/{size}x1@8:64+flat+patch")
    for size in STUDY_Q_SIZES
}


def studies(
    name: str,
    sentence: str,
    *checks: Check | tuple[Check, ...],
    metrics: tuple[str, ...],
    rows: Mapping[str, Same] | None = None,
) -> Claim:
    """A claim on rows of the study, by default those of `STUDY` that its checks name."""
    found = claim(name, sentence, *checks, metrics=metrics)
    named = {row: STUDY[row] for check in found.checks for row in check.rows if row in STUDY}
    return replace(found, rows=named | dict(rows or {}))


def order(name: str, sentence: str, metrics: tuple[str, ...], *methods: str) -> Claim:
    """The methods of `STUDY` in increasing order of each metric."""
    return studies(name, sentence, *(increasing(*methods, metric=metric) for metric in metrics), metrics=metrics)

"""What the tables on recognition share: families of recipes, sequences of commands, and the runs at CPU scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finola.paper.definitions import PROBE_METRICS, Claim, Same, claim, increasing
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


# Pre-training of 204,672 images of 96 pixels, with one optimiser for all methods and without validation.
_COMMON = (
    *("schedule.epochs=41", "schedule.warmup_epochs=1", "data.path=imagenette128", "data.batch_size=64"),
    *("data.flip=true", "data.scale=[0.2,1.0]", "trainer.check_val_every_n_epoch=82"),
)
_ADAMW = ("optimiser.kind=adamw", "optimiser.lr=null", "optimiser.base_lr=2e-3", "optimiser.weight_decay=0.05")
_MODEL = "model.name=mf-w720/256x1@6:96+"
STUDY = {
    # Steps without a learning rate estimate the statistics of the batch norms.
    "random": Same(
        "supervised/w720-128",
        "random weights",
        overrides=(*_COMMON, "data.size=96", "optimiser.base_lr=1e-30", "trainer.max_steps=100"),
    ),
    "finola": Same(
        "paper/channels/256", "FINOLA", overrides=(*_COMMON, f"{_MODEL}patch", *_ADAMW, "logging.samples=0")
    ),
    "masked-e": Same(
        "masked/e-w720-128", "masked FINOLA-E", overrides=(*_COMMON, f"{_MODEL}patch", "logging.samples=0")
    ),
    "masked-b": Same(
        "masked/b-w720-128", "masked FINOLA-B", overrides=(*_COMMON, f"{_MODEL}tran1", "logging.samples=0")
    ),
    "moco": Same("moco/w720-128", "MoCo-v2 with AdamW", overrides=(*_COMMON, "data.size=96", *_ADAMW)),
    "supervised": Same("supervised/w720-128", "supervised", overrides=(*_COMMON, "data.size=96")),
}
"""Pre-training methods on one encoder at CPU scale, with as many images and the same probes."""


def order(name: str, sentence: str, metrics: tuple[str, ...], *methods: str) -> Claim:
    """The methods of `STUDY` in increasing order of each metric."""
    checks = tuple(increasing(*methods, metric=metric) for metric in metrics)
    return claim(name, sentence, *checks, rows={m: STUDY[m] for m in methods}, metrics=PROBE_METRICS)

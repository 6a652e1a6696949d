"""Commands that reproduce, at the scale of the paper, tables and figures whose claims have no runs at CPU scale.

They are printed in the order in which they must be run. `DATA` is replaced by the path of ImageNet-1K.
"""

from __future__ import annotations

from collections.abc import Iterator

from finola.recipes.recognition import WIDTHS
from finola.recipes.table import canonical

DATA = "DATA"
LARGEST = 2880
SCHEDULES = (100, 200, 400, 800)
"""Epochs of the shorter schedules of pre-training."""
MULTI_PATH = ("grid/1024x2", "grid/1024x4", "grid/1024x8", "grid/2048x8", "grid/2048x16")
SCATTERED = ("starts/1024x4-scatter", "starts/1024x8-scatter", "starts/2048x8-scatter", "starts/2048x16-scatter")


def train(recipe: str, weights: str | None = None, out: str | None = None) -> str:
    """`finola train` with a recipe, initialised from the run `weights`, into the run directory `out`."""
    words = ["finola train", recipe]
    words += [f"model.weights=runs/{weights}/model"] if weights else []
    words += [f"--out runs/{out}"] if out else []
    return " ".join(words)


def run_of(recipe: str) -> str:
    """Default run directory of a recipe, below runs/."""
    return canonical(recipe).replace("/", "-")


def _heads(width: int, run: str) -> Iterator[str]:
    """lin, tran-1 and fine-tuning on the encoder of a run."""
    for head in ("lin", "tran1"):
        yield train(f"probe/{head}-w{width}", run, f"{run}-{head}")
    yield train(f"finetune/w{width}", f"{run}-tran1", f"{run}-tran1-ft")


def _detectors(width: int, runs: tuple[str, ...], decoders: tuple[str, ...], tuned: bool = False) -> Iterator[str]:
    """DETR on the frozen encoders of runs, and with `tuned` fine-tuned from there."""
    for run in runs:
        for decoder in decoders:
            out = f"{run}-dec-{decoder}"
            yield train(f"detection/dec-{decoder}-w{width}", run, out)
            if tuned:
                yield train(f"detection/finetune-{decoder}-w{width}", out, f"{out}-ft")


def _compare(methods: tuple[str, ...], models: tuple[str, ...]) -> str:
    folders = " ".join(f"runs/{run_of(f'paper/{model}')}/model" for model in models)
    return f"finola compare {DATA} --split val --crop 256 --methods {' '.join((*methods, folders))}"


def _reconstruction(methods: tuple[str, ...]) -> Iterator[str]:
    """Multi-path models and their comparison with other methods."""
    yield from (train(f"paper/{model}") for model in (*MULTI_PATH, *SCATTERED))
    yield _compare(methods, (*MULTI_PATH, *SCATTERED))


def _jpeg() -> Iterator[str]:
    run = run_of("paper/channels/3072")
    yield train("paper/channels/3072")
    yield f"finola calibrate runs/{run}/model {DATA} --plain"
    for photos in (f"{DATA} --split val --crop 256", "kodak/"):
        yield f"finola compare {photos} --methods jpeg@0.19 finola-paper:runs/{run}/model"


def _self_supervised() -> Iterator[str]:
    for width in WIDTHS:
        yield from (train(f"{name}-w{width}") for name in ("masked/b", "probe/tran4", "finetune/tran4"))


def _decoder_depth() -> Iterator[str]:
    for blocks in range(1, 7):
        recipe = f"masked/b-w{LARGEST}-tran{blocks}"
        yield train(recipe)
        yield from _heads(LARGEST, run_of(recipe))


def _linear_probing() -> Iterator[str]:
    for width in WIDTHS:
        yield from (train(f"masked/b-w{width}"), train(f"probe/lin-w{width}"))


def _moco() -> Iterator[str]:
    for width in WIDTHS:
        for recipe in (f"masked/b-w{width}", f"moco/w{width}"):
            run = run_of(recipe)
            yield train(recipe)
            yield from _heads(width, run)
            yield from _detectors(width, (run, f"{run}-tran1-ft"), ("522",))
            for weights in (run, f"{run}-tran1-ft"):
                yield train(f"detection/mask-rcnn-w{width}", weights, f"{weights}-mask-rcnn")


def _supervised_detection(tuned: bool) -> Iterator[str]:
    """Detection on encoders trained with labels, by masked FINOLA-B, and by it and fine-tuning."""
    for width in WIDTHS:
        yield from (train(f"supervised/w{width}"), train(f"masked/b-w{width}"))
        yield from _heads(width, f"masked-b-w{width}")
        runs = (f"supervised-w{width}", f"masked-b-w{width}", f"masked-b-w{width}-tran1-ft")
        yield from _detectors(width, runs, ("211", "522"), tuned)


def _detr() -> Iterator[str]:
    run = f"masked-b-w{LARGEST}"
    yield train(f"masked/b-w{LARGEST}")
    yield from _heads(LARGEST, run)
    yield from _detectors(LARGEST, (f"{run}-tran1-ft",), ("522",), tuned=True)


def _masking() -> Iterator[str]:
    """FINOLA and masked FINOLA: heads, fine-tuning and reconstruction."""
    for recipe in ("paper/channels/3072", f"masked/e-w{LARGEST}", f"masked/b-w{LARGEST}"):
        yield train(recipe)
        yield from _heads(LARGEST, run_of(recipe))
    yield from _frozen_reconstruction()


def _frozen_reconstruction() -> Iterator[str]:
    yield from (train(f"masked/recon-{variant}-w{LARGEST}") for variant in "eb")


def _sizes_of_q() -> Iterator[str]:
    for channels in (64, 128, 256, 512, 1024, 2048, 3072):
        yield train(f"paper/channels/{channels}")
        yield from (train(f"probe/finola-q{channels}-{head}") for head in ("lin", "tran1"))


def _schedules(variant: str, widths: tuple[int, ...]) -> Iterator[str]:
    for width in widths:
        for suffix in (*(f"-{epochs}" for epochs in SCHEDULES), ""):
            yield train(f"masked/{variant}-w{width}{suffix}")
            yield from _heads(width, f"masked-{variant}-w{width}{suffix}")


DCT, WAVELETS = ("dct:1", "dct:3", "dct:6", "dct:10"), ("dwt:ll", "dtcwt:ll", "dwt:scale3", "dtcwt:scale3")
COMMANDS = {
    "fig:finola-parallel": ("python benchmarks/bench.py propagation",),
    "table:comp-dct": (*_reconstruction(DCT),),
    "table:comp-dwt": (*_reconstruction((*WAVELETS, "dwt:scale2", "dtcwt:scale2")),),
    "table:comp-jpeg": (*_jpeg(),),
    "table:finola-vs-self-sup": (*_self_supervised(),),
    "table:comp-diffusion": (*_reconstruction(()),),
    "table:appendix:ablation-tran-blocks": (*_decoder_depth(),),
    "table:finola-vs-mask-based-methods": (*_linear_probing(),),
    "table:finola-mocov2": (*_moco(),),
    "table:appendix:finola-vs-sup-COCO": (*_supervised_detection(tuned=False),),
    "table:appendix:finola-vs-sup-COCO-ft": (*_supervised_detection(tuned=True),),
    "table:coco-det-detr-cmp": (*_detr(),),
    "table:finola-maskfinola": (*_masking(),),
    "table:appendix:finola-maskedfinola-probing": (*_sizes_of_q(),),
    "fig:appendix:train-len": (*_schedules("b", WIDTHS),),
    "fig:cls-od-sup": (*_supervised_detection(tuned=False),),
    "fig:appendix:recon-ftlin": (
        *(train(f"masked/{variant}-w{LARGEST}") for variant in "eb"),
        *_frozen_reconstruction(),
    ),
    "fig:appendix:element-vs-block": (*_schedules("e", (LARGEST,)), *_schedules("b", (LARGEST,))),
    "fig:masked-finola-gaussian": (
        train("paper/channels/3072"),
        train(f"masked/b-w{LARGEST}"),
        f"finola curvature PHOTO --model runs/paper-channels-3072/model --beside runs/masked-b-w{LARGEST}/model "
        "-o curvature.png",
    ),
}
"""Commands by LaTeX label."""


def commands_of(label: str, data: str | None = None) -> list[str]:
    """Commands of a table or figure, with the path of ImageNet-1K; detection has COCO of its recipes.

    >>> commands_of("fig:appendix:recon-ftlin", "imagenet/")[0]
    'finola train masked/e-w2880 data.path=imagenet/'
    """
    found = []
    for command in COMMANDS.get(label, ()):
        if data is not None and command.startswith("finola train") and "train detection/" not in command:
            first, out, target = command.partition(" --out ")
            command = f"{first} data.path={data}{out}{target}"
        found.append(command.replace(f" {DATA} ", f" {data or DATA} "))
    return found

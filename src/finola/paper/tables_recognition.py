"""Tables 19 to 30 and Figures 16 to 21: masked FINOLA, probing, fine-tuning, MoCo-v2 and COCO, with their recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finola.paper.definitions import (
    NEEDS_COCO,
    NEEDS_IMAGENET,
    PROBE_METRICS,
    Claim,
    Same,
    Table,
    increasing,
    near,
    numbers,
)
from finola.paper.tables_main import WIDTHS

EPOCHS = (100, 200, 400, 800)
"""Shorter schedules of pre-training."""
Q_SIZES = (64, 128, 256, 512, 1024, 2048, 3072)


def _train(recipe: str, weights: str = "", out: str = "") -> str:
    """`finola train` with a recipe, initialised from the run `weights`, into the run directory `out`."""
    return " ".join(
        ["finola train", recipe, *([f"model.weights=runs/{weights}/model"] if weights else [])]
        + ([f"--out runs/{out}"] if out else [])
    )


def _heads(width: int, run: str) -> Iterator[str]:
    """lin, tran-1 and fine-tuning on the encoder of a run."""
    for head in ("lin", "tran1"):
        yield _train(f"probe/{head}-w{width}", run, f"{run}-{head}")
    yield _train(f"finetune/w{width}", f"{run}-tran1", f"{run}-tran1-ft")


def _detectors(width: int, runs: tuple[str, ...], decoders: tuple[str, ...], tuned: bool = False) -> Iterator[str]:
    """DETR on the frozen encoders of runs, and with `tuned` fine-tuned from there."""
    for run in runs:
        for decoder in decoders:
            out = f"{run}-dec-{decoder}"
            yield _train(f"detection/dec-{decoder}-w{width}", run, out)
            if tuned:
                yield _train(f"detection/finetune-{decoder}-w{width}", out, f"{out}-ft")


def _pre_trained(*runs: tuple[str, int]) -> Iterator[str]:
    """Pre-training by recipes, each with its heads."""
    for recipe, width in runs:
        yield _train(recipe)
        yield from _heads(width, recipe.replace("/", "-"))


def _schedules(variant: str, *widths: int) -> Iterator[str]:
    for width in widths:
        names = (*(f"masked/{variant}-w{width}-{epochs}" for epochs in EPOCHS), f"masked/{variant}-w{width}")
        yield from _pre_trained(*((name, width) for name in names))


def _against_moco() -> Iterator[str]:
    for width in WIDTHS:
        for recipe, run in ((f"masked/b-w{width}", f"masked-b-w{width}"), (f"moco/w{width}", f"moco-w{width}")):
            yield from _pre_trained((recipe, width))
            yield from _detectors(width, (run, f"{run}-tran1-ft"), ("522",))
            for weights in (run, f"{run}-tran1-ft"):
                yield _train(f"detection/mask-rcnn-w{width}", weights, f"{weights}-mask-rcnn")


def _against_labels(tuned: bool) -> Iterator[str]:
    """Detection on encoders trained with labels, by masked FINOLA-B, and by it and fine-tuning."""
    for width in WIDTHS:
        yield from (_train(f"supervised/w{width}"), *_pre_trained((f"masked/b-w{width}", width)))
        runs = (f"supervised-w{width}", f"masked-b-w{width}", f"masked-b-w{width}-tran1-ft")
        yield from _detectors(width, runs, ("211", "522"), tuned)


def _weights(run: str, **model: str) -> dict[str, Any]:
    return {"model": {**model, "weights": f"runs/{run}/model"}}


def _probed(name: str, width: int, title: str, run: str) -> dict[str, dict[str, Any]]:
    """Recipes of lin and tran-1 probing of the encoder of a run."""
    kinds = {"lin": "linear", "tran1": "tran-1"}
    return {
        f"probe/{name}-{head}": {
            "base": f"probe/{head}-w{width}",
            "about": f"{kind} probing of {title}",
            **_weights(run),
        }
        for head, kind in kinds.items()
    }


# Of fine-tuning: mixup, cutmix, layer-wise decay, epochs. Of tran heads: dropout, random erasing.
_TUNING = {720: (0.0, 0.0, 0.9, 200), 1440: (0.2, 0.25, 0.9, 150), 2880: (0.8, 1.0, 0.85, 100)}
_TRAN = {720: (0.1, 0.0), 1440: (0.2, 0.0), 2880: (0.2, 0.25)}
_MASKED = {"e": ("patch", {"mask": {"variant": "e", "places": 8}}), "b": ("tran4", {})}
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


def _order(name: str, sentence: str, metrics: tuple[str, ...], *methods: str) -> Claim:
    """The methods of `STUDY` in increasing order of each metric."""
    checks = tuple(increasing(*methods, metric=metric) for metric in metrics)
    return Claim(name, sentence, checks, rows={m: STUDY[m] for m in methods}, metrics=PROBE_METRICS, scales=("cpu",))


TABLES = (
    Table(
        "table:appendix:od-mf-dec-achs",
        "Architecture of the detection heads.",
        models={
            "detectors of 80 classes at 1333×800": tuple(
                f"detection/dec-{head}-w{width}" for head in (211, 522) for width in WIDTHS
            )
        },
    ),
    Table(
        "table:appendix:masked-FINOLA",
        "Settings of masked pre-training.",
        models={f"masked FINOLA-{v.upper()}": tuple(f"masked/{v}-w{width}" for width in WIDTHS) for v in "eb"},
        recipes={
            f"masked/{variant}-w{width}": {
                "base": "_masked",
                "about": f"masked FINOLA-{variant.upper()} on Mobile-Former W{width}, as in the paper",
                "model": {"name": f"mf-w{width}/512x1@16+{decoder}"},
                **settings,
            }
            for variant, (decoder, settings) in _MASKED.items()
            for width in WIDTHS
        },
    ),
    Table(
        "table:appendix:lin-tran-setting",
        "Settings of probing.",
        recipes={
            f"probe/lin-w{width}": {
                "base": "_lin",
                "about": f"linear probing of a masked FINOLA-B encoder of {width} channels, as in the paper",
                **_weights(f"masked-b-w{width}", name=f"mf-w{width}"),
            }
            for width in WIDTHS
        }
        | {
            f"probe/tran{blocks}-w{width}": {
                "base": "_tran",
                "about": f"tran-{blocks} probing of a masked FINOLA-B encoder of {width} channels, as in the paper",
                **_weights(f"masked-b-w{width}", name=f"mf-w{width}"),
                "head": {"kind": f"tran-{blocks}", "dropout": dropout, "random_erasing": erase},
            }
            for width, (dropout, erase) in _TRAN.items()
            for blocks in (1, 4)
        },
    ),
    Table(
        "table:appendix:finetune-setting",
        "Settings of fine-tuning.",
        recipes={
            f"finetune/w{width}": {
                "base": "_finetune",
                "about": f"fine-tuning of encoder and tran-1 head, {width} channels, as in the paper",
                **_weights(f"probe-tran1-w{width}", name=f"mf-w{width}"),
                "head": {"mixup": mixup, "cutmix": cutmix},
                "optimiser": {"layer_decay": decay},
                "schedule": {"epochs": epochs},
            }
            for width, (mixup, cutmix, decay, epochs) in _TUNING.items()
        }
        | {
            f"supervised/w{width}": {
                "base": "_finetune",
                "about": f"the same encoder and head from scratch with labels, {width} channels (Sup-IN1K)",
                "model": {"name": f"mf-w{width}"},
                "head": {"mixup": mixup, "cutmix": cutmix},
                "optimiser": {"base_lr": 1e-3, "layer_decay": None},
                "schedule": {"epochs": 300},
            }
            for width, (mixup, cutmix, *_) in _TUNING.items()
        },
    ),
    Table(
        "table:appendix:ablation-tran-blocks",
        "More transformer blocks in the decoder of masked FINOLA improve probing and barely change fine-tuning.",
        needs=NEEDS_IMAGENET,
        recipes={
            f"masked/b-w2880-tran{blocks}": {
                "base": "masked/b-w2880-800",
                "about": f"decoder with transformer blocks: {blocks}",
                "model": {"name": f"mf-w2880/512x1@16+tran{blocks}"},
            }
            for blocks in range(1, 7)
        },
        quoted=numbers(
            "blocks lin tran1 tran1_ft",
            *((1, 61.1, 74.4, 82.2), (2, 62.6, 76.5, 82.3), (3, 63.5, 77.3, 82.2)),
            *((4, 63.8, 78.0, 82.3), (5, 64.0, 78.1, 82.3), (6, 65.0, 78.3, 82.4)),
        ),
        commands=tuple(
            _pre_trained(
                *((f"masked/b-w2880-{'800' if blocks == 4 else f'tran{blocks}'}", 2880) for blocks in range(1, 7))
            )
        ),
    ),
    Table(
        "table:finola-vs-mask-based-methods",
        "Linear probing of masked FINOLA is comparable to masked methods with larger encoders.",
        needs=NEEDS_IMAGENET,
        quoted=numbers(
            "method model parameters_m top1",
            ("iGPT", "iGPT-L", 1362, 69.0),
            ("BEiT", "ViT-B", 86, 56.7),
            ("SimMIM", "ViT-B", 86, 56.7),
            ("MAE", "ViT-B", 86, 68.0),
            ("MAE", "ViT-S", 22, 49.2),
            ("MAE-Lite", "ViT-Tiny", 6, 23.3),
            *(("FINOLA", "MF-W720", 6, 51.3), ("FINOLA", "MF-W1440", 14, 62.8), ("FINOLA", "MF-W2880", 28, 66.4)),
        ),
        commands=tuple(_train(f"{recipe}-w{width}") for width in WIDTHS for recipe in ("masked/b", "probe/lin")),
    ),
    Table(
        "table:finola-mocov2",
        "Masked FINOLA is better than MoCo-v2 in tran-1 probing, fine-tuning, detection and segmentation, and on par "
        "in linear probing.",
        page="recognition.md",
        recipes={
            name: settings
            for width in WIDTHS
            for name, settings in {
                f"moco/w{width}": {
                    "base": "_moco",
                    "about": f"MoCo-v2 on Mobile-Former W{width}",
                    "model": {"name": f"mf-w{width}"},
                },
                f"finetune/moco-w{width}": {
                    "base": f"finetune/w{width}",
                    "about": f"fine-tuning after MoCo-v2, {width} channels",
                    **_weights(f"probe-moco-w{width}-tran1"),
                },
                f"detection/mask-rcnn-w{width}": {
                    "base": "_segment",
                    "about": "Mask R-CNN (1×) on a frozen encoder",
                    **_weights(f"masked-b-w{width}", name=f"mf-w{width}"),
                },
                **_probed(f"moco-w{width}", width, f"MoCo-v2 on Mobile-Former W{width}", f"moco-w{width}"),
            }.items()
        },
        quoted=numbers(  # AP without and with fine-tuning on ImageNet-1K
            "method encoder lin tran1 tran1_ft box_ap box_ap_in_ft mask_ap mask_ap_in_ft",
            ("MoCo-v2", "MF-W720", 51.6, 52.9, 74.3, 31.8, 39.9, 23.2, 25.3),
            ("FINOLA", "MF-W720", 51.3, 65.5, 75.6, 40.0, 41.6, 26.3, 28.4),
            ("MoCo-v2", "MF-W1440", 60.4, 58.5, 79.2, 30.3, 39.0, 25.6, 25.7),
            ("FINOLA", "MF-W1440", 62.8, 75.2, 80.5, 42.6, 44.0, 30.6, 32.7),
            ("MoCo-v2", "MF-W2880", 66.5, 63.8, 80.0, 25.5, 31.7, 27.8, 25.2),
            ("FINOLA", "MF-W2880", 66.4, 78.7, 82.5, 43.3, 45.5, 33.3, 35.1),
        ),
        claims=(
            _order(
                "moco",
                "Masked FINOLA-B recognises better than MoCo-v2 with a tran-1 head and after fine-tuning.",
                ("tran-1", "fine-tuned"),
                *("moco", "masked-b"),
            ),
            Claim(
                "moco-lin",
                "Masked FINOLA-B and MoCo-v2 are on par in linear probing (within 3 %).",
                (near("masked-b", "moco", within=3.0, metric="lin"),),
                rows={method: STUDY[method] for method in ("masked-b", "moco")},
                metrics=PROBE_METRICS,
                scales=("cpu",),
            ),
        ),
        commands=tuple(_against_moco()),
    ),
    *(
        Table(
            label,
            sentence,
            needs=NEEDS_COCO,
            recipes={
                f"detection/{prefix}-{row['decoder']}-w{row['width']}": {
                    "base": base,
                    "about": about.format(**row),
                    **_weights(run.format(**row), name=f"mf-w{row['width']}"),
                    "head": {"kind": f"mf-dec-{row['decoder']}"},
                }
                for row in quoted
            },
            quoted=quoted,
            commands=tuple(_against_labels(tuned=prefix == "finetune")),
        )
        for label, sentence, prefix, base, about, run, quoted in (
            (
                "table:appendix:finola-vs-sup-COCO",
                "A frozen encoder of masked FINOLA detects better than one trained with labels.",
                "dec",
                "_detect",
                "MF-Dec-{decoder} on a frozen encoder; the paper has AP {supervised} supervised, {finola} FINOLA, "
                "{finola_in_ft} FINOLA fine-tuned",
                "masked-b-w{width}",
                numbers(
                    "decoder width multiply_adds_g supervised finola finola_in_ft",
                    *(("211", 720, 5.6, 27.8, 33.0, 35.8), ("211", 1440, 20.4, 31.2, 36.0, 39.2)),
                    *(("211", 2880, 77.5, 34.1, 36.7, 41.0), ("522", 720, 5.6, 35.2, 40.0, 41.6)),
                    *(("522", 1440, 20.4, 38.3, 42.6, 44.0), ("522", 2880, 77.5, 40.5, 43.3, 45.5)),
                ),
            ),
            (
                "table:appendix:finola-vs-sup-COCO-ft",
                "After fine-tuning on COCO, masked FINOLA with fine-tuning on ImageNet-1K detects better than "
                "supervision.",
                "finetune",
                "_detect_finetune",
                "the same with the encoder trained too; the paper has AP {supervised} supervised, {finola} FINOLA, "
                "{finola_in_ft} FINOLA fine-tuned",
                "detection-dec-{decoder}-w{width}",
                numbers(
                    "decoder width multiply_adds_g supervised finola finola_in_ft",
                    *(("211", 720, 5.6, 37.6, 37.2, 39.3), ("211", 1440, 20.4, 42.5, 42.4, 43.8)),
                    *(("211", 2880, 77.5, 44.0, 44.4, 46.0), ("522", 720, 5.6, 42.5, 43.3, 44.4)),
                    *(("522", 1440, 20.4, 46.2, 46.8, 47.3), ("522", 2880, 77.5, 48.1, 48.0, 49.0)),
                ),
            ),
        )
    ),
    Table(
        "table:coco-det-detr-cmp",
        "The detector is comparable to DETR variants with fewer multiply–adds.",
        needs=NEEDS_COCO,
        quoted=numbers(
            "method queries ap ap50 ap75 ap_small ap_medium ap_large multiply_adds_g parameters_m",
            ("DETR-DC5", 100, 43.3, 63.1, 45.9, 22.5, 47.3, 61.1, 187, 41),
            ("Deform-DETR", 300, 46.2, 65.2, 50.0, 28.8, 49.2, 61.7, 173, 40),
            ("DAB-DETR", 900, 46.9, 66.0, 50.8, 30.1, 50.4, 62.5, 195, 48),
            ("DN-DETR", 900, 48.6, 67.4, 52.7, 31.0, 52.0, 63.7, 195, 48),
            ("DINO", 900, 50.9, 69.0, 55.3, 34.6, 54.1, 64.6, 279, 47),
            ("FINOLA-DETR (frozen)", 100, 45.5, 63.8, 49.5, 25.1, 49.1, 63.5, 112, 44),
            ("FINOLA-DETR (fine-tuned)", 100, 49.0, 67.7, 53.4, 30.1, 52.9, 65.5, 112, 44),
        ),
        commands=(
            *_pre_trained(("masked/b-w2880", 2880)),
            *_detectors(2880, ("masked-b-w2880-tran1-ft",), ("522",), tuned=True),
        ),
    ),
    Table(
        "table:finola-maskfinola",
        "Masked FINOLA reconstructs worse than FINOLA and recognises better; block-wise better than element-wise.",
        page="recognition.md",
        recipes=_probed("e-w2880", 2880, "masked FINOLA-E", "masked-e-w2880")
        | {
            f"finetune/{name}": {
                "base": "finetune/w2880",
                "about": f"fine-tuning after {title}",
                **_weights(f"probe-{name}-tran1"),
            }
            for name, title in (
                ("e-w2880", "masked FINOLA-E"),
                ("finola-q3072", "plain FINOLA whose q has 3072 channels"),
            )
        },
        quoted=numbers(
            "method psnr lin tran1 tran1_ft",
            ("FINOLA", 25.8, 17.9, 46.8, 81.9),
            ("Masked FINOLA-E", 16.7, 54.1, 67.8, 82.2),
            ("Masked FINOLA-B", 17.3, 66.4, 78.7, 82.5),
        ),
        claims=(
            Claim(
                "masking",
                "Masked FINOLA-B recognises better than masked FINOLA-E, and that better than FINOLA.",
                tuple(increasing("finola", "masked-e", "masked-b", metric=m) for m in ("lin", "tran-1", "fine-tuned")),
                rows=STUDY,
                metrics=PROBE_METRICS,
                scales=("cpu",),
            ),
        ),
        commands=(
            *_pre_trained(("paper/channels/3072", 2880), ("masked/e-w2880", 2880), ("masked/b-w2880", 2880)),
            *(_train(f"masked/recon-{variant}-w2880") for variant in "eb"),
        ),
    ),
    Table(
        "table:appendix:finola-maskedfinola-probing",
        "No size of q brings the probing accuracy of FINOLA near that of masked FINOLA.",
        needs=NEEDS_IMAGENET,
        recipes={
            name: settings
            for size in Q_SIZES
            for name, settings in _probed(
                f"finola-q{size}",
                2880,
                f"plain FINOLA whose q has {size} channels (paper/channels/{size})",
                f"paper-channels-{size}",
            ).items()
        },
        quoted=numbers(
            "method size_of_q lin tran1",
            *(("FINOLA", 64, 10.2, 20.2), ("FINOLA", 128, 11.5, 24.0), ("FINOLA", 256, 15.0, 29.0)),
            *(("FINOLA", 512, 20.1, 34.1), ("FINOLA", 1024, 23.0, 39.6), ("FINOLA", 2048, 23.2, 41.1)),
            *(("FINOLA", 3072, 17.9, 46.8), ("Masked FINOLA-E", 512, 54.1, 67.8)),
            ("Masked FINOLA-B", None, 66.4, 78.7),
        ),
        commands=tuple(
            _train(recipe)
            for size in Q_SIZES
            for recipe in (f"paper/channels/{size}", f"probe/finola-q{size}-lin", f"probe/finola-q{size}-tran1")
        ),
    ),
)

FIGURES = (
    Table("fig:masked-finola", "The pipelines of masked FINOLA."),
    Table(
        "fig:appendix:train-len",
        "Longer pre-training improves probing and barely changes fine-tuning.",
        needs=NEEDS_IMAGENET,
        recipes={
            f"masked/{variant}-w{width}-{epochs}": {
                "base": f"masked/{variant}-w{width}",
                "about": f"masked FINOLA-{variant.upper()} on Mobile-Former W{width} over {epochs} epochs",
                "schedule": {"epochs": epochs},
            }
            for variant, widths in (("e", (2880,)), ("b", WIDTHS))
            for width in widths
            for epochs in EPOCHS
        },
        commands=tuple(_schedules("b", *WIDTHS)),
    ),
    Table(
        "fig:cls-od-sup",
        "Frozen encoders of masked FINOLA detect better than those trained with labels, and classify worse before "
        "fine-tuning.",
        needs=NEEDS_COCO,
        commands=tuple(_against_labels(tuned=False)),
    ),
    Table(
        "fig:appendix:recon-ftlin",
        "Reconstruction from the frozen encoder of masked FINOLA.",
        page="recognition.md",
        recipes={
            f"masked/recon-{variant}-w2880": {
                "base": "paper/channels/512",
                "about": f"reconstruction by a frozen masked FINOLA-{variant.upper()} encoder; pooling and recurrence "
                "tuned, decoder new (appendix C)",
                "model": {"weights": f"runs/masked-{variant}-w2880/model", "frozen": ["encoder.*"]},
                "paper_psnr": None,
            }
            for variant in "eb"
        },
        claims=(
            _order(
                "frozen-reconstruction",
                "The frozen encoder of FINOLA reconstructs better than that of masked FINOLA-B, and that better than "
                "E's.",
                ("reconstruction",),
                *("masked-e", "masked-b", "finola"),
            ),
        ),
        commands=tuple(_train(f"masked/{stage}{variant}-w2880") for stage in ("", "recon-") for variant in "eb"),
    ),
    Table(
        "fig:appendix:element-vs-block",
        "Block-wise masking is better than element-wise masking.",
        page="recognition.md",
        claims=(
            _order(
                "block-wise",
                "Block-wise masking recognises better than element-wise masking.",
                ("lin", "tran-1", "fine-tuned"),
                *("masked-e", "masked-b"),
            ),
        ),
        commands=(*_schedules("e", 2880), *_schedules("b", 2880)),
    ),
    Table(
        "fig:masked-finola-gaussian",
        "Critical features have a larger Gaussian curvature in masked FINOLA than in FINOLA.",
        page="recognition.md",
        claims=(
            _order(
                "curvature",
                "The peak Gaussian curvature of the encoder's map, the mean over channels, is larger in masked FINOLA.",
                ("curvature",),
                *("finola", "masked-b"),
            ),
        ),
        commands=(
            *("finola train paper/channels/3072", "finola train masked/b-w2880"),
            "finola curvature PHOTO --model runs/paper-channels-3072/model --beside runs/masked-b-w2880/model "
            "-o curvature.png",
        ),
    ),
)

"""All figures of the paper, and claims on equations and of our own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from finola.paper import evidence
from finola.paper.definitions import (
    CURVATURE_METRICS,
    LATENT_METRICS,
    PROBES,
    TWIN,
    WAVE_METRICS,
    Row,
    Same,
    at_least,
    at_most,
    claim,
    increasing,
    near,
    table,
)
from finola.paper.recognition import (
    EPOCHS,
    PARITY,
    against_labels,
    order,
    over_images,
    schedules,
    studies,
    train,
)
from finola.paper.tables_appendix import GRID
from finola.paper.tables_main import WIDTHS

DIAGONALISABLE = 1e6
"""Largest condition number of the eigenvectors of a Q that counts as diagonalisable in single precision."""

_E, _B = tuple(over_images("masked-e")), tuple(over_images("masked-b"))
_CORNERS = ("top-left", "top-right", "bottom-left", "bottom-right")
_Q = {"q": Same("channels/3072", "C = 3072")}


FIGURES = (
    table("fig:wave-intro", "All images share one set of one-way wave equations."),
    table("fig:finola", "The pipeline from image to q, z and image."),
    table(
        "fig:finola-multipath",
        "M paths share the recurrence and are summed.",
        models={"latent 16,384 on one path or sixteen (§4.1)": ("mf-w2880/16384x1@64", "mf-w2880/1024x16@64")},
    ),
    table(
        "fig:finola-parallel",
        "Both orders of propagation are computed in parallel and averaged; this is faster than position by position.",
        claim(
            "parallel",
            "Propagation in parallel is at least 1.3 times as fast as position by position on a map of 16×16, and "
            "3 times on 64×64 (C = 3072, two threads).",
            at_least("16x16", "speed-up", 1.3),
            at_least("64x64", "speed-up", 3.0),
            source="propagation",
        ),
        page="speed.md",
        commands=("python benchmarks/bench.py propagation",),
    ),
    table(
        "fig:val-relax",
        "PSNR increases with the number of paths, and depends on paths and channels through their product only.",
        claim(
            "paths",
            "PSNR increases with the number of paths M.",
            increasing("1024x1", "1024x2", "1024x4", "1024x8"),
            also=("fig:wave-finola-vis", "fig:recon-mc"),
        ),
        claim(
            "latent-size",
            "PSNR differs by at most 0.5 dB if C is halved and M is doubled.",
            *(near(*pair, within=0.5) for pair in pairwise(("4096x1", "2048x2", "1024x4"))),
            rows={"4096x1": Same("grid/2048x1", "C = 4096, M = 1", twin={"channels": 128})},
        ),
        name="grid",
        rows={
            f"{c}x{m}": Row(f"C = {c}, M = {m}", f"mf-w2880/{c}x{m}@64", GRID.get((c, m)))
            for c in (128, 256, 512, 1024, 2048)
            for m in (1, 2, 4, 8, 16)
        },
    ),
    table("fig:appendix:recon-num-channels", "Image quality increases with the number of channels."),
    table("fig:appendix:recon-enc", "Image quality increases slightly with the size of the encoder."),
    table(
        "fig:appendix:recon-pos",
        "The position of q matters little; the centre is slightly better.",
        claim(
            "position",
            "PSNR differs by at most 0.5 dB between a start at the centre and starts in corners.",
            *(near("center", corner, within=0.5) for corner in _CORNERS),
        ),
        name="position",
        rows={"center": Same("channels/3072", "q at the center")}
        | {
            corner: Row(
                f"q at the {corner.replace('-', ' ')} corner",
                f"mf-w2880/3072x1@16+{'corner' if corner == 'top-left' else corner}",
            )
            for corner in _CORNERS
        },
    ),
    table(
        "fig:appendix:noise",
        "Vectors drawn from the normal distribution of q look like noise.",
        claim(
            "q-samples",
            "Samples of the normal distribution of q are closer to noise than images: the kurtosis of differences "
            "of neighbouring pixels is smaller.",
            at_most("q", "sample_kurtosis", 1.0),
            rows=_Q,
            metrics=LATENT_METRICS,
        ),
    ),
    table(
        "fig:appendix:recon-mean",
        "The mean of q is reconstructed as a grey image.",
        claim(
            "q-mean",
            "The image of the mean q̄ has at most a quarter of the contrast of an image, and 2q̄ − q reverses the "
            "image around it (correlation at most −0.8).",
            at_most("q", "mean_contrast", 0.25),
            at_most("q", "mirror_correlation", -0.8),
            rows=_Q,
            metrics=LATENT_METRICS,
        ),
    ),
    table(
        "fig:appendix:recon-mixup",
        "A mixture of two q is reconstructed as a mixture of images.",
        claim(
            "q-mixture",
            "The image of a mixture of two q is the mixture of their images (PSNR at least 25 dB).",
            at_least("q", "mixture_psnr", 25.0),
            rows=_Q,
            metrics=LATENT_METRICS,
        ),
    ),
    table(
        "fig:appendix:recon-pca",
        "The first 192 principal components determine colour and layout.",
        claim(
            "q-components",
            "A sixteenth of the principal components holds at least half of the variance of q, and more components "
            "never lower PSNR.",
            at_least("q", "first_components", 0.5),
            at_least("q", "component_gain", -0.005),
            rows=_Q,
            metrics=LATENT_METRICS,
        ),
    ),
    table("fig:wave-finola-vis", "Several paths reconstruct better than one."),
    table("fig:recon-mc", "Image quality increases with paths and channels."),
    table("fig:recon-special", "Real and all-one speeds still reconstruct recognisable images."),
    table("fig:masked-finola", "The pipelines of masked FINOLA."),
    table(
        "fig:appendix:train-len",
        "Longer pre-training improves probing and barely changes fine-tuning.",
        studies(
            "pre-training-length",
            f"Longer pre-training improves probing, and changes fine-tuning by at most {PARITY:g} % (masked FINOLA-B).",
            *(increasing(*_B, metric=metric) for metric in ("lin", "tran-1")),
            near(_B[0], _B[-1], within=PARITY, metric="fine-tuned"),
            metrics=(*PROBES, "fine-tuned"),
        ),
        page="recognition.md",
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
        commands=tuple(schedules("b", *WIDTHS)),
    ),
    table(
        "fig:cls-od-sup",
        "Frozen encoders of masked FINOLA detect better than those trained with labels, and classify worse before "
        "fine-tuning.",
        needs="ImageNet-1K and COCO 2017",
        commands=tuple(against_labels(tuned=False)),
    ),
    table(
        "fig:appendix:recon-ftlin",
        "Reconstruction from the frozen encoder of masked FINOLA.",
        order(
            "frozen-reconstruction",
            "The frozen encoder of FINOLA reconstructs better than that of masked FINOLA-B, and that better than E's.",
            ("reconstruction",),
            *("masked-e", "masked-b", "finola"),
        ),
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
        commands=tuple(train(f"masked/{stage}{variant}-w2880") for stage in ("", "recon-") for variant in "eb"),
    ),
    table(
        "fig:appendix:element-vs-block",
        "Block-wise masking is better than element-wise masking.",
        studies(
            "block-wise",
            "In probing, block-wise masking is better than element-wise masking after pre-training of any length.",
            *(increasing(*pair, metric=metric) for pair in zip(_E, _B, strict=True) for metric in ("lin", "tran-1")),
            metrics=PROBES,
        ),
        page="recognition.md",
        commands=(*schedules("e", 2880), *schedules("b", 2880)),
    ),
    table(
        "fig:masked-finola-gaussian",
        "Critical features have a larger Gaussian curvature in masked FINOLA than in FINOLA.",
        *(
            studies(
                name,
                f"The peak Gaussian curvature of {which}, over the 5 % of channels where it is largest, is larger in "
                "masked FINOLA than in FINOLA, for maps as they are and scaled to a standard deviation of 1.",
                *(
                    increasing("finola", masked, metric=f"{kind}-curvature-5{suffix}")
                    for masked in ("masked-e", "masked-b")
                    for suffix in ("", "-scaled")
                ),
                metrics=CURVATURE_METRICS,
            )
            for name, kind, which in (
                ("curvature", "z", "z"),
                ("curvature-encoder", "encoder", "the map of the encoder"),
            )
        ),
        page="recognition.md",
        commands=(
            *("finola train paper/channels/3072", "finola train masked/b-w2880"),
            "finola curvature PHOTO --model runs/paper-channels-3072/model --beside runs/masked-b-w2880/model "
            "-o curvature.png",
        ),
    ),
)

_CHANNELS = (96,)
_RANDOM = {f"random-{c}": Same("channels/3072", f"random start, C = {c}", twin={"channels": c}) for c in _CHANNELS}
_SIDE = TWIN.image_size
# The learning rates of the wave initialisation are those of its own recipe, data and schedule those of `_fit`.
_LIKE_FIT = (
    *("data.path=null", f"data.size={_SIDE}", f"data.val_size={_SIDE}", "data.crop=resized", "data.scale=[0.4,1.0]"),
    *("data.flip=true", "data.crops_per_image=2", "data.batch_size=64", "data.val_limit=null"),
    *("schedule.clock=steps", "schedule.epochs=7", "schedule.warmup_epochs=0.35", "trainer.max_time=null"),
)
_CURVE = ("trainer.check_val_every_n_epoch=1", "trainer.validate_first=true")
OTHERS = (
    table(
        "eq:finola-pde",
        "Feature maps obey first-order partial differential equations.",
        claim(
            "wave-equation",
            "After training from random A and B, the Q of the model explains at least 90 % of the variance of Δx z.",
            at_least("free", "explained_by_Q", 0.9),
            rows={row: evidence.WAVES[row] for row in ("untrained", "free")},
            metrics=("psnr", *WAVE_METRICS),
            scales=("cpu",),
        ),
    ),
    table(
        "eq:wave",
        "Diagonalised, they are one-way wave equations.",
        claim(
            "waves",
            "After training from random A and B, B is invertible and AB⁻¹ is diagonalisable on the complement of the "
            "all-ones vector.",
            at_least("free", "invertible_B", 0.5),
            at_most("free", "cond_V", DIAGONALISABLE),
            rows={row: evidence.WAVES[row] for row in ("untrained", "free")},
            metrics=("psnr", *WAVE_METRICS),
            scales=("cpu",),
        ),
    ),
    table(
        "",
        "Results of our own.",
        claim(
            "wave-start",
            "At an equal number of images, training from the wave initialisation is better than from random weights.",
            *(increasing(f"random-{c}", f"wave-{c}") for c in _CHANNELS),
            rows={name: replace(row, cpu=_CURVE) for name, row in _RANDOM.items()}
            | {
                f"wave-{c}": Same(
                    "waves-tile64",
                    f"wave start, C = {c}",
                    overrides=(f"model.name=waves+conv/{c}x1@{_SIDE // 4}:{_SIDE}", *_LIKE_FIT, *_CURVE),
                )
                for c in _CHANNELS
            },
            curve=True,
            scales=("cpu",),
        ),
        claim(
            "wave-matrices",
            "Between a learned encoder and a learned decoder, A and B initialised with plane waves are better than "
            "random ones, trained or fixed.",
            *(increasing("random-96", kind) for kind in ("trained", "fixed")),
            rows={"random-96": _RANDOM["random-96"]}
            | {
                kind: Same(
                    "channels/3072",
                    f"wave matrices, {kind}, C = 96",
                    cpu=("model.init=wave-matrices", "model.transition_scale=1", *frozen),
                )
                for kind, frozen in (("trained", ()), ("fixed", ("model.frozen=[transition.*]",)))
            },
            metrics=("psnr", "klt", *WAVE_METRICS),
            scales=("cpu",),
        ),
        models={
            "plane waves (ours)": (
                *("waves/256x1@16:64", "waves+conv/256x1@16:64", "waves+conv/512x1@16:64"),
                *("waves/1024x1@16", "waves/3072x1@16"),
            )
        },
    ),
    evidence.TABLE,
)

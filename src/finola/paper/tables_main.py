"""Tables 1 to 9 of the paper, in the order of their captions."""

from __future__ import annotations

from itertools import combinations

from finola.paper.definitions import (
    Row,
    Same,
    claim,
    diverges,
    drops,
    gains_at_most,
    increasing,
    near,
    numbers,
    table,
)

CONSTANT_IMAGE = 12.5
"""PSNR (dB) that a model must exceed to have learned anything: the mean colour of photos256 train has 12.1 dB on its
val photos at 64 pixels."""
WIDTHS = (720, 1440, 2880)
"""Channels of the Mobile-Former encoders of recognition."""
# A map of 16×16, the twin of 64×64, is too small for the linear recurrence to diverge. A step on a map of 64×64 costs
# sixteen times as much, so these runs are shorter. A and B start so small that no map diverges before training.
_WIDE = {"map_size": (64, 64), "image_size": (64, 64), "decoder": "patch"}
_SHORT = ("schedule.epochs=1", "model.transition_scale=0.1")
# PSNR with one path and with four, by the side of the map.
_SIDES = {8: (25.4, 25.9), 16: (25.8, 26.2), 32: (25.8, 26.2), 64: (25.7, 26.1), 128: (25.3, 25.4), 256: (24.6, 24.8)}


def compared(*words: str) -> tuple[str, ...]:
    """Commands that train the multi-path models and compare them with other methods."""
    names = [f"grid/{size}" for size in ("1024x2", "1024x4", "1024x8", "2048x8", "2048x16")]
    names += [f"starts/{size}-scatter" for size in ("1024x4", "1024x8", "2048x8", "2048x16")]
    methods = " ".join([*words, *(f"runs/paper-{name.replace('/', '-')}/model" for name in names)])
    compare = f"finola compare DATA --split val --crop 256 --methods {methods}"
    return (*(f"finola train paper/{name}" for name in names), compare)


TABLES = (
    table(
        "table:multi-resolution",
        "PSNR is similar for all map sizes up to 64×64 and drops slightly on larger maps, whose decoders are smaller.",
        claim(
            "resolution",
            "PSNR differs by at most 0.5 dB between maps up to 64×64, and by at most 1 dB from there to 128×128.",
            *(near(*pair, within=0.5) for pair in combinations(("3072x1@8", "3072x1@16", "3072x1@64"), 2)),
            near("3072x1@64", "3072x1@128", within=1.0),
        ),
        name="resolution",
        rows={
            f"{model}@{side}": Row(
                f"a map of {side}x{side}, {paths}", f"mf-w2880/{model}@{side}", psnr[paths != "one path"]
            )
            for model, paths, other in (("3072x1", "one path", 16), ("1024x4", "four paths", 64))
            for side, psnr in _SIDES.items()
            if side != other
        }
        | {
            "3072x1@16": Same("channels/3072", "a map of 16x16, one path"),
            "1024x4@64": Same("grid/1024x4", "a map of 64x64, four paths"),
        },
        quoted=numbers("side decoder_m", (8, 25.3), (16, 18.5), (32, 9.6), (64, 7.9), (128, 1.7), (256, 1.2)),
    ),
    table(
        "table:comp-auto",
        "Norm+linear is better than repetition with or without position embedding; linear without a norm does not "
        "converge on a map of 64×64.",
        claim(
            "autoregression",
            "Norm+linear is better than repetition with position embedding, and that is better than repetition.",
            *(increasing(f"repetition@{side}", f"repetition-pos@{side}", f"norm-linear@{side}") for side in (16, 64)),
        ),
        claim(
            "linear",
            "Without a norm, PSNR is similar on a small map (within 1 dB), and training diverges on a large one.",
            near("linear@16", "norm-linear@16", within=1.0),
            diverges("wide", floor=CONSTANT_IMAGE),
            increasing("wide", "norm-linear-wide"),
            rows={
                "wide": Same(
                    "autoregression/linear@64",
                    "linear without a norm, which does not converge, 64x64",
                    twin=_WIDE,
                    cpu=_SHORT,
                ),
                "norm-linear-wide": Same("resolution/3072x1@64", "norm+linear, 64x64", twin=_WIDE, cpu=_SHORT),
            },
        ),
        name="autoregression",
        rows={
            f"{name}@{side}": Row(f"{about}, {side}x{side}", f"mf-w2880/3072x1@{side}{option}", psnr)
            for name, about, option, *by_side in (
                ("repetition", "repetition", "+repeat", 16.1, 13.3),
                ("repetition-pos", "repetition with position embedding", "+repeat+pos", 20.2, 21.2),
            )
            for side, psnr in zip((16, 64), by_side, strict=True)
        }
        | {
            "linear@16": Row("linear without a norm, 16x16", "mf-w2880/3072x1@16+linear", 25.4),
            "linear@64": Row("linear without a norm, which does not converge, 64x64", "mf-w2880/3072x1@64+linear"),
            "norm-linear@16": Same("channels/3072", "norm+linear, 16x16"),
            "norm-linear@64": Same("resolution/3072x1@64", "norm+linear, 64x64"),
        },
    ),
    table(
        "table:comp-nonlinear",
        "A two-layer MLP instead of the linear layer gains almost nothing.",
        claim(
            "nonlinear",
            "An MLP of two layers instead of the linear layer gains at most 0.3 dB.",
            *(gains_at_most(f"linear-{channels}", f"mlp-{channels}", limit=0.3) for channels in (512, 3072)),
        ),
        name="nonlinear",
        rows={
            f"mlp-{channels}": Row(f"norm+nonlinear, C = {channels}", f"mf-w2880/{channels}x1@16+mlp", psnr)
            for channels, psnr in {512: 22.4, 1024: 23.8, 3072: 25.8}.items()
        }
        | {f"linear-{c}": Same(f"channels/{c}", f"norm+linear, C = {c}") for c in (512, 1024, 3072)},
    ),
    table(
        "table:comp-norm",
        "Batch norm is nearly as good as layer norm in training and far worse in validation.",
        claim(
            "normalisation",
            "Batch norm trains nearly as well as layer norm (within 1 dB), validates worse, and loses at least 1 "
            "dB from training to validation.",
            near("batch-norm", "layer-norm", within=1.0, metric="train_mode_psnr"),
            increasing("batch-norm", "layer-norm"),
            drops("batch-norm", first="train_mode_psnr", second="psnr", by=1.0),
            metrics=("psnr", "klt", "train_mode_psnr"),
        ),
        name="normalisation",
        rows={
            "batch-norm": Row("batch norm", "mf-w2880/3072x1@16+batchnorm", 16.3, {"train_mode_psnr": 25.1}),
            "layer-norm": Same("channels/3072", "layer norm", {"train_mode_psnr": 25.5}),
        },
    ),
    table(
        "table:comp-dct",
        "FINOLA is better than the DCT at a similar number of latents.",
        claim(
            "dct",
            "Small twins of FINOLA, trained from random weights, are better than the DCT with about as many latents.",
            increasing("DCT, first 1", "FINOLA, latent 2048"),
            increasing("DCT, first 6", "FINOLA, latent 8192"),
            source="twins",
        ),
        claim(
            "dct-bundled",
            "The bundled model tile32, whose plane waves are fixed and whose codebook and networks on pixels are "
            "trained, is better than the DCT with fewer latents.",
            increasing("DCT, first 1", "tile32, 2048 latents"),
            increasing("DCT, first 3", "tile32, 8192 latents"),
            source="bundled",
        ),
        page="compare.md",
        quoted=numbers(
            "method word latents psnr",
            ("DCT, first 1", "dct:1", 3072, 20.6),
            ("DCT, first 3", "dct:3", 9216, 23.5),
            ("DCT, first 6", "dct:6", 18432, 25.6),
            ("DCT, first 10", "dct:10", 30720, 27.5),
        ),
        commands=compared("dct:1", "dct:3", "dct:6", "dct:10"),
    ),
    table(
        "table:comp-dwt",
        "FINOLA is better than the DWT and the DTCWT with fewer latents, except the DTCWT with 6 times as many.",
        claim(
            "wavelets",
            "Small twins of FINOLA, trained from random weights, are better than DWT and DTCWT with fewer latents.",
            increasing("DWT, scale 3 LL", "FINOLA, latent 2048"),
            increasing("DTCWT, scale 3 LL", "FINOLA, latent 2048"),
            increasing("DWT, scale 3", "FINOLA, latent 8192"),
            source="twins",
        ),
        claim(
            "wavelets-bundled",
            "The bundled model tile32, whose plane waves are fixed and whose codebook and networks on pixels are "
            "trained, is better than the DWT and the DTCWT with fewer latents.",
            increasing("DWT, scale 3 LL", "tile32, 2048 latents"),
            increasing("DWT, scale 3", "tile32, 8192 latents"),
            increasing("DTCWT, scale 3 LL", "tile32, 2048 latents"),
            increasing("DTCWT, scale 3", "tile32, 8192 latents"),
            source="bundled",
        ),
        page="compare.md",
        quoted=numbers(
            "method word latents psnr",
            ("DWT, scale 3 LL", "dwt:ll", 3888, 21.5),
            ("DWT, scale 3", "dwt:scale3", 15552, 24.3),
            ("DWT, scale 2", "dwt:scale2", 55953, 28.7),
            ("DTCWT, scale 3 LL", "dtcwt:ll", 12288, 22.3),
            ("DTCWT, scale 3", "dtcwt:scale3", 49152, 25.6),
            ("DTCWT, scale 2", "dtcwt:scale2", 196608, 30.8),
        ),
        commands=compared("dwt:ll", "dtcwt:ll", "dwt:scale3", "dtcwt:scale3", "dwt:scale2", "dtcwt:scale2"),
    ),
    table(
        "table:comp-ae",
        "FINOLA is better than a Conv-AE with the same number of latents and more parameters.",
        claim(
            "conv-ae",
            "FINOLA is better than a Conv-AE with the same number of latents and more parameters.",
            increasing("conv-ae-2048", "finola-2048"),
            increasing("conv-ae-8192", "finola-8192"),
            parameters=True,
        ),
        claim(
            "conv-ae-small",
            "FINOLA is better than a residual Conv-AE with the same number of latents and about as many parameters.",
            increasing("small-2048", "finola-2048"),
            increasing("small-8192", "finola-8192"),
            rows={
                f"small-{latents}": Same(
                    f"conv-ae/conv-ae-{latents}",
                    f"Conv-AE of width {width}, latent {latents}",
                    twin={"transition": f"resae{width}"},
                )
                for latents, width in ((2048, 4), (8192, 2))
            },
            parameters=True,
            scales=("cpu",),
        ),
        name="conv-ae",
        rows={
            "conv-ae-2048": Row("Conv-AE, latent 2048", "mf-w2880/512x4@64+convae", 24.6, {"parameters_m": 35.9}),
            "finola-2048": Same("grid/1024x2", "FINOLA, latent 2048", {"parameters_m": 16.6}),
            "conv-ae-8192": Row("Conv-AE, latent 8192", "mf-w2880/2048x4@64+convae", 26.0, {"parameters_m": 61.9}),
            "finola-8192": Same("grid/1024x8", "FINOLA, latent 8192", {"parameters_m": 16.6}),
        },
    ),
    table(
        "table:comp-jpeg",
        "FINOLA, quantised per channel without entropy coding, is better than JPEG at the same rate or a higher one.",
        *(
            claim(
                name,
                f"photo256, one vector of 3072 latents with four bits each (0.19 bpp), is better than JPEG at {bpp} "
                f"bpp on {data}.",
                increasing(f"jpeg@{bpp}", "finola-paper:photo256"),
                source=f"{data}-4bit",
            )
            for name, data, bpp in (
                *(("jpeg-kodak", "kodak", 0.2), ("jpeg-photos256", "photos256", 0.5)),  # the paper's rates
                *(("jpeg-rate-kodak", "kodak", 0.19), ("jpeg-rate-photos256", "photos256", 0.19)),
            )
        ),
        claim(
            "jpeg-coded",
            "With entropy coding, the default codec is better than JPEG at 0.19 bpp on kodak.",
            increasing("JPEG, optimised", "finola (tile32)"),
            source="kodak",
        ),
        page="compare.md",
        quoted=numbers(
            "method data bpp psnr",
            ("JPEG", "ImageNet", 0.5, 24.5),
            ("FINOLA, 3072x1, 4 bits", "ImageNet", 0.19, 24.9),
            ("JPEG", "Kodak", 0.2, 24.0),
            ("FINOLA, 3072x1, 4 bits", "Kodak", 0.19, 25.6),
        ),
        commands=(
            "finola train paper/channels/3072",
            "finola calibrate runs/paper-channels-3072/model DATA --plain",
            *(
                f"finola compare {photos} --methods jpeg@0.19 finola-paper:runs/paper-channels-3072/model"
                for photos in ("DATA --split val --crop 256", "kodak/")
            ),
        ),
    ),
    table(
        "table:finola-vs-self-sup",
        "Fine-tuned masked FINOLA is as accurate as other self-supervised methods of the same size.",
        needs="ImageNet-1K",
        recipes={
            f"finetune/tran4-w{width}": {
                "base": f"finetune/w{width}",
                "about": f"fine-tuning of encoder and tran-4 head, {width} channels",
                "model": {"weights": f"runs/probe-tran4-w{width}/model"},
                "head": {"kind": "tran-4"},
            }
            for width in WIDTHS
        },
        models={
            "classifiers of 1000 classes at 224 pixels": tuple(
                f"probe/{head}-w{width}" for head in ("lin", "tran1", "tran4") for width in WIDTHS
            )
        },
        quoted=numbers(
            "method model multiply_adds_g parameters_m top1",
            ("MoCo-v3", "ViT-Tiny", 1.2, 6, 76.8),
            ("MAE-Lite", "ViT-Tiny", 1.2, 6, 78.0),
            ("FINOLA", "MF-W720", 0.7, 7, 78.4),
            ("MoCo-v3", "ViT-S", 4.6, 22, 81.4),
            ("UM-MAE", "Swin-T", 4.5, 29, 82.0),
            ("MAE-Lite", "ViT-S", 4.6, 22, 82.1),
            ("SimMIM", "Swin-T", 4.5, 29, 82.2),
            ("FINOLA", "MF-W1440", 2.6, 20, 82.2),
            ("MoCo-v3", "ViT-B", 16.8, 86, 83.2),
            ("MAE", "ViT-B", 16.8, 86, 83.6),
            ("SimMIM", "ViT-B", 16.8, 86, 83.8),
            ("SimMIM", "Swin-B", 15.4, 88, 84.0),
            ("FINOLA", "MF-W2880", 9.9, 57, 83.9),
        ),
        commands=tuple(
            f"finola train {name}-w{width}"
            for width in WIDTHS
            for name in ("masked/b", "probe/tran4", "finetune/tran4")
        ),
    ),
)

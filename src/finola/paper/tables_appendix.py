"""Tables 10 to 18, all figures, and claims on equations and of our own."""

from __future__ import annotations

from itertools import pairwise

from finola.paper.definitions import (
    LATENT_METRICS,
    MOBILE_FORMER_TWIN,
    NEEDS_IMAGENET,
    TWIN,
    WAVE_METRICS,
    Claim,
    Row,
    Same,
    Table,
    at_least,
    at_most,
    increasing,
    near,
    numbers,
)
from finola.paper.tables_main import compared

GRID = {(1024, 2): 24.8, (1024, 4): 26.1, (1024, 8): 27.1, (1024, 16): 27.7, (2048, 8): 28.0, (2048, 16): 29.1}
"""PSNR by channels C and paths M on a map of 64×64 where a table has it; others are points of a figure."""
SCATTERED = {(1024, 4): 26.7, (1024, 8): 28.0, (1024, 16): 29.1, (2048, 8): 28.9, (2048, 16): 30.0}
DIAGONALISABLE = 1e6
"""Largest condition number of the eigenvectors of a Q that counts as diagonalisable in single precision."""

TABLES = (
    Table("table:hidden-vs-dct", "Properties of the DCT, wavelets and FINOLA."),
    Table("table:appendix:mf-enc-achs", "Architecture of the Mobile-Former encoders."),
    Table("table:appendix:upsampler-achs", "Architecture of the upsampling decoder."),
    Table("table:appendix:FINOLA", "Settings of reconstruction training."),
    Table("table:comp-arch-conv-ae", "Architecture of the Conv-AE."),
    Table(
        "table:comp-diffusion",
        "FINOLA reconstructs better than the first stage of generative models at a similar number of latents, except "
        "at the largest one.",
        needs=NEEDS_IMAGENET,
        quoted=numbers(
            "method latents shape psnr",
            ("DALL-E", None, "32x32x-", 22.8),
            ("VQGAN", 65536, "16x16x256", 19.9),
            ("Stable Diffusion", 4096, "16x16x16", 24.1),
            ("Stable Diffusion", 12288, "64x64x3", 27.5),
            ("Stable Diffusion", 32768, "128x128x2", 30.9),
        ),
        commands=compared(),
    ),
    Table(
        "table:ablation",
        "PSNR increases with the number of channels.",
        name="channels",
        part="a",
        rows={
            str(channels): Row(f"C = {channels}", f"mf-w2880/{channels}x1@16", psnr)
            for channels, psnr in {
                **{4096: 25.9, 3072: 25.8, 2048: 25.1, 1024: 23.7},
                **{512: 22.2, 256: 20.8, 128: 19.4, 64: 18.2},
            }.items()
        },
        claims=(
            Claim(
                "channels",
                "PSNR increases with the number of channels C of a single path.",
                (increasing("256", "512", "1024", "3072"),),
                also=("fig:appendix:recon-num-channels", "fig:recon-mc"),
            ),
        ),
    ),
    Table(
        "table:ablation",
        "PSNR increases with the size of the encoder.",
        name="encoders",
        part="b",
        rows={
            f"mf-w{width}": Row(f"Mobile-Former W{width}", f"mf-w{width}/3072x1@16", psnr, {"encoder_m": size})
            for width, psnr, size in ((5760, 26.1, 67.6), (4320, 26.0, 43.5), (1440, 25.1, 12.0), (720, 24.4, 5.0))
        }
        | {"mf-w2880": Same("channels/3072", "Mobile-Former W2880", {"encoder_m": 25.0})},
        twin=MOBILE_FORMER_TWIN,
        claims=(
            Claim(
                "encoders",
                "PSNR increases with the size of the Mobile-Former encoder.",
                (increasing("mf-w720", "mf-w1440", "mf-w2880"),),
                also=("fig:appendix:recon-enc",),
            ),
        ),
    ),
    Table(
        "table:special-case-all",
        "Complex speeds are better than real ones, these better than all-one speeds, and these better than repetition.",
        name="speeds",
        rows={
            "complex": Same("grid/1024x4", "complex speeds"),
            "real": Row("real speeds", "mf-w2880/1024x4@64+real", 25.1),
            "unit": Row("all speeds one, with position embedding", "mf-w2880/1024x4@64+unit", 23.9),
            "repetition-pos": Row("repetition with position embedding", "mf-w2880/4096x1@64+repeat+pos", 21.6),
        },
        claims=(
            Claim(
                "speeds",
                "Complex speeds are better than real ones, and real ones are better than all-one speeds.",
                (increasing("unit", "real", "complex"),),
                also=("fig:recon-special",),
            ),
            Claim(
                "all-one",
                "All-one speeds are better than repetition, both with position embedding and the same number of "
                "latents.",
                (increasing("repetition-pos", "unit"),),
                also=("fig:recon-special",),
            ),
        ),
    ),
    Table(
        "table:mixture-hidden-waves",
        "Scattered start positions are better than a common one.",
        name="starts",
        rows={
            f"{c}x{m}-scatter": Row(f"C = {c}, M = {m}, scattered starts", f"mf-w2880/{c}x{m}@64+scatter", psnr)
            for (c, m), psnr in SCATTERED.items()
        }
        | {
            f"{c}x{m}-center": Same(f"grid/{c}x{m}", f"C = {c}, M = {m}, all starts at the center")
            for c, m in SCATTERED
        },
        claims=(
            Claim(
                "starts",
                "Scattered starts are better than a common start at the centre.",
                tuple(increasing(f"1024x{paths}-center", f"1024x{paths}-scatter") for paths in (4, 8)),
            ),
        ),
    ),
)


def _latent(name: str, sentence: str, *checks: tuple[str, str, float]) -> tuple[Claim, ...]:
    """Claim on the space of q of a model that is trained from random weights."""
    kinds = {"at least": at_least, "at most": at_most}
    found = tuple(kinds[kind]("q", metric, bound) for metric, kind, bound in checks)
    rows = {"q": Same("channels/3072", "C = 3072")}
    return (Claim(name, sentence, found, rows=rows, metrics=LATENT_METRICS),)


FIGURES = (
    Table("fig:wave-intro", "All images share one set of one-way wave equations."),
    Table("fig:finola", "The pipeline from image to q, z and image."),
    Table(
        "fig:finola-multipath",
        "M paths share the recurrence and are summed.",
        models={"latent 16,384 on one path or sixteen (§4.1)": ("mf-w2880/16384x1@64", "mf-w2880/1024x16@64")},
    ),
    Table(
        "fig:finola-parallel",
        "Both orders of propagation are computed in parallel and averaged; this is faster than position by position.",
        page="speed.md",
        claims=(
            Claim(
                "parallel",
                "Propagation in parallel is at least 1.3 times as fast as position by position on a map of 16×16, and "
                "3 times on 64×64 (C = 3072, one and two threads).",
                (at_least("16x16", "speed-up", 1.3), at_least("64x64", "speed-up", 3.0)),
                source="propagation",
            ),
        ),
        commands=("python benchmarks/bench.py propagation",),
    ),
    Table(
        "fig:val-relax",
        "PSNR increases with the number of paths, and depends on paths and channels through their product only.",
        name="grid",
        rows={
            f"{c}x{m}": Row(f"C = {c}, M = {m}", f"mf-w2880/{c}x{m}@64", GRID.get((c, m)))
            for c in (128, 256, 512, 1024, 2048)
            for m in (1, 2, 4, 8, 16)
        },
        claims=(
            Claim(
                "paths",
                "PSNR increases with the number of paths M.",
                (increasing("1024x1", "1024x2", "1024x4", "1024x8"),),
                also=("fig:wave-finola-vis", "fig:recon-mc"),
            ),
            Claim(
                "latent-size",
                "PSNR differs by at most 0.5 dB if C is halved and M is doubled.",
                tuple(near(*pair, within=0.5) for pair in pairwise(("2048x1", "1024x2", "512x4", "256x8"))),
            ),
        ),
    ),
    Table("fig:appendix:recon-num-channels", "Image quality increases with the number of channels."),
    Table("fig:appendix:recon-enc", "Image quality increases slightly with the size of the encoder."),
    Table(
        "fig:appendix:recon-pos",
        "The position of q matters little; the centre is slightly better.",
        name="position",
        rows={"center": Same("channels/3072", "q at the center")}
        | {
            corner: Row(
                f"q at the {corner.replace('-', ' ')} corner",
                f"mf-w2880/3072x1@16+{'corner' if corner == 'top-left' else corner}",
            )
            for corner in ("top-left", "top-right", "bottom-left", "bottom-right")
        },
        claims=(
            Claim(
                "position",
                "PSNR differs by at most 0.5 dB between a start at the centre and starts in corners.",
                tuple(near("center", corner, within=0.5) for corner in ("top-left", "bottom-right")),
            ),
        ),
    ),
    Table(
        "fig:appendix:noise",
        "Vectors drawn from the normal distribution of q look like noise.",
        claims=_latent(
            "q-samples",
            "Samples of the normal distribution of q are closer to noise than images: the kurtosis of differences of "
            "neighbouring pixels is smaller.",
            ("sample_kurtosis", "at most", 1.0),
        ),
    ),
    Table(
        "fig:appendix:recon-mean",
        "The mean of q is reconstructed as a grey image.",
        claims=_latent(
            "q-mean",
            "The image of the mean q̄ has at most a quarter of the contrast of an image, and 2q̄ − q reverses the image "
            "around it (correlation at most −0.8).",
            ("mean_contrast", "at most", 0.25),
            ("mirror_correlation", "at most", -0.8),
        ),
    ),
    Table(
        "fig:appendix:recon-mixup",
        "A mixture of two q is reconstructed as a mixture of images.",
        claims=_latent(
            "q-mixture",
            "The image of a mixture of two q is the mixture of their images (PSNR at least 25 dB).",
            ("mixture_psnr", "at least", 25.0),
        ),
    ),
    Table(
        "fig:appendix:recon-pca",
        "The first 192 principal components determine colour and layout.",
        claims=_latent(
            "q-components",
            "A sixteenth of the principal components holds at least half of the variance of q, and more components "
            "never lower PSNR.",
            ("first_components", "at least", 0.5),
            ("component_gain", "at least", -0.005),
        ),
    ),
    Table("fig:wave-finola-vis", "Several paths reconstruct better than one."),
    Table("fig:recon-mc", "Image quality increases with paths and channels."),
    Table("fig:recon-special", "Real and all-one speeds still reconstruct recognisable images."),
)

_TRAINING = {
    "step": Same("resolution/3072x1@64", "after one step", overrides=("trainer.max_steps=1",)),
    "steps": Same("resolution/3072x1@64", "after 100 steps", overrides=("trainer.max_steps=100",)),
    "end": Same("resolution/3072x1@64", "after training"),
}
_RANDOM = {
    f"random-{c}": Same("channels/3072", f"random start, C = {c}", twin={"channels": c}) for c in (64, 128, 256, 512)
}
_SIDE = TWIN.image_size
# The learning rates of the wave initialisation are those of its own recipe.
_PHOTOS = ("data.path=null", f"data.size={_SIDE}", f"data.val_size={_SIDE}", "data.crop=resized")
_SCHEDULE = ("schedule.clock=steps", "trainer.max_time=null", *TWIN.overrides("data", "schedule"))
OTHERS = (
    Table(
        "eq:finola-pde",
        "Feature maps obey first-order partial differential equations.",
        claims=(
            Claim(
                "wave-equation",
                "The map, the mean of both orders, satisfies the wave equations with a relative residual of at most "
                "0.1.",
                (at_most("end", "residual", 0.1),),
                rows=_TRAINING,
                metrics=("psnr", *WAVE_METRICS),
            ),
        ),
    ),
    Table(
        "eq:wave",
        "Diagonalised, they are one-way wave equations.",
        claims=(
            Claim(
                "waves",
                "After training from random A and B, B is invertible, AB⁻¹ is diagonalisable and most speeds are "
                "complex.",
                (
                    at_least("end", "invertible_B", 0.5),
                    at_most("end", "cond_V", DIAGONALISABLE),
                    at_least("end", "complex_share", 0.5),
                ),
                rows=_TRAINING,
                metrics=("psnr", *WAVE_METRICS),
            ),
        ),
    ),
    Table(
        "",
        "Results of our own.",
        models={
            "plane waves (ours)": (
                *("waves/256x1@16:64", "waves+conv/256x1@16:64", "waves+conv/512x1@16:64"),
                *("waves/1024x1@16", "waves/3072x1@16"),
            )
        },
        claims=(
            Claim(
                "wave-start",
                "At an equal number of images, training from the wave initialisation is better than from random "
                "weights.",
                tuple(increasing(f"random-{c}", f"wave-{c}") for c in (64, 128, 256, 512)),
                rows=_RANDOM
                | {
                    f"wave-{c}": Same(
                        "waves-tile64",
                        f"wave start, C = {c}",
                        overrides=(f"model.name=waves+conv/{c}x1@{_SIDE // 4}:{_SIDE}", *_PHOTOS, *_SCHEDULE),
                    )
                    for c in (64, 128, 256, 512)
                },
                curve=True,
                scales=("cpu",),
            ),
            Claim(
                "wave-matrices",
                "Between a learned encoder and a learned decoder, A and B initialised with plane waves are better than "
                "random ones, trained or fixed.",
                tuple(increasing("random-256", kind) for kind in ("trained", "fixed")),
                rows={"random-256": _RANDOM["random-256"]}
                | {
                    kind: Same(
                        "channels/3072",
                        f"wave matrices, {kind}, C = 256",
                        overrides=("model.init=wave-matrices", *frozen),
                        twin={"channels": 256},
                    )
                    for kind, frozen in (("trained", ()), ("fixed", ("model.frozen=[transition.*]",)))
                },
                curve=True,
                scales=("cpu",),
            ),
        ),
    ),
)

"""Claims about waves and about the space of q, the paper's and our own."""

from __future__ import annotations

from finola.recipes.table import TWIN
from finola.reproduce.definitions import Claim, Row, rows_of
from finola.reproduce.measures import LATENT_METRICS, WAVE_METRICS
from finola.reproduce.verdicts import at_least, at_most, increasing

WAVE_CHANNELS, MATRIX_CHANNELS = (64, 128, 256, 512), (256,)
"""Numbers of channels of the comparisons of random and wave initialisation."""
DIAGONALISABLE = 1e6
"""Largest condition number of the eigenvectors of a Q that counts as diagonalisable in single precision."""


def wave_claims() -> tuple[Claim, ...]:
    """What training does to the waves, and what the wave initialisation does for training."""
    recipe = "{scale}/resolution/3072x1@64"
    during = (
        Row("after one step", recipe, ("trainer.max_steps=1",)),
        Row("after 100 steps", recipe, ("trainer.max_steps=100",)),
        Row("after training", recipe),
    )
    side = TWIN.image_size
    photos = (
        "data.path=null",
        f"data.size={side}",
        f"data.val_size={side}",
        "data.crop=resized",
    )
    # The learning rates of the wave initialisation are those of its own recipe.
    common = (setting for setting in TWIN.overrides() if not setting.startswith("optimiser."))
    schedule = ("schedule.clock=steps", "trainer.max_time=null", *common)
    random = {
        channels: Row(f"random start, C = {channels}", "{scale}/channels/3072", twin={"channels": channels})
        for channels in WAVE_CHANNELS
    }
    waves = {
        channels: Row(
            f"wave start, C = {channels}",
            "waves-tile64",
            (f"model.name=waves+conv/{channels}x1@{side // 4}:{side}", *photos, *schedule),
        )
        for channels in WAVE_CHANNELS
    }
    matrices = {
        (channels, kind): Row(
            f"wave matrices, {kind}, C = {channels}",
            "{scale}/channels/3072",
            ("model.init=wave-matrices", *overrides),
            twin={"channels": channels},
        )
        for channels in MATRIX_CHANNELS
        for kind, overrides in (("trained", ()), ("fixed", ("model.frozen=[transition.*]",)))
    }
    return (
        Claim(
            "waves",
            ("eq:wave",),
            "After training from random A and B, B is invertible, AB⁻¹ is diagonalisable and most speeds are complex.",
            during,
            (
                at_least("after training", "invertible_B", 0.5),
                at_most("after training", "cond_V", DIAGONALISABLE),
                at_least("after training", "complex_share", 0.5),
            ),
            metrics=("psnr", *WAVE_METRICS),
        ),
        Claim(
            "wave-equation",
            ("eq:finola-pde",),
            "The map, the mean of both orders, satisfies the wave equations with a relative residual of at most 0.1.",
            during,
            (at_most("after training", "residual", 0.1),),
            metrics=("psnr", *WAVE_METRICS),
        ),
        Claim(
            "wave-start",
            (),
            "At an equal number of images, training from the wave initialisation is better than from random weights.",
            tuple(row for channels in WAVE_CHANNELS for row in (random[channels], waves[channels])),
            tuple(increasing(random[channels].name, waves[channels].name) for channels in WAVE_CHANNELS),
            curve=True,
            scales=("cpu",),
        ),
        Claim(
            "wave-matrices",
            (),
            "Between a learned encoder and a learned decoder, A and B initialised with plane waves are better than "
            "random ones, trained or fixed.",
            (*(random[channels] for channels in MATRIX_CHANNELS), *matrices.values()),
            tuple(increasing(random[channels].name, row.name) for (channels, _), row in matrices.items()),
            curve=True,
            scales=("cpu",),
        ),
    )


def latent_claims() -> tuple[Claim, ...]:
    """Properties of the space of q, of a model that is trained from random weights."""
    (row,) = rows_of("channels", "3072")
    return tuple(
        Claim(name, (label,), sentence, (row,), checks, metrics=LATENT_METRICS)
        for name, label, sentence, checks in (
            (
                "q-samples",
                "fig:appendix:noise",
                "Samples of the normal distribution of q are closer to noise than images: the kurtosis of differences "
                "of neighbouring pixels is smaller.",
                (at_most(row.name, "sample_kurtosis", 1.0),),
            ),
            (
                "q-mean",
                "fig:appendix:recon-mean",
                "The image of the mean q̄ has at most a quarter of the contrast of an image, and 2q̄ − q reverses the "
                "image around it (correlation at most −0.8).",
                (at_most(row.name, "mean_contrast", 0.25), at_most(row.name, "mirror_correlation", -0.8)),
            ),
            (
                "q-mixture",
                "fig:appendix:recon-mixup",
                "The image of a mixture of two q is the mixture of their images (PSNR at least 25 dB).",
                (at_least(row.name, "mixture_psnr", 25.0),),
            ),
            (
                "q-components",
                "fig:appendix:recon-pca",
                "A sixteenth of the principal components holds at least half of the variance of q, and more components "
                "never lower PSNR.",
                (at_least(row.name, "first_components", 0.5), at_least(row.name, "component_gain", -0.005)),
            ),
        )
    )

"""Claims of the paper that are tested by training: their rows and the checks that decide the verdict."""

from __future__ import annotations

from itertools import combinations, pairwise

from finola.config import nearest
from finola.errors import InputError, UnknownNameError
from finola.paper import cite
from finola.recipes.table import ROWS
from finola.reproduce.commands import COMMANDS
from finola.reproduce.definitions import Claim, Row, rows_of
from finola.reproduce.statements import STATEMENTS
from finola.reproduce.verdicts import diverges, drops, gains_at_most, increasing, near
from finola.reproduce.wave_claims import latent_claims, wave_claims


def _about(*names: str) -> list[str]:
    return [ROWS[name].about for name in names]


CONSTANT_IMAGE = 12.5
"""PSNR (dB) that a model must exceed to have learned anything: the mean colour of photos256 train has 12.1 dB on its
val photos at 64 pixels. A map that grows beyond all bounds is reduced to that by the batch norms of the decoder."""


def _autoregression() -> tuple[Claim, ...]:
    small = ("repetition@16", "repetition-pos@16", "norm-linear@16")
    large = ("repetition@64", "repetition-pos@64", "norm-linear@64")
    # A map of 16×16, the twin of 64×64, is too small for the linear recurrence to diverge. A step on this map costs
    # sixteen times as much, so the runs are shorter.
    wide = {"map_size": (64, 64), "image_size": (64, 64)}
    linear, control = (
        rows_of("autoregression", name, twin=wide, cpu_overrides=("schedule.epochs=1", "data.crops_per_image=2"))[0]
        for name in ("linear@64", "norm-linear@64")
    )
    few = rows_of("autoregression", "linear@16", "norm-linear@16")
    return (
        Claim(
            "autoregression",
            ("table:comp-auto",),
            "Norm+linear is better than repetition with position embedding, and that is better than repetition.",
            rows_of("autoregression", *small, *large),
            tuple(increasing(*_about(*(f"autoregression/{name}" for name in names))) for names in (small, large)),
            table="autoregression",
        ),
        Claim(
            "linear",
            ("table:comp-auto",),
            "Without a norm, PSNR is similar on a small map (within 1 dB), and training diverges on a large one.",
            (*few, linear, control),
            (
                near(few[0].name, few[1].name, within=1.0),
                diverges(linear.name, floor=CONSTANT_IMAGE),
                increasing(linear.name, control.name),
            ),
        ),
        Claim(
            "nonlinear",
            ("table:comp-nonlinear",),
            "An MLP of two layers instead of the linear layer gains at most 0.3 dB.",
            rows_of("nonlinear", "linear-512", "mlp-512", "linear-3072", "mlp-3072"),
            tuple(
                gains_at_most(*_about(f"nonlinear/mlp-{channels}", f"nonlinear/linear-{channels}"), limit=0.3)
                for channels in (512, 3072)
            ),
            table="nonlinear",
        ),
    )


def _normalisation() -> Claim:
    batch, layer = (
        Row(name, f"{{scale}}/normalisation/{recipe}", quoted={"train_mode_psnr": psnr})
        for name, recipe, psnr in (("batch norm", "batch-norm", 25.1), ("layer norm", "layer-norm", 25.5))
    )
    return Claim(
        "normalisation",
        ("table:comp-norm",),
        "Batch norm trains nearly as well as layer norm (within 1 dB), validates worse, and loses at least 1 dB from "
        "training to validation.",
        (batch, layer),
        (
            near("batch norm", "layer norm", within=1.0, metric="train_mode_psnr"),
            increasing("batch norm", "layer norm"),
            drops("batch norm", first="train_mode_psnr", second="psnr", by=1.0),
        ),
        metrics=("psnr", "train_mode_psnr"),
    )


def _sizes() -> tuple[Claim, ...]:
    maps = [f"3072x1@{side}" for side in (8, 16, 64, 128)]
    on_maps = _about(*(f"resolution/{name}" for name in maps))
    channels = ("256", "512", "1024", "3072")
    paths = ("1024x1", "1024x2", "1024x4", "1024x8")
    equal = ("2048x1", "1024x2", "512x4", "256x8")
    return (
        Claim(
            "resolution",
            ("table:multi-resolution",),
            "PSNR differs by at most 0.5 dB between maps up to 64×64, and by at most 1 dB from there to 128×128.",
            rows_of("resolution", *maps),
            (
                *(near(*pair, within=0.5) for pair in combinations(on_maps[:3], 2)),
                near(*on_maps[2:], within=1.0),
            ),
            table="resolution",
        ),
        Claim(
            "channels",
            ("table:ablation", "fig:appendix:recon-num-channels", "fig:recon-mc"),
            "PSNR increases with the number of channels C of a single path.",
            rows_of("channels", *channels),
            (increasing(*_about(*(f"channels/{name}" for name in channels))),),
            table="channels",
        ),
        Claim(
            "paths",
            ("fig:val-relax", "fig:wave-finola-vis", "fig:recon-mc"),
            "PSNR increases with the number of paths M.",
            rows_of("grid", *paths),
            (increasing(*_about(*(f"grid/{name}" for name in paths))),),
            table="grid",
        ),
        Claim(
            "latent-size",
            ("fig:val-relax",),
            "PSNR differs by at most 0.5 dB if C is halved and M is doubled.",
            rows_of("grid", *equal),
            tuple(near(*_about(f"grid/{one}", f"grid/{two}"), within=0.5) for one, two in pairwise(equal)),
        ),
    )


def _starts_and_speeds() -> tuple[Claim, ...]:
    positions = ("center", "top-left", "bottom-right")
    scattered = [f"1024x{paths}-{start}" for paths in (4, 8) for start in ("center", "scatter")]
    return (
        Claim(
            "position",
            ("fig:appendix:recon-pos",),
            "PSNR differs by at most 0.5 dB between a start at the centre and starts in corners.",
            rows_of("position", *positions),
            tuple(near(*_about("position/center", f"position/{corner}"), within=0.5) for corner in positions[1:]),
            table="position",
        ),
        Claim(
            "starts",
            ("table:mixture-hidden-waves",),
            "Scattered starts are better than a common start at the centre.",
            rows_of("starts", *scattered),
            tuple(
                increasing(*_about(f"starts/1024x{paths}-center", f"starts/1024x{paths}-scatter")) for paths in (4, 8)
            ),
            table="starts",
        ),
        Claim(
            "speeds",
            ("table:special-case-all", "fig:recon-special"),
            "Complex speeds are better than real ones, and real ones are better than all-one speeds.",
            rows_of("speeds", "unit", "real", "complex"),
            (increasing(*_about("speeds/unit", "speeds/real", "speeds/complex")),),
        ),
        Claim(
            "all-one",
            ("table:special-case-all", "fig:recon-special"),
            "All-one speeds are better than repetition, both with position embedding and the same number of latents.",
            rows_of("speeds", "repetition-pos", "unit"),
            (increasing(*_about("speeds/repetition-pos", "speeds/unit")),),
        ),
    )


def _models() -> tuple[Claim, ...]:
    encoders = ("mf-w720", "mf-w1440", "mf-w2880")
    return (
        Claim(
            "encoders",
            ("table:ablation", "fig:appendix:recon-enc"),
            "PSNR increases with the size of the Mobile-Former encoder.",
            rows_of("encoders", *encoders, cpu_overrides=("schedule.epochs=1",)),  # Mobile-Former is slow on a CPU
            (increasing(*_about(*(f"encoders/{name}" for name in encoders))),),
            table="encoders",
        ),
        Claim(
            "conv-ae",
            ("table:comp-ae",),
            "FINOLA is better than a Conv-AE with the same number of latents and more parameters.",
            rows_of("conv-ae", "conv-ae-2048", "finola-2048", "conv-ae-8192", "finola-8192"),
            tuple(
                increasing(*_about(f"conv-ae/conv-ae-{latents}", f"conv-ae/finola-{latents}"))
                for latents in (2048, 8192)
            ),
            parameters=True,
        ),
    )


CLAIMS = {
    claim.name: claim
    for claim in (
        *_autoregression(),
        _normalisation(),
        *_sizes(),
        *_starts_and_speeds(),
        *_models(),
        *wave_claims(),
        *latent_claims(),
    )
}
"""All claims by name, in the order of the report."""


def find_claims(word: str, scale: str = "cpu") -> list[Claim]:
    """Claims of a LaTeX label, the claim of a name, or all claims that have runs at this scale.

    >>> [claim.name for claim in find_claims("table:comp-auto")]
    ['autoregression', 'linear']
    """
    if word == "all":
        return [claim for claim in CLAIMS.values() if scale in claim.scales]
    found = [claim for claim in CLAIMS.values() if word == claim.name or word in claim.labels]
    if found:
        return found
    if word in STATEMENTS:
        printed = f" finola reproduce {word} --dry-run prints its commands." if word in COMMANDS else ""
        examined = STATEMENTS[word].examined
        page = f"see docs/{examined} for what was measured" if examined.endswith(".md") else examined
        raise InputError(f"{cite(word)} has no runs here: {page}.{printed}")
    known = [*CLAIMS, *(label for claim in CLAIMS.values() for label in claim.labels)]
    raise UnknownNameError(f"No claim {word!r} has runs: {nearest(word, known)} See finola reproduce --list.")

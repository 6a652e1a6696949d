"""Claims of the paper that are tested by training: rows, metrics, and the checks that decide the verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from finola.config import nearest
from finola.errors import InputError, UnknownNameError
from finola.paper import cite
from finola.recipes.table import RECIPES, ROWS, TABLES, TWIN, paper_psnr
from finola.reproduce.statements import STATEMENTS
from finola.reproduce.verdicts import Check, at_least, diverges, gains_at_most, increasing, near


@dataclass(frozen=True)
class Scale:
    """Settings of all runs at one scale that do not affect what is learned, and the size of its data for estimates."""

    photos: int  # training photos
    overrides: tuple[str, ...] = ()
    threads: int | None = None  # of each run; None: chosen by PyTorch


SCALES = {
    "paper": Scale(1_281_167),  # ImageNet-1K
    "cpu": Scale(
        4_866,  # photos256
        ("trainer.accelerator=cpu", "data.num_workers=0", "logging.wandb=false", "checkpoint.every_minutes=2"),
        threads=1,
    ),
}
"""Scales of reproduction; the models at CPU scale are those of `finola.recipes.table.TWIN`."""


@dataclass(frozen=True)
class Row:
    """A run of a claim: a recipe, in which `{scale}` stands for paper or cpu, and settings that differ from it."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    twin: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that differ at CPU scale
    cpu_overrides: tuple[str, ...] = ()  # settings that differ at CPU scale only
    quoted: Mapping[str, float] = field(default_factory=dict)  # metrics in the paper, besides the PSNR of the recipe

    def paper(self) -> dict[str, float]:
        """Metrics that the paper reports for this row."""
        changed = self.overrides or "channels" in self.twin  # not a row of the paper
        psnr = None if changed else paper_psnr(self.recipe.removeprefix("{scale}/"))
        return ({} if psnr is None else {"psnr": psnr}) | dict(self.quoted)


@dataclass(frozen=True)
class Claim:
    """A claim in one sentence, the labels of the tables and figures that make it, its rows and its checks."""

    name: str
    labels: tuple[str, ...]  # empty for results of our own
    sentence: str
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    metrics: tuple[str, ...] = ("psnr",)
    curve: bool = False  # store PSNR over images seen
    scales: tuple[str, ...] = ("paper", "cpu")

    def citation(self) -> str:
        """Number and label of the first table or figure."""
        return cite(self.labels[0]) if self.labels else "ours"


def _rows(folder: str, *names: str, **options: Any) -> tuple[Row, ...]:
    """Rows of a table of `finola.recipes.table`, with its descriptions as names."""
    return tuple(Row(TABLES[folder].rows[name].about, f"{{scale}}/{folder}/{name}", **options) for name in names)


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
        _rows("autoregression", name, twin=wide, cpu_overrides=("schedule.epochs=1", "data.crops_per_image=2"))[0]
        for name in ("linear@64", "norm-linear@64")
    )
    few = _rows("autoregression", "linear@16", "norm-linear@16")
    return (
        Claim(
            "autoregression",
            ("table:comp-auto",),
            "Norm+linear is better than repetition with position embedding, and that is better than repetition.",
            _rows("autoregression", *small, *large),
            tuple(increasing(*_about(*(f"autoregression/{name}" for name in names))) for names in (small, large)),
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
            _rows("nonlinear", "linear-512", "mlp-512", "linear-3072", "mlp-3072"),
            tuple(
                gains_at_most(*_about(f"nonlinear/mlp-{channels}", f"nonlinear/linear-{channels}"), limit=0.3)
                for channels in (512, 3072)
            ),
        ),
    )


def _normalisation() -> Claim:
    batch, layer = (
        Row(name, f"{{scale}}/normalisation/{recipe}", quoted={"train_psnr": psnr})
        for name, recipe, psnr in (("batch norm", "batch-norm", 25.1), ("layer norm", "layer-norm", 25.5))
    )
    return Claim(
        "normalisation",
        ("table:comp-norm",),
        "Batch norm trains nearly as well as layer norm (within 1 dB) and validates far worse.",
        (batch, layer),
        (near("batch norm", "layer norm", within=1.0, metric="train_psnr"), increasing("batch norm", "layer norm")),
        metrics=("psnr", "train_psnr"),
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
            "PSNR differs by at most 0.5 dB between map sizes, and by at most 1 dB on the largest map.",
            _rows("resolution", *maps),
            (near(*on_maps[:2], within=0.5), near(*on_maps[1:3], within=0.5), near(*on_maps[2:], within=1.0)),
        ),
        Claim(
            "channels",
            ("table:ablation", "fig:appendix:recon-num-channels"),
            "PSNR increases with the number of channels C of a single path.",
            _rows("channels", *channels),
            (increasing(*_about(*(f"channels/{name}" for name in channels))),),
        ),
        Claim(
            "paths",
            ("fig:val-relax", "fig:wave-finola-vis", "fig:recon-mc"),
            "PSNR increases with the number of paths M.",
            _rows("grid", *paths),
            (increasing(*_about(*(f"grid/{name}" for name in paths))),),
        ),
        Claim(
            "latent-size",
            ("fig:val-relax",),
            "PSNR differs by at most 0.5 dB if C is halved and M is doubled.",
            _rows("grid", *equal),
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
            _rows("position", *positions),
            tuple(near(*_about("position/center", f"position/{corner}"), within=0.5) for corner in positions[1:]),
        ),
        Claim(
            "starts",
            ("table:mixture-hidden-waves",),
            "Scattered starts are better than a common start at the centre.",
            _rows("starts", *scattered),
            tuple(
                increasing(*_about(f"starts/1024x{paths}-center", f"starts/1024x{paths}-scatter")) for paths in (4, 8)
            ),
        ),
        Claim(
            "speeds",
            ("table:special-case-all", "fig:recon-special"),
            "Complex speeds are better than real ones, and real ones are better than all-one speeds.",
            _rows("speeds", "unit", "real", "complex"),
            (increasing(*_about("speeds/unit", "speeds/real", "speeds/complex")),),
        ),
        Claim(
            "all-one",
            ("table:special-case-all",),
            "All-one speeds are better than repetition, both with position embedding and the same number of latents.",
            _rows("speeds", "repetition-pos", "unit"),
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
            _rows("encoders", *encoders, cpu_overrides=("schedule.epochs=1",)),  # Mobile-Former is slow on a CPU
            (increasing(*_about(*(f"encoders/{name}" for name in encoders))),),
        ),
        Claim(
            "conv-ae",
            ("table:comp-ae",),
            "FINOLA is better than a Conv-AE with the same number of latents.",
            _rows("conv-ae", "conv-ae-2048", "finola-2048", "conv-ae-8192", "finola-8192"),
            tuple(
                increasing(*_about(f"conv-ae/conv-ae-{latents}", f"conv-ae/finola-{latents}"))
                for latents in (2048, 8192)
            ),
        ),
    )


def _waves() -> tuple[Claim, ...]:
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
    starts = [
        row
        for channels in (64, 256)
        for row in (
            Row(f"random start, C = {channels}", "{scale}/channels/3072", twin={"channels": channels}),
            Row(
                f"wave start, C = {channels}",
                "waves-tile64",
                (f"model.name=waves+conv/{channels}x1@{side // 4}:{side}", *photos, *schedule),
            ),
        )
    ]
    return (
        Claim(
            "waves",
            ("eq:wave",),
            "After training from random A and B, B is invertible and most speeds of AB⁻¹ are complex.",
            during,
            (at_least("after training", "invertible_B", 0.5), at_least("after training", "complex_share", 0.5)),
            metrics=("psnr", "invertible_B", "cond_B", "cond_V", "complex_share", "residual", "path_inconsistency"),
        ),
        Claim(
            "wave-start",
            (),
            "At an equal number of images, training from the wave initialisation is better than from random weights.",
            tuple(starts),
            tuple(increasing(random.name, wave.name) for random, wave in zip(starts[::2], starts[1::2], strict=True)),
            curve=True,
            scales=("cpu",),
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
        *_waves(),
    )
}
"""All claims by name, in the order of the report."""


def recipes_without_claim(label: str) -> list[str]:
    """Recipes of the paper for a table or figure that has no claim here, in the order in which they are trained.

    >>> recipes_without_claim("fig:masked-finola-gaussian")
    ['paper/channels/3072', 'masked/b-w2880']
    """
    patterns = STATEMENTS[label].recipes if label in STATEMENTS else ()
    return [name for pattern in patterns for name in RECIPES if re.fullmatch(pattern, name)]


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
        printed = f" finola reproduce {word} --dry-run prints its commands." if recipes_without_claim(word) else ""
        raise InputError(f"{cite(word)} has no runs here: {STATEMENTS[word].examined}.{printed}")
    known = [*CLAIMS, *(label for claim in CLAIMS.values() for label in claim.labels)]
    raise UnknownNameError(f"No claim {word!r} has runs: {nearest(word, known)} See finola reproduce --list.")

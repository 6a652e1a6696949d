"""Recipes of the paper's experiments, generated from its tables: `paper/…`, their small twins `cpu/…`, and recognition.

Each entry of `RECIPES` has the form of a YAML recipe: a `base` and the settings that differ from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from finola.config import ModelConfig
from finola.paper import cite
from finola.recipes.recognition import ALIASES as RECOGNITION_ALIASES
from finola.recipes.recognition import RECOGNITION


@dataclass(frozen=True)
class Row:
    """A model to train: what distinguishes it in its table, its one-line name, and the PSNR (dB) in the paper."""

    about: str
    model: str
    psnr: float | None = None


@dataclass(frozen=True)
class Alias:
    """A row with the same settings as a row of another table, `of`, which has its model and PSNR."""

    about: str
    of: str


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper, or a part of it, by its label in the LaTeX source."""

    label: str
    rows: dict[str, Row | Alias]
    part: str = ""

    def citation(self) -> str:
        """Number and label."""
        return cite(self.label, self.part)


GRID: dict[int, dict[int, float | None]] = {
    128: {1: None, 2: None, 4: None, 8: None, 16: None},
    256: {1: None, 2: None, 4: None, 8: None, 16: None},
    512: {1: None, 2: None, 4: None, 8: None, 16: None},
    1024: {1: None, 2: 24.8, 4: 26.1, 8: 27.1, 16: 27.7},
    2048: {1: None, 2: None, 4: None, 8: 28.0, 16: 29.1},
}
"""PSNR by channels C and paths M, where a table has the same model; the figure itself is an image without numbers."""


def _of_size(channels: int, paths: int) -> str:
    return f"C = {channels}, M = {paths}"


TABLES = {
    "resolution": Table(
        "table:multi-resolution",
        {
            f"3072x1@{side}": Row(f"a map of {side}x{side}, one path", f"mf-w2880/3072x1@{side}", psnr)
            for side, psnr in {8: 25.4, 32: 25.8, 64: 25.7, 128: 25.3, 256: 24.6}.items()
        }
        | {
            f"1024x4@{side}": Row(f"a map of {side}x{side}, four paths", f"mf-w2880/1024x4@{side}", psnr)
            for side, psnr in {8: 25.9, 16: 26.2, 32: 26.2, 128: 25.4, 256: 24.8}.items()
        }
        | {
            "3072x1@16": Alias("a map of 16x16, one path", of="channels/3072"),
            "1024x4@64": Alias("a map of 64x64, four paths", of="grid/1024x4"),
        },
    ),
    "autoregression": Table(
        "table:comp-auto",
        {
            "repetition@16": Row("repetition, 16x16", "mf-w2880/3072x1@16+repeat", 16.1),
            "repetition@64": Row("repetition, 64x64", "mf-w2880/3072x1@64+repeat", 13.3),
            "repetition-pos@16": Row(
                "repetition with position embedding, 16x16", "mf-w2880/3072x1@16+repeat+pos", 20.2
            ),
            "repetition-pos@64": Row(
                "repetition with position embedding, 64x64", "mf-w2880/3072x1@64+repeat+pos", 21.2
            ),
            "linear@16": Row("linear without a norm, 16x16", "mf-w2880/3072x1@16+linear", 25.4),
            "linear@64": Row("linear without a norm, which does not converge, 64x64", "mf-w2880/3072x1@64+linear"),
            "norm-linear@16": Alias("norm+linear, 16x16", of="channels/3072"),
            "norm-linear@64": Alias("norm+linear, 64x64", of="resolution/3072x1@64"),
        },
    ),
    "nonlinear": Table(
        "table:comp-nonlinear",
        {
            f"mlp-{channels}": Row(f"norm+nonlinear, C = {channels}", f"mf-w2880/{channels}x1@16+mlp", psnr)
            for channels, psnr in {512: 22.4, 1024: 23.8, 3072: 25.8}.items()
        }
        | {
            f"linear-{channels}": Alias(f"norm+linear, C = {channels}", of=f"channels/{channels}")
            for channels in (512, 1024, 3072)
        },
    ),
    "normalisation": Table(
        "table:comp-norm",
        {
            "batch-norm": Row("batch norm (25.1 dB on train)", "mf-w2880/3072x1@16+batchnorm", 16.3),
            "layer-norm": Alias("layer norm (25.5 dB on train)", of="channels/3072"),
        },
    ),
    "grid": Table(
        "fig:val-relax",
        {
            f"{channels}x{paths}": Row(_of_size(channels, paths), f"mf-w2880/{channels}x{paths}@64", psnr)
            for channels, by_paths in GRID.items()
            for paths, psnr in by_paths.items()
        },
    ),
    "conv-ae": Table(
        "table:comp-ae",
        {
            "conv-ae-2048": Row("Conv-AE, latent 2048", "mf-w2880/512x4@64+convae", 24.6),
            "finola-2048": Alias("FINOLA, latent 2048", of="grid/1024x2"),
            "conv-ae-8192": Row("Conv-AE, latent 8192", "mf-w2880/2048x4@64+convae", 26.0),
            "finola-8192": Alias("FINOLA, latent 8192", of="grid/1024x8"),
        },
    ),
    "channels": Table(
        "table:ablation",
        part="a",
        rows={
            str(channels): Row(f"C = {channels}", f"mf-w2880/{channels}x1@16", psnr)
            for channels, psnr in {
                4096: 25.9,
                3072: 25.8,
                2048: 25.1,
                1024: 23.7,
                512: 22.2,
                256: 20.8,
                128: 19.4,
                64: 18.2,
            }.items()
        },
    ),
    "encoders": Table(
        "table:ablation",
        part="b",
        rows={
            f"mf-w{width}": Row(f"Mobile-Former W{width}", f"mf-w{width}/3072x1@16", psnr)
            for width, psnr in {5760: 26.1, 4320: 26.0, 1440: 25.1, 720: 24.4}.items()
        }
        | {"mf-w2880": Alias("Mobile-Former W2880", of="channels/3072")},
    ),
    "position": Table(
        "fig:appendix:recon-pos",
        {
            "center": Alias("q at the center", of="channels/3072"),
            "top-left": Row("q at the top left corner", "mf-w2880/3072x1@16+corner"),
            "top-right": Row("q at the top right corner", "mf-w2880/3072x1@16+top-right"),
            "bottom-left": Row("q at the bottom left corner", "mf-w2880/3072x1@16+bottom-left"),
            "bottom-right": Row("q at the bottom right corner", "mf-w2880/3072x1@16+bottom-right"),
        },
    ),
    "speeds": Table(
        "table:special-case-all",
        {
            "complex": Alias("complex speeds", of="grid/1024x4"),
            "real": Row("real speeds", "mf-w2880/1024x4@64+real", 25.1),
            "unit": Row("all speeds one, with position embedding", "mf-w2880/1024x4@64+unit", 23.9),
            "repetition-pos": Row("repetition with position embedding", "mf-w2880/4096x1@64+repeat+pos", 21.6),
        },
    ),
    "starts": Table(
        "table:mixture-hidden-waves",
        {
            f"{channels}x{paths}-scatter": Row(
                f"{_of_size(channels, paths)}, scattered starts", f"mf-w2880/{channels}x{paths}@64+scatter", psnr
            )
            for channels, by_paths in {1024: {4: 26.7, 8: 28.0, 16: 29.1}, 2048: {8: 28.9, 16: 30.0}}.items()
            for paths, psnr in by_paths.items()
        }
        | {
            f"{channels}x{paths}-center": Alias(
                f"{_of_size(channels, paths)}, all starts at the center", of=f"grid/{channels}x{paths}"
            )
            for channels, paths in ((1024, 4), (1024, 8), (1024, 16), (2048, 8), (2048, 16))
        },
    ),
}

ROWS = {f"{folder}/{name}": row for folder, table in TABLES.items() for name, row in table.rows.items()}


def _model_row(name: str) -> Row:
    """The row itself, or the row that an alias stands for."""
    row = ROWS[name]
    return _model_row(row.of) if isinstance(row, Alias) else row


def _paper(name: str) -> dict[str, Any]:
    row, citation = _model_row(name), TABLES[name.partition("/")[0]].citation()
    settings = {"base": "_paper", "about": f"{citation}: {ROWS[name].about}", "model": {"name": row.model}}
    return settings | {"paper_psnr": row.psnr}


@dataclass(frozen=True)
class Twin:
    """How the small twins `cpu/…` differ from the rows of the paper; they reproduce comparisons, not the PSNR."""

    encoder: str  # except in the table that compares encoders
    image_size: int
    map_sides: dict[int, int]  # side of the map by that of the paper
    channel_divisor: int
    slim: int  # divides the widths of the upsampling decoder and of Conv-AE
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # that differ from those of the paper

    def model(self, config: ModelConfig, encoder: str | None = None) -> ModelConfig:
        """The twin of a model."""
        height, width = (self.map_sides[side] for side in config.map_size)
        return replace(
            config,
            encoder=encoder or self.encoder,
            channels=config.channels // self.channel_divisor,
            slim=self.slim,
            map_size=(height, width),
            image_size=(self.image_size, self.image_size),
        )

    def overrides(self) -> Iterator[str]:
        """The settings as `key=value`."""
        for section, settings in self.settings.items():
            yield from (f"{section}.{key}={json.dumps(value)}" for key, value in settings.items())


MUON = {"convolutions": {"match": ["encoder.convolutions.*.weight"], "lr": 0.02, "muon": True}}
TWIN = Twin(
    encoder="conv-light",
    image_size=32,
    map_sides={8: 4, 16: 8, 32: 8, 64: 16, 128: 32, 256: 32},
    channel_divisor=32,
    slim=8,
    settings={  # 1,824 steps with 5,000 photos, two minutes on one core for most rows
        "data": {"batch_size": 32, "scale": [0.25, 1.0], "crops_per_image": 4, "val_limit": 200},
        "optimiser": {"base_lr": 8e-3, "weight_decay": 0.05, "groups": MUON},
        "schedule": {"epochs": 3, "warmup_epochs": 0.1},
    },
)
"""The light encoder converges within minutes from random weights, where Mobile-Former needs hours; docs/readings.md has
the trials."""


def _cpu(name: str) -> dict[str, Any]:
    config = ModelConfig.parse(_model_row(name).model)
    small = TWIN.model(config, config.encoder if name.startswith("encoders/") else None)
    settings = {"base": "_paper", "about": f"small twin of paper/{name}", "model": {"name": str(small)}}
    common = TWIN.settings
    if name.startswith("encoders/"):  # Mobile-Former has no parameters that the groups match
        common = common | {"optimiser": {k: v for k, v in common["optimiser"].items() if k != "groups"}}
    return settings | common


def paper_psnr(name: str) -> float | None:
    """PSNR (dB) that the paper reports for a row, such as `channels/3072`; None for other names."""
    return _model_row(name).psnr if name in ROWS else None


RECIPES: dict[str, dict[str, Any]] = (
    {f"paper/{name}": _paper(name) for name in ROWS} | {f"cpu/{name}": _cpu(name) for name in ROWS} | RECOGNITION
)
"""The settings of every generated recipe by name."""

_ALIASES = {name: row.of for name, row in ROWS.items() if isinstance(row, Alias)}


def _twin_aliases() -> Iterator[tuple[str, str]]:
    """Twins with the model of another twin. Some maps of the paper have the same twin."""
    first: dict[str, str] = {}
    for name in sorted(ROWS, key=lambda name: (name not in _ALIASES.values(), name in _ALIASES)):
        model = RECIPES[f"cpu/{name}"]["model"]["name"]
        if first.setdefault(model, name) != name:
            yield f"cpu/{name}", f"cpu/{first[model]}"


ALIASES: dict[str, str] = (
    {f"paper/{name}": f"paper/{of}" for name, of in _ALIASES.items()} | dict(_twin_aliases()) | RECOGNITION_ALIASES
)
"""Names of recipes that repeat another one: the same settings under the name of another table."""


STARTING_POINTS = (
    "smoke",
    "waves-tile64",
    "masked/b-w720-128",
    "probe/tran1-w720-128",
    "detection/dec-211-w720-192",
)
"""Recipes to start from: none needs a GPU, the first no data."""

GROUPS: dict[str, str] = {
    **{f"paper/{folder}/": f"{table.citation()} of the paper" for folder, table in TABLES.items()},
    "cpu/": "a small version of each paper/… recipe for CPUs",
    "masked/": "masked FINOLA: pre-training, and reconstruction from its encoder",
    "probe/": "classification heads on a frozen encoder",
    "finetune/": "fine-tuning of encoder and head, initialised from a probe",
    "supervised/": "the same encoder and head from scratch with labels",
    "moco/": "MoCo-v2 on the same encoders",
    "detection/": "DETR and Mask R-CNN on COCO",
}
"""Recipes that are listed together, by the prefix of their names."""


def canonical(name: str) -> str:
    """The name under which a recipe's model is trained: that of the repeated recipe for an alias, otherwise `name`.

    >>> canonical("paper/normalisation/layer-norm"), canonical("smoke")
    ('paper/channels/3072', 'smoke')
    """
    return ALIASES.get(name, name)

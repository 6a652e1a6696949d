"""What a claim is: its rows, the scales at which they are run, and the checks that decide the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finola.paper import cite
from finola.recipes.table import TABLES, paper_psnr
from finola.reproduce.verdicts import Check


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
    parameters: bool = False  # show the numbers of parameters
    scales: tuple[str, ...] = ("paper", "cpu")
    table: str | None = None  # of `finola.recipes.table`, whose other rows are run at the scale of the paper as well

    def rows_at(self, scale: str) -> tuple[Row, ...]:
        """Rows that are run at a scale: at that of the paper the whole table, at CPU scale those that are compared."""
        if scale != "paper" or self.table is None:
            return self.rows
        known = {row.recipe for row in self.rows}
        others = rows_of(self.table, *TABLES[self.table].rows)
        return (*self.rows, *(row for row in others if row.recipe not in known))

    def citation(self) -> str:
        """Number and label of the first table or figure."""
        return cite(self.labels[0]) if self.labels else "ours"


def rows_of(table: str, *names: str, **options: Any) -> tuple[Row, ...]:
    """Rows of a table of `finola.recipes.table`, with its descriptions as names."""
    return tuple(Row(TABLES[table].rows[name].about, f"{{scale}}/{table}/{name}", **options) for name in names)

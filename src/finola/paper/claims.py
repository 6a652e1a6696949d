"""The claims of all tables by name: labels, rows, commands, and results of those judged by stored outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finola.config import nearest
from finola.errors import InputError, UnknownNameError
from finola.paper.definitions import Claim, Same, Table
from finola.paper.tables import EVERYTHING, cite
from finola.paper.verdict import Results

_TABLES = {claim.name: table for table in EVERYTHING for claim in table.claims}
CLAIMS = {claim.name: claim for table in EVERYTHING for claim in table.claims}
"""All claims by name, in the order of the tables."""


def labels_of(claim: Claim) -> tuple[str, ...]:
    """Labels of the tables, figures and equations that make a claim; none if it is our own."""
    table = _TABLES.get(claim.name)
    return (table.label, *claim.also) if table is not None and table.label else ()


def citation_of(claim: Claim) -> str:
    """Number and label of the table, figure or equation of a claim."""
    table = _TABLES.get(claim.name)
    return cite(table.label, table.part) if table is not None and table.label else "ours"


def rows_of(claim: Claim, scale: str = "cpu") -> dict[str, Same]:
    """Rows of a claim by the names that its checks use.

    At the scale of the paper, the first claim of a table has all its rows; at CPU scale there are those that the checks
    compare and the others of `claim.rows`.
    """
    table = _TABLES.get(claim.name)
    known: dict[str, Same] = {}
    if table is not None:  # each row of a table is trained by the recipe of its name
        known = {row: Same(f"{table.name}/{row}", same.about, same.quoted) for row, same in table.rows.items()}
    known |= claim.rows
    compared = [row for check in claim.checks for row in check.rows]
    first = scale == "paper" and table is not None and table.claims[0] is claim
    others = [row for row in claim.rows if row not in compared]
    return {row: known[row] for row in dict.fromkeys([*others, *compared, *(known if first else ())])}


def claims_of(label: str) -> list[Claim]:
    """Claims of a LaTeX label."""
    return [claim for claim in CLAIMS.values() if label in labels_of(claim)]


def examined(table: Table) -> str:
    """How a table or figure is examined: by runs, by measurements on a page, not without other data, or not at all."""
    if table.page:
        return table.page
    if any(not claim.source for claim in claims_of(table.label)):
        return "has runs"
    return f"needs {table.needs}" if table.needs else "no claim"


def commands_of(label: str, data: str | None = None) -> list[str]:
    """Commands of a table or figure, with the path of ImageNet-1K; detection has COCO of its recipes.

    >>> commands_of("fig:appendix:recon-ftlin", "imagenet/")[0]
    'finola train masked/e-w2880 data.path=imagenet/'
    """
    found = []
    for command in next((table.commands for table in EVERYTHING if table.label == label and table.commands), ()):
        if data is not None and command.startswith("finola train") and "train detection/" not in command:
            first, out, target = command.partition(" --out ")
            command = f"{first} data.path={data}{out}{target}"
        found.append(command.replace(" DATA ", f" {data or 'DATA'} "))
    return found


def find_claims(word: str, scale: str = "cpu") -> list[Claim]:
    """Claims of a LaTeX label, the claim of a name, or all claims with runs at this scale on photos without labels.

    >>> [claim.name for claim in find_claims("table:comp-auto")]
    ['autoregression', 'linear']
    """
    runs = {name: claim for name, claim in CLAIMS.items() if not claim.source}
    if word == "all":
        return [claim for claim in runs.values() if scale in claim.scales and not claim.labelled]
    found = [claim for claim in runs.values() if word == claim.name or word in labels_of(claim)]
    if found:
        return found
    for table in EVERYTHING:
        if word and word == table.label:
            printed = f" finola reproduce {word} --dry-run prints its commands." if table.commands else ""
            page = f"see docs/{table.page} for what was measured" if table.page else examined(table)
            raise InputError(f"{cite(word)} has no runs here: {page}.{printed}")
    known = [*runs, *(label for claim in runs.values() for label in labels_of(claim))]
    raise UnknownNameError(f"No claim {word!r} has runs: {nearest(word, known)} See finola reproduce --list.")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _psnr(path: Path) -> Results:
    """PSNR of each method in an output of `finola compare`, by its label and by its word."""
    return {key: [{"psnr": m["psnr"]}] for m in _read(path)["methods"] for key in (m["label"], m["word"])}


def _twins(folder: Path) -> Results:
    """Small twins of FINOLA with 2048 and 8192 latents, and classical transforms of the same images."""
    stored = _read(folder / "reproduce/cpu/conv-ae.json")["rows"]
    rows: dict[str, Any] = {name: list(row["seeds"].values()) for name, row in stored.items()}
    transforms = _psnr(folder / "reproduce/cpu/conv-ae.baselines.json")
    return rows | {label: [*psnr] * max(map(len, rows.values())) for label, psnr in transforms.items()}


def _bundled(folder: Path) -> Results:
    """The bundled model tile32 with 2048 and 8192 latents, and classical transforms of photos256 val."""
    files = {n: folder / f"evaluate-tile32-photos256-{n}.json" for n in (2048, 8192)}
    rows = {f"tile32, {n} latents": [{"psnr": _read(file)["psnr"]}] for n, file in files.items()}
    return {**rows, **_psnr(folder / "compare-photos256.json")}


def _propagation(folder: Path) -> Results:
    """Speed-up over the sequential loop by map, in two runs."""
    found = [_read(folder / f"bench-propagation-{run}.json")["over_sequential"] for run in (1, 2)]
    return {
        f"{side}x{side}": [{"speed-up": row["ratio"]} for rows in found for row in rows if row["side"] == side]
        for side in (16, 64)
    }


SOURCES: dict[str, Callable[[Path], Results]] = {
    "twins": _twins,
    "bundled": _bundled,
    "propagation": _propagation,
    "kodak": lambda folder: _psnr(folder / "compare-kodak.json"),
    "kodak-4bit": lambda folder: _psnr(folder / "compare-kodak-4bit.json"),
    "photos256-4bit": lambda folder: _psnr(folder / "compare-photos256-4bit.json"),
}
"""Results of claims that are judged by stored outputs of other commands, read from a folder such as results/."""

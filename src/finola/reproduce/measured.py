"""Claims that are judged by stored outputs of other commands: comparisons, and the study of pre-training methods.

The files are those of results/ in the repository. They have one result per row, so that a claim holds weakly at best,
except for the rows that are runs of `finola.reproduce.claims`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finola.paper import cite
from finola.reproduce.verdicts import NOT_RUN, Check, Results, Verdict, at_least, increasing, near, verdict

STUDY = "study-imagenette128"
METHODS = {
    "random": "random weights",
    "finola": "FINOLA",
    "masked-e": "masked FINOLA-E",
    "masked-b": "masked FINOLA-B",
    "moco-adamw": "MoCo-v2 with AdamW",
    "supervised": "supervised",
}
"""Methods of benchmarks/study.py and their names."""
PROBES = ("lin", "tran-1", "fine-tuned")


@dataclass(frozen=True)
class MeasuredClaim:
    """A claim in one sentence, the files in results/ with its rows, and the checks that decide its verdict."""

    name: str
    labels: tuple[str, ...]
    sentence: str
    files: tuple[str, ...]
    read: Callable[[Path], Results]
    checks: tuple[Check, ...]

    def citation(self) -> str:
        """Number and label of the first table or figure."""
        return cite(self.labels[0])

    def judge(self, folder: Path) -> Verdict:
        """Verdict on the files in a folder; `NOT_RUN` if a row is missing."""
        try:
            return verdict(self.checks, self.read(folder))
        except (FileNotFoundError, KeyError):
            return Verdict(NOT_RUN)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _comparison(path: Path) -> dict[str, float]:
    """PSNR of each method in an output of `finola compare`, by its label."""
    return {method["label"]: method["psnr"] for method in _read(path)["methods"]}


def _twins(folder: Path) -> Results:
    """Small twins of FINOLA with 2048 and 8192 latents, and classical transforms of the same images."""
    runs = _read(folder / TWINS[0])["rows"]
    found = {name: list(row["seeds"].values()) for name, row in runs.items()}
    seeds = max(map(len, found.values()))
    return found | {label: seeds * [{"psnr": psnr}] for label, psnr in _comparison(folder / TWINS[1]).items()}


def _bundled(folder: Path) -> Results:
    """The bundled model tile32 with 2048 and 8192 latents, and classical transforms of photos256 val."""
    rows = {f"tile32, {n} latents": _read(folder / f"evaluate-tile32-photos256-{n}.json")["psnr"] for n in (2048, 8192)}
    return {label: [{"psnr": psnr}] for label, psnr in (rows | _comparison(folder / "compare-photos256.json")).items()}


def _files(data: str) -> Callable[[Path], Results]:
    def read(folder: Path) -> Results:
        return {label: [{"psnr": psnr}] for label, psnr in _comparison(folder / f"compare-{data}.json").items()}

    return read


def _speed(folder: Path) -> Results:
    """Speed-up over the sequential loop by map, with one and two threads."""
    found = [_read(folder / f"bench-propagation-{threads}.json")["over_sequential"] for threads in (1, 2)]
    return {
        f"{side}x{side}": [{"speed-up": row["ratio"]} for rows in found for row in rows if row["side"] == side]
        for side in (16, 64)
    }


def study(folder: Path) -> dict[str, dict[str, Any]]:
    """Results of benchmarks/study.py by method, of seed 0, in the order of `METHODS`."""
    place = folder / STUDY
    return {name: _read(file) for name in METHODS if (file := place / f"{name}-0.json").exists()}


def _study(folder: Path) -> Results:
    return {METHODS[name]: [row] for name, row in study(folder).items()}


def _order(name: str, label: str, sentence: str, metrics: tuple[str, ...], *methods: str) -> MeasuredClaim:
    """The methods of the study in increasing order of each metric."""
    rows = [METHODS[method] for method in methods]
    files = tuple(f"{STUDY}/{method}-0.json" for method in methods)
    return MeasuredClaim(
        name, (label,), sentence, files, _study, tuple(increasing(*rows, metric=metric) for metric in metrics)
    )


TWINS = ("reproduce/cpu/conv-ae.json", "reproduce/cpu/conv-ae.baselines.json")
BUNDLED = (
    "evaluate-tile32-photos256-2048.json",
    "evaluate-tile32-photos256-8192.json",
    "compare-photos256.json",
)
FINOLA = ("FINOLA, latent 2048", "FINOLA, latent 8192")
TILE32 = ("tile32, 2048 latents", "tile32, 8192 latents")
PLAIN, CODED = "finola (photo256), bits per latent: 4", "finola (tile32)"


def _above(pairs: tuple[tuple[str, str], ...]) -> tuple[Check, ...]:
    return tuple(increasing(low, high) for low, high in pairs)


MEASURED = {
    claim.name: claim
    for claim in (
        MeasuredClaim(
            "dct",
            ("table:comp-dct",),
            "Small twins of FINOLA, trained from random weights, are better than the DCT with about as many latents.",
            TWINS,
            _twins,
            _above((("DCT, first 1", FINOLA[0]), ("DCT, first 6", FINOLA[1]))),
        ),
        MeasuredClaim(
            "dct-bundled",
            ("table:comp-dct",),
            "The bundled model tile32 is better than the DCT with fewer latents.",
            BUNDLED,
            _bundled,
            _above((("DCT, first 1", TILE32[0]), ("DCT, first 3", TILE32[1]))),
        ),
        MeasuredClaim(
            "wavelets",
            ("table:comp-dwt",),
            "Small twins of FINOLA, trained from random weights, are better than DWT and DTCWT with fewer latents.",
            TWINS,
            _twins,
            _above(
                (
                    ("DWT, scale 3 LL", FINOLA[0]),
                    ("DTCWT, scale 3 LL", FINOLA[0]),
                    ("DWT, scale 3", FINOLA[1]),
                )
            ),
        ),
        MeasuredClaim(
            "wavelets-bundled",
            ("table:comp-dwt",),
            "The bundled model tile32 is better than the DWT and the DTCWT with fewer latents.",
            BUNDLED,
            _bundled,
            _above(
                tuple(
                    (f"{transform}, scale 3{part}", model)
                    for transform in ("DWT", "DTCWT")
                    for part, model in zip((" LL", ""), TILE32, strict=True)
                )
            ),
        ),
        *(
            MeasuredClaim(
                f"jpeg-{data}",
                ("table:comp-jpeg",),
                f"photo256, one vector of 3072 latents with four bits each, is better than JPEG at 0.19 bpp on {data}.",
                (f"compare-{data}.json",),
                _files(data),
                (increasing("JPEG, optimised", PLAIN),),
            )
            for data in ("kodak", "photos256")
        ),
        MeasuredClaim(
            "jpeg-coded",
            ("table:comp-jpeg",),
            "With entropy coding, the default codec is better than JPEG at 0.19 bpp on kodak.",
            ("compare-kodak.json",),
            _files("kodak"),
            (increasing("JPEG, optimised", CODED),),
        ),
        MeasuredClaim(
            "parallel",
            ("fig:finola-parallel",),
            "Propagation in parallel is at least 1.3 times as fast as position by position on a map of 16×16, and 3 "
            "times on 64×64 (C = 3072, one and two threads).",
            tuple(f"bench-propagation-{threads}.json" for threads in (1, 2)),
            _speed,
            (at_least("16x16", "speed-up", 1.3), at_least("64x64", "speed-up", 3.0)),
        ),
        _order(
            "masking",
            "table:finola-maskfinola",
            "Masked FINOLA-B recognises better than masked FINOLA-E, and that better than FINOLA.",
            PROBES,
            *("finola", "masked-e", "masked-b"),
        ),
        _order(
            "block-wise",
            "fig:appendix:element-vs-block",
            "Block-wise masking recognises better than element-wise masking.",
            PROBES,
            *("masked-e", "masked-b"),
        ),
        _order(
            "frozen-reconstruction",
            "fig:appendix:recon-ftlin",
            "The frozen encoder of FINOLA reconstructs better than that of masked FINOLA-B, and that better than E's.",
            ("reconstruction",),
            *("masked-e", "masked-b", "finola"),
        ),
        _order(
            "moco",
            "table:finola-mocov2",
            "Masked FINOLA-B recognises better than MoCo-v2 with a tran-1 head and after fine-tuning.",
            PROBES[1:],
            *("moco-adamw", "masked-b"),
        ),
        MeasuredClaim(
            "moco-lin",
            ("table:finola-mocov2",),
            "Masked FINOLA-B and MoCo-v2 are on par in linear probing (within 3 %).",
            tuple(f"{STUDY}/{method}-0.json" for method in ("masked-b", "moco-adamw")),
            _study,
            (near(METHODS["masked-b"], METHODS["moco-adamw"], within=3.0, metric="lin"),),
        ),
        _order(
            "curvature",
            "fig:masked-finola-gaussian",
            "The peak Gaussian curvature of the encoder's map, the mean over channels, is larger in masked FINOLA.",
            ("curvature",),
            *("finola", "masked-b"),
        ),
    )
}
"""Claims that are judged by stored measurements, by name."""

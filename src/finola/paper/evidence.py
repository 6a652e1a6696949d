"""Claims of our own on small models that have learnt: FINOLA beside linear codes, and beside maps without a recurrence.

The bounds were written down before the runs.
"""

from __future__ import annotations

from finola.paper.definitions import Same, Table, above, claim, exceeds, gains_at_most

_CONTROLS = {"repetition": "+repeat+pos", "free": "+free", "conv-ae": "+resae64"}
_ABOUT = {
    "norm-linear": "norm+linear",
    "repetition": "repetition with position embedding",
    "free": "a free linear map from q to z",
    "conv-ae": "a residual Conv-AE",
}
_DECODERS = {"residual": "+residual64", "linear": "+patch"}


def _row(kind: str, side: int, decoder: str, encoder: str = "residual-w64+linear") -> Same:
    """A model of 96 numbers with a map of side×side, which differs from the recipe `fit` in its name only."""
    name = f"{encoder}/96x1@{side}:32{_CONTROLS.get(kind, '')}{_DECODERS[decoder]}"
    about = f"{_ABOUT[kind]}, {side}x{side}, {decoder} decoder"
    about += "" if encoder.endswith("+linear") else ", no linear layer from pixels to q"
    return Same("fit-control" if kind in _CONTROLS else "fit", about, overrides=(f"model.name={name}",))


_MAPS = {f"{kind}@16-{decoder}": _row(kind, 16, decoder) for decoder in _DECODERS for kind in _ABOUT}
CLAIMS = (
    claim(
        "fit",
        "From random A and B, one vector of 96 numbers is better than a KLT with as many components, fitted to the "
        "same kind of crops, with and without a linear layer from pixels to q.",
        *(exceeds(row, "psnr", "klt") for row in ("norm-linear@8-residual", "convolutions", "norm-linear@16-residual")),
        rows={
            "norm-linear@8-residual": _row("norm-linear", 8, "residual"),
            "convolutions": _row("norm-linear", 8, "residual", encoder="residual-w64"),
            "norm-linear@16-residual": _MAPS["norm-linear@16-residual"],
        },
        metrics=("psnr", "klt"),
        scales=("cpu",),
    ),
    *(
        claim(
            f"recurrence-{decoder}",
            f"With a {decoder} decoder on a map of 16×16, norm+linear is at least 0.1 dB better than repetition with "
            "position embedding and than a residual Conv-AE, and a free linear map gains at most 0.3 dB.",
            *(above(f"{kind}@16-{decoder}", f"norm-linear@16-{decoder}", by=0.1) for kind in ("repetition", "conv-ae")),
            gains_at_most(f"norm-linear@16-{decoder}", f"free@16-{decoder}", limit=0.3),
            rows={row: same for row, same in _MAPS.items() if row.endswith(f"@16-{decoder}")},
            metrics=("psnr", "klt"),
            parameters=True,
            scales=("cpu",),
        )
        for decoder in _DECODERS
    ),
)
TABLE = Table("", "Small models that have learnt.", claims=CLAIMS)

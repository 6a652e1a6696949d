"""Claims of our own on small models that have learnt: FINOLA beside linear codes and maps without a recurrence.

The bounds were written down before the runs.
"""

from __future__ import annotations

from finola.paper.definitions import (
    WAVE_METRICS,
    Same,
    Table,
    above,
    at_least,
    at_most,
    claim,
    exceeds,
    gains_at_most,
)

_MILLION = ("schedule.epochs=103", "checkpoint.every_minutes=5")  # 1,002,396 crops of 4,866 photos
_WITHOUT_A = ("model.transition_scale=1",)  # no random matrices to scale


def controls(decoder: str) -> dict[str, Same]:
    """Maps of 16×16 from one vector of 96 numbers, with the same encoder, decoder and optimiser, and their images."""
    fields = {} if decoder == "residual" else {"decoder": decoder}

    def row(about: str, *overrides: str, of: str = "resolution/3072x1@64", **twin: str) -> Same:
        return Same(of, f"{about}, {decoder} decoder", twin=fields | twin, cpu=overrides)

    waves = ("model.init=wave-matrices", "model.frozen=[transition.*]", *_WITHOUT_A)
    return {
        "norm-linear": row("norm+linear"),
        "repetition": row("repetition with position embedding", of="autoregression/repetition-pos@64"),
        "free": row("a free linear map from q to z", *_WITHOUT_A, transition="free"),
        "conv-ae": row("a residual Conv-AE", *_WITHOUT_A, transition="resae64"),
        "waves": row("fixed plane waves", *waves),
    }


def penalised(weight: float) -> Same:
    about = f"norm+linear, weight of the difference of the orders: {weight:g}"
    return Same("channels/3072", about, cpu=(f"loss.order_difference={weight:g}",))


PENALTIES = (1e-3, 1e-2, 1e-1)
# Chosen by the training loss among 0.001 … 0.3: the eigenvalues of trained matrices are as large as −4.
_EIGENVALUES = "optimiser.groups.speeds={match: [transition.eigenvalues.*], lr: 0.1}"
WAVES = {
    "free": Same("channels/3072", "norm+linear"),
    **{f"penalty-{weight:g}": penalised(weight) for weight in PENALTIES},
    "commuting": Same("channels/3072", "commuting A and B", twin={"speeds": "commuting"}, cpu=(_EIGENVALUES,)),
    "untrained": Same("channels/3072", "norm+linear after one step", cpu=("trainer.max_steps=1",)),
}
"""Recurrences whose two orders of propagation agree more and more."""


CLAIMS = (
    claim(
        "fit",
        "From random A and B, one vector of 96 numbers is better than a KLT with as many components, fitted to the "
        "same kind of crops, with and without a linear layer from pixels to q.",
        *(exceeds(row, "psnr", "klt") for row in ("norm-linear@8", "pixels", "norm-linear@16")),
        rows={
            "norm-linear@8": Same("channels/3072", "norm+linear, 8x8"),
            "pixels": Same(
                "channels/3072",
                "norm+linear, 8x8, with a linear layer from pixels to q",
                twin={"encoder": "residual-w64+linear"},
            ),
            "norm-linear@16": Same("resolution/3072x1@64", "norm+linear, 16x16"),
        },
        scales=("cpu",),
    ),
    claim(
        "million",
        "After a million images, norm+linear is at least 0.2 dB above the KLT.",
        exceeds("norm-linear", "psnr", "klt", by=0.2),
        rows={
            "norm-linear": Same("channels/3072", "norm+linear, 8x8, a million images", cpu=_MILLION),
            "conv-ae": Same(
                "channels/3072",
                "a residual Conv-AE, 8x8, a million images",
                twin={"transition": "resae64"},
                cpu=(*_MILLION, *_WITHOUT_A),
            ),
        },
        parameters=True,
        scales=("cpu",),
    ),
    *(
        claim(
            f"recurrence-{decoder}",
            f"With a {decoder} decoder on a map of 16×16, norm+linear is at least 0.1 dB better than repetition with "
            "position embedding and than a residual Conv-AE, and a free linear map gains at most 0.3 dB.",
            above("repetition", "norm-linear", by=0.1),
            above("conv-ae", "norm-linear", by=0.1),
            gains_at_most("norm-linear", "free", limit=0.3),
            rows=controls(word),
            parameters=True,
            scales=("cpu",),
        )
        for decoder, word in (("residual", "residual"), ("linear", "patch"))
    ),
    claim(
        "waves-cost",
        "Commuting A and B, for which the wave equation holds, lose at most 0.1 dB, and so does a penalty of 0.01 on "
        "the difference of both orders.",
        gains_at_most("commuting", "free", limit=0.1),
        gains_at_most("penalty-0.01", "free", limit=0.1),
        at_least("commuting", "explained_by_Q", 0.9),
        rows=WAVES,
        metrics=("psnr", "klt", *WAVE_METRICS),
        scales=("cpu",),
    ),
    claim(
        "waves-emerge",
        "Training from random A and B makes the wave equation hold better: the Q of the model explains at least 0.1 "
        "more of the variance of Δx z than that of random matrices, and so does the best Q.",
        above("untrained", "free", by=0.1, metric="explained_by_Q"),
        above("untrained", "free", by=0.1, metric="explained"),
        at_most("free", "explained_shuffled", 0.05),
        rows=WAVES,
        metrics=("psnr", "klt", *WAVE_METRICS),
        scales=("cpu",),
    ),
)
TABLE = Table("", "Small models that have learnt.", claims=CLAIMS)

"""Tables, figures and equations of the paper by LaTeX label.

The labels are listed in the order of their captions in the LaTeX source of arXiv 2310.12976, which numbers them.
"""

from __future__ import annotations

from finola.errors import UnknownNameError

TABLES = (
    "table:multi-resolution",
    "table:comp-auto",
    "table:comp-nonlinear",
    "table:comp-norm",
    "table:comp-dct",
    "table:comp-dwt",
    "table:comp-ae",
    "table:comp-jpeg",
    "table:finola-vs-self-sup",
    "table:hidden-vs-dct",
    "table:appendix:mf-enc-achs",
    "table:appendix:upsampler-achs",
    "table:appendix:FINOLA",
    "table:comp-arch-conv-ae",
    "table:comp-diffusion",
    "table:ablation",
    "table:special-case-all",
    "table:mixture-hidden-waves",
    "table:appendix:od-mf-dec-achs",
    "table:appendix:masked-FINOLA",
    "table:appendix:lin-tran-setting",
    "table:appendix:finetune-setting",
    "table:appendix:ablation-tran-blocks",
    "table:finola-vs-mask-based-methods",
    "table:finola-mocov2",
    "table:appendix:finola-vs-sup-COCO",
    "table:appendix:finola-vs-sup-COCO-ft",
    "table:coco-det-detr-cmp",
    "table:finola-maskfinola",
    "table:appendix:finola-maskedfinola-probing",
)
FIGURES = (
    "fig:wave-intro",
    "fig:finola",
    "fig:finola-multipath",
    "fig:finola-parallel",
    "fig:val-relax",
    "fig:appendix:recon-num-channels",
    "fig:appendix:recon-enc",
    "fig:appendix:recon-pos",
    "fig:appendix:noise",
    "fig:appendix:recon-mean",
    "fig:appendix:recon-mixup",
    "fig:appendix:recon-pca",
    "fig:wave-finola-vis",
    "fig:recon-mc",
    "fig:recon-special",
    "fig:masked-finola",
    "fig:appendix:train-len",
    "fig:cls-od-sup",
    "fig:appendix:recon-ftlin",
    "fig:appendix:element-vs-block",
    "fig:masked-finola-gaussian",
)
EQUATIONS = (
    "eq:finola-intro",
    "eq:finola-pde",
    "eq:group-finola",
    "eq:finola-pde-diag",
    "eq:wave",
    "eq:group-finola-diag",
    "eq:group-finola-diag-para",
    "eq:wave-special-case1",
    "eq:wave-special-case2",
    "eq:appendix:guassian-curvature",
    "eq:norm-derive-1",
    "eq:norm-derive-2",
    "eq:norm-derive-3",
)
_KINDS = {"Table": TABLES, "Figure": FIGURES, "Eq.": EQUATIONS}


def number(label: str) -> str:
    """Kind and number of a LaTeX label.

    >>> number("table:ablation"), number("eq:group-finola")
    ('Table 16', 'Eq. 3')
    """
    for kind, labels in _KINDS.items():
        if label in labels:
            return f"{kind} {labels.index(label) + 1}"
    raise UnknownNameError(f"Unknown label {label!r}; see finola.paper for all labels.")


def cite(label: str, part: str = "") -> str:
    """Citation by number and label, with an optional part of a table.

    >>> cite("table:ablation", "b")
    'Table 16b (table:ablation)'
    """
    return f"{number(label)}{part} ({label})"

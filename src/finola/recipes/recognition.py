"""Recipes of the paper's experiments on recognition: masked FINOLA, probing, fine-tuning, baselines and COCO."""

from __future__ import annotations

from typing import Any

from finola.paper import cite

Recipes = dict[str, dict[str, Any]]

WIDTHS = (720, 1440, 2880)
"""Channels of the three Mobile-Former encoders."""


def _masked() -> Recipes:
    """Pre-training (table:appendix:masked-FINOLA), its length (fig:appendix:train-len), the depth of the decoder of B
    (table:appendix:ablation-tran-blocks), reconstruction (appendix C)."""
    recipes: Recipes = {}
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "e": ("patch", {"mask": {"variant": "e", "places": 8}}),
        "b": ("tran4", {}),
    }
    for variant, (decoder, settings) in variants.items():
        title = f"masked FINOLA-{variant.upper()} on Mobile-Former"
        for width in WIDTHS:
            recipes[f"masked/{variant}-w{width}"] = {
                "base": "_masked",
                "about": f"{title} W{width}, as in the paper",
                "model": {"name": f"mf-w{width}/512x1@16+{decoder}"},
                **settings,
            }
            if width < 2880 and variant == "e":
                continue
            for epochs in (100, 200, 400, 800):
                recipes[f"masked/{variant}-w{width}-{epochs}"] = {
                    "base": f"masked/{variant}-w{width}",
                    "about": f"{title} W{width} over {epochs} epochs, {cite('fig:appendix:train-len')}",
                    "schedule": {"epochs": epochs},
                }
        recipes[f"masked/recon-{variant}-w2880"] = {
            "base": "paper/channels/512",
            "about": f"reconstruction by a frozen masked FINOLA-{variant.upper()} encoder; "
            "pooling and recurrence tuned, decoder new (appendix C)",
            "model": {"weights": f"runs/masked-{variant}-w2880/model", "frozen": ["encoder.*"]},
            "paper_psnr": None,
        }
    for blocks in range(1, 7):
        recipes[f"masked/b-w2880-tran{blocks}"] = {
            "base": "masked/b-w2880-800",
            "about": f"{cite('table:appendix:ablation-tran-blocks')}: decoder with transformer blocks: {blocks}",
            "model": {"name": f"mf-w2880/512x1@16+tran{blocks}"},
        }
    return recipes


ALIASES = {"masked/b-w2880-tran4": "masked/b-w2880-800"}
"""Recipes with the settings of another one."""


def _probes() -> Recipes:
    """Heads on a frozen encoder: masked FINOLA-B (table:appendix:lin-tran-setting), masked FINOLA-E, plain FINOLA,
    whose q has 64 to 3072 channels (table:appendix:finola-maskedfinola-probing), and MoCo-v2 (table:finola-mocov2)."""
    recipes: Recipes = {}
    tran_heads = {720: (0.1, 0.0), 1440: (0.2, 0.0), 2880: (0.2, 0.25)}  # dropout, random erasing
    for width, (dropout, erase) in tran_heads.items():
        encoder = f"of a masked FINOLA-B encoder of {width} channels, as in the paper"
        model = {"name": f"mf-w{width}", "weights": f"runs/masked-b-w{width}/model"}
        recipes[f"probe/lin-w{width}"] = {"base": "_lin", "about": f"linear probing {encoder}", "model": model}
        for blocks in (1, 4):
            recipes[f"probe/tran{blocks}-w{width}"] = {
                "base": "_tran",
                "about": f"tran-{blocks} probing {encoder}",
                "model": model,
                "head": {"kind": f"tran-{blocks}", "dropout": dropout, "random_erasing": erase},
            }
    others = {"e-w2880": (2880, "masked FINOLA-E", "masked-e-w2880")}
    others |= {f"moco-w{width}": (width, f"MoCo-v2 on Mobile-Former W{width}", f"moco-w{width}") for width in WIDTHS}
    for channels in (64, 128, 256, 512, 1024, 2048, 3072):
        title = f"plain FINOLA whose q has {channels} channels (paper/channels/{channels})"
        others[f"finola-q{channels}"] = (2880, title, f"paper-channels-{channels}")
    for name, (width, title, run) in others.items():
        for head, kind in (("lin", "linear"), ("tran1", "tran-1")):
            recipes[f"probe/{name}-{head}"] = {
                "base": f"probe/{head}-w{width}",
                "about": f"{kind} probing of {title}",
                "model": {"weights": f"runs/{run}/model"},
            }
    return recipes


def _labelled_and_contrastive() -> Recipes:
    """Fine-tuning of encoder and head (table:appendix:finetune-setting), initialised from a probe: tran-1, tran-4
    (table:finola-vs-self-sup), other pre-training; and two baselines: the same model trained from scratch with
    labels, and MoCo-v2 (table:finola-mocov2)."""
    recipes: Recipes = {}
    by_width = {720: (0.0, 0.0, 0.9, 200), 1440: (0.2, 0.25, 0.9, 150), 2880: (0.8, 1.0, 0.85, 100)}
    for width, (mixup, cutmix, layer_decay, epochs) in by_width.items():
        head = {"mixup": mixup, "cutmix": cutmix}
        recipes[f"finetune/w{width}"] = {
            "base": "_finetune",
            "about": f"fine-tuning of encoder and tran-1 head, {width} channels, as in the paper",
            "model": {"name": f"mf-w{width}", "weights": f"runs/probe-tran1-w{width}/model"},
            "head": head,
            "optimiser": {"layer_decay": layer_decay},
            "schedule": {"epochs": epochs},
        }
        recipes[f"finetune/tran4-w{width}"] = {
            "base": f"finetune/w{width}",
            "about": f"{cite('table:finola-vs-self-sup')}: fine-tuning of encoder and tran-4 head, {width} channels",
            "model": {"weights": f"runs/probe-tran4-w{width}/model"},
            "head": {"kind": "tran-4"},
        }
        recipes[f"finetune/moco-w{width}"] = {
            "base": f"finetune/w{width}",
            "about": f"{cite('table:finola-mocov2')}: fine-tuning after MoCo-v2, {width} channels",
            "model": {"weights": f"runs/probe-moco-w{width}-tran1/model"},
        }
        recipes[f"supervised/w{width}"] = {
            "base": "_finetune",
            "about": f"the same encoder and head from scratch with labels, {width} channels (Sup-IN1K)",
            "model": {"name": f"mf-w{width}"},
            "head": head,
            "optimiser": {"base_lr": 1e-3, "layer_decay": None},
            "schedule": {"epochs": 300},
        }
        recipes[f"moco/w{width}"] = {
            "base": "_moco",
            "about": f"MoCo-v2 on Mobile-Former W{width}",
            "model": {"name": f"mf-w{width}"},
        }
    for name, title in {"e-w2880": "masked FINOLA-E", "finola-q3072": "plain FINOLA whose q has 3072 channels"}.items():
        recipes[f"finetune/{name}"] = {
            "base": "finetune/w2880",
            "about": f"{cite('table:finola-maskfinola')}: fine-tuning after {title}",
            "model": {"weights": f"runs/probe-{name}-tran1/model"},
        }
    return recipes


# AP of the supervised encoder, of masked FINOLA and of masked FINOLA fine-tuned on ImageNet-1K, by decoder and width.
FROZEN_AP = {  # table:appendix:finola-vs-sup-COCO
    ("211", 720): (27.8, 33.0, 35.8),
    ("211", 1440): (31.2, 36.0, 39.2),
    ("211", 2880): (34.1, 36.7, 41.0),
    ("522", 720): (35.2, 40.0, 41.6),
    ("522", 1440): (38.3, 42.6, 44.0),
    ("522", 2880): (40.5, 43.3, 45.5),
}
FINE_TUNED_AP = {  # table:appendix:finola-vs-sup-COCO-ft
    ("211", 720): (37.6, 37.2, 39.3),
    ("211", 1440): (42.5, 42.4, 43.8),
    ("211", 2880): (44.0, 44.4, 46.0),
    ("522", 720): (42.5, 43.3, 44.4),
    ("522", 1440): (46.2, 46.8, 47.3),
    ("522", 2880): (48.1, 48.0, 49.0),
}
# Mask AP of MoCo-v2, of masked FINOLA and of masked FINOLA fine-tuned on ImageNet-1K, by width.
MASK_AP = {720: (23.2, 26.3, 28.4), 1440: (25.6, 30.6, 32.7), 2880: (27.8, 33.3, 35.1)}  # table:finola-mocov2


def _detection() -> Recipes:
    """DETR with two sizes of decoder, the encoder frozen or fine-tuned on COCO, and Mask R-CNN.

    The frozen encoders are those of masked FINOLA-B; `model.weights` chooses others.
    """
    recipes: Recipes = {}
    for prefix, base, title, weights, results in (
        ("dec", "_detect", "MF-Dec-{} on a frozen encoder", "masked-b-w{1}", FROZEN_AP),
        (
            "finetune",
            "_detect_finetune",
            "the same with the encoder trained too",
            "detection-dec-{0}-w{1}",
            FINE_TUNED_AP,
        ),
    ):
        for (decoder, width), (supervised, finola, tuned) in results.items():
            ap = f"AP {supervised} supervised, {finola} FINOLA, {tuned} FINOLA fine-tuned"
            recipes[f"detection/{prefix}-{decoder}-w{width}"] = {
                "base": base,
                "about": f"{title.format(decoder)}; the paper has {ap}",
                "model": {"name": f"mf-w{width}", "weights": f"runs/{weights.format(decoder, width)}/model"},
                "head": {"kind": f"mf-dec-{decoder}"},
            }
    for width, (moco, finola, tuned) in MASK_AP.items():
        ap = f"mask AP {moco} MoCo-v2, {finola} FINOLA, {tuned} FINOLA fine-tuned"
        recipes[f"detection/mask-rcnn-w{width}"] = {
            "base": "_segment",
            "about": f"Mask R-CNN (1×) on a frozen encoder; the paper has {ap}",
            "model": {"name": f"mf-w{width}", "weights": f"runs/masked-b-w{width}/model"},
        }
    return recipes


RECOGNITION: Recipes = _masked() | _probes() | _labelled_and_contrastive() | _detection()

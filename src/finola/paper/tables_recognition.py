"""Tables 19 to 30 of the paper, in the order of their captions."""

from __future__ import annotations

from finola.paper.definitions import PROBES, above, exceeds, increasing, near, numbers, table
from finola.paper.recognition import (
    DEPTHS,
    KLT_MARGIN,
    NAME,
    PARITY,
    Q_SIZES,
    SIZES,
    STUDY,
    TUNING,
    against_labels,
    against_moco,
    detectors,
    mix,
    order,
    over_images,
    pre_trained,
    probed,
    recipes,
    studies,
    train,
    tran,
)
from finola.paper.tables_main import WIDTHS

TABLES = (
    table(
        "table:appendix:od-mf-dec-achs",
        "Architecture of the detection heads.",
        models={
            "detectors of 80 classes at 1333×800": tuple(
                f"detection/dec-{head}-w{width}" for head in (211, 522) for width in WIDTHS
            )
        },
    ),
    table(
        "table:appendix:masked-FINOLA",
        "Settings of masked pre-training.",
        models={f"masked FINOLA-{v.upper()}": tuple(f"masked/{v}-w{width}" for width in WIDTHS) for v in "eb"},
        recipes=recipes(
            "masked/e-w{w}",
            "_masked",
            "masked FINOLA-E on Mobile-Former W{w}, as in the paper",
            model={"name": "mf-w{w}/512x1@16+patch"},
            mask={"variant": "e"},
        )
        | recipes(
            "masked/b-w{w}",
            "_masked",
            "masked FINOLA-B on Mobile-Former W{w}, as in the paper",
            model={"name": "mf-w{w}/512x1@16+tran4"},
        ),
    ),
    table(
        "table:appendix:lin-tran-setting",
        "Settings of probing.",
        recipes=recipes(
            "probe/lin-w{w}",
            "_lin",
            "linear probing of a masked FINOLA-B encoder of {w} channels, as in the paper",
            "masked-b-w{w}",
            model=NAME,
        )
        | tran(1)
        | tran(4),
    ),
    table(
        "table:appendix:finetune-setting",
        "Settings of fine-tuning.",
        recipes=recipes(
            "finetune/w{w}",
            "_finetune",
            "fine-tuning of encoder and tran-1 head, {w} channels, as in the paper",
            "probe-tran1-w{w}",
            model=NAME,
            head=mix,
            optimiser=lambda w: {"layer_decay": TUNING[w][2]},
            schedule=lambda w: {"epochs": TUNING[w][3]},
        )
        | recipes(
            "supervised/w{w}",
            "_finetune",
            "the same encoder and head from scratch with labels, {w} channels (Sup-IN1K)",
            model=NAME,
            head=mix,
            optimiser={"base_lr": 1e-3, "layer_decay": None},
            schedule={"epochs": 300},
        ),
    ),
    table(
        "table:appendix:ablation-tran-blocks",
        "More transformer blocks in the decoder of masked FINOLA improve probing and barely change fine-tuning.",
        studies(
            "decoder-depth",
            f"More transformer blocks in the decoder improve probing, and change fine-tuning by at most {PARITY:g} %.",
            *(increasing(*DEPTHS, metric=metric) for metric in ("lin", "tran-1")),
            near(*list(DEPTHS)[:: len(DEPTHS) - 1], within=PARITY, metric="fine-tuned"),
            rows=DEPTHS,
            metrics=(*PROBES, "fine-tuned"),
        ),
        page="recognition.md",
        recipes={
            f"masked/b-w2880-tran{blocks}": {
                "base": "masked/b-w2880-800",
                "about": f"decoder with transformer blocks: {blocks}",
                "model": {"name": f"mf-w2880/512x1@16+tran{blocks}"},
            }
            for blocks in range(1, 7)
        },
        quoted=numbers(
            "blocks lin tran1 tran1_ft",
            *((1, 61.1, 74.4, 82.2), (2, 62.6, 76.5, 82.3), (3, 63.5, 77.3, 82.2)),
            *((4, 63.8, 78.0, 82.3), (5, 64.0, 78.1, 82.3), (6, 65.0, 78.3, 82.4)),
        ),
        commands=tuple(
            pre_trained(
                *((f"masked/b-w2880-{'800' if blocks == 4 else f'tran{blocks}'}", 2880) for blocks in range(1, 7))
            )
        ),
    ),
    table(
        "table:finola-vs-mask-based-methods",
        "Linear probing of masked FINOLA is comparable to masked methods with larger encoders.",
        needs="ImageNet-1K",
        quoted=numbers(
            "method model parameters_m top1",
            ("iGPT", "iGPT-L", 1362, 69.0),
            ("BEiT", "ViT-B", 86, 56.7),
            ("SimMIM", "ViT-B", 86, 56.7),
            ("MAE", "ViT-B", 86, 68.0),
            ("MAE", "ViT-S", 22, 49.2),
            ("MAE-Lite", "ViT-Tiny", 6, 23.3),
            *(("FINOLA", "MF-W720", 6, 51.3), ("FINOLA", "MF-W1440", 14, 62.8), ("FINOLA", "MF-W2880", 28, 66.4)),
        ),
        commands=tuple(train(f"{recipe}-w{width}") for width in WIDTHS for recipe in ("masked/b", "probe/lin")),
    ),
    table(
        "table:finola-mocov2",
        "Masked FINOLA is better than MoCo-v2 in tran-1 probing, fine-tuning, detection and segmentation, and on par "
        "in linear probing.",
        order(
            "moco",
            "Masked FINOLA-B recognises better than MoCo-v2 with a tran-1 head and after fine-tuning.",
            ("tran-1", "fine-tuned"),
            *("moco", "masked-b"),
        ),
        studies(
            "moco-lin",
            f"Masked FINOLA-B and MoCo-v2 are on par in linear probing (within {PARITY:g} %).",
            near("masked-b", "moco", within=PARITY, metric="lin"),
            rows=over_images("masked-b", "moco") | {row: STUDY[row] for row in ("random", "supervised")},
            metrics=PROBES,
        ),
        page="recognition.md",
        recipes=recipes("moco/w{w}", "_moco", "MoCo-v2 on Mobile-Former W{w}", model=NAME)
        | recipes(
            "finetune/moco-w{w}", "finetune/w{w}", "fine-tuning after MoCo-v2, {w} channels", "probe-moco-w{w}-tran1"
        )
        | recipes(
            "detection/mask-rcnn-w{w}", "_segment", "Mask R-CNN (1×) on a frozen encoder", "masked-b-w{w}", model=NAME
        )
        | probed("moco-w{w}", "{w}", "MoCo-v2 on Mobile-Former W{w}", "moco-w{w}"),
        quoted=numbers(  # AP without and with fine-tuning on ImageNet-1K
            "method encoder lin tran1 tran1_ft box_ap box_ap_in_ft mask_ap mask_ap_in_ft",
            ("MoCo-v2", "MF-W720", 51.6, 52.9, 74.3, 31.8, 39.9, 23.2, 25.3),
            ("FINOLA", "MF-W720", 51.3, 65.5, 75.6, 40.0, 41.6, 26.3, 28.4),
            ("MoCo-v2", "MF-W1440", 60.4, 58.5, 79.2, 30.3, 39.0, 25.6, 25.7),
            ("FINOLA", "MF-W1440", 62.8, 75.2, 80.5, 42.6, 44.0, 30.6, 32.7),
            ("MoCo-v2", "MF-W2880", 66.5, 63.8, 80.0, 25.5, 31.7, 27.8, 25.2),
            ("FINOLA", "MF-W2880", 66.4, 78.7, 82.5, 43.3, 45.5, 33.3, 35.1),
        ),
        commands=tuple(against_moco()),
    ),
    *(
        table(
            label,
            sentence,
            needs="ImageNet-1K and COCO 2017",
            page="detection.md",
            recipes={
                f"detection/{prefix}-{row['decoder']}-w{row['width']}": {
                    "base": base,
                    "about": about.format(**row),
                    "model": {"name": f"mf-w{row['width']}", "weights": f"runs/{run.format(**row)}/model"},
                    "head": {"kind": f"mf-dec-{row['decoder']}"},
                }
                for row in quoted
            },
            quoted=quoted,
            commands=tuple(against_labels(tuned=prefix == "finetune")),
        )
        for label, sentence, prefix, base, about, run, quoted in (
            (
                "table:appendix:finola-vs-sup-COCO",
                "A frozen encoder of masked FINOLA detects better than one trained with labels.",
                "dec",
                "_detect",
                "MF-Dec-{decoder} on a frozen encoder; the paper has AP {supervised} supervised, {finola} FINOLA, "
                "{finola_in_ft} FINOLA fine-tuned",
                "masked-b-w{width}",
                numbers(
                    "decoder width multiply_adds_g supervised finola finola_in_ft",
                    *(("211", 720, 5.6, 27.8, 33.0, 35.8), ("211", 1440, 20.4, 31.2, 36.0, 39.2)),
                    *(("211", 2880, 77.5, 34.1, 36.7, 41.0), ("522", 720, 5.6, 35.2, 40.0, 41.6)),
                    *(("522", 1440, 20.4, 38.3, 42.6, 44.0), ("522", 2880, 77.5, 40.5, 43.3, 45.5)),
                ),
            ),
            (
                "table:appendix:finola-vs-sup-COCO-ft",
                "After fine-tuning on COCO, masked FINOLA with fine-tuning on ImageNet-1K detects better than "
                "supervision.",
                "finetune",
                "_detect_finetune",
                "the same with the encoder trained too; the paper has AP {supervised} supervised, {finola} FINOLA, "
                "{finola_in_ft} FINOLA fine-tuned",
                "detection-dec-{decoder}-w{width}",
                numbers(
                    "decoder width multiply_adds_g supervised finola finola_in_ft",
                    *(("211", 720, 5.6, 37.6, 37.2, 39.3), ("211", 1440, 20.4, 42.5, 42.4, 43.8)),
                    *(("211", 2880, 77.5, 44.0, 44.4, 46.0), ("522", 720, 5.6, 42.5, 43.3, 44.4)),
                    *(("522", 1440, 20.4, 46.2, 46.8, 47.3), ("522", 2880, 77.5, 48.1, 48.0, 49.0)),
                ),
            ),
        )
    ),
    table(
        "table:coco-det-detr-cmp",
        "The detector is comparable to DETR variants with fewer multiply–adds.",
        needs="ImageNet-1K and COCO 2017",
        page="detection.md",
        quoted=numbers(
            "method queries ap ap50 ap75 ap_small ap_medium ap_large multiply_adds_g parameters_m",
            ("DETR-DC5", 100, 43.3, 63.1, 45.9, 22.5, 47.3, 61.1, 187, 41),
            ("Deform-DETR", 300, 46.2, 65.2, 50.0, 28.8, 49.2, 61.7, 173, 40),
            ("DAB-DETR", 900, 46.9, 66.0, 50.8, 30.1, 50.4, 62.5, 195, 48),
            ("DN-DETR", 900, 48.6, 67.4, 52.7, 31.0, 52.0, 63.7, 195, 48),
            ("DINO", 900, 50.9, 69.0, 55.3, 34.6, 54.1, 64.6, 279, 47),
            ("FINOLA-DETR (frozen)", 100, 45.5, 63.8, 49.5, 25.1, 49.1, 63.5, 112, 44),
            ("FINOLA-DETR (fine-tuned)", 100, 49.0, 67.7, 53.4, 30.1, 52.9, 65.5, 112, 44),
        ),
        commands=(
            *pre_trained(("masked/b-w2880", 2880)),
            *detectors(2880, ("masked-b-w2880-tran1-ft",), ("522",), tuned=True),
        ),
    ),
    table(
        "table:finola-maskfinola",
        "Masked FINOLA reconstructs worse than FINOLA and recognises better; block-wise better than element-wise.",
        studies(
            "reconstruction-of-study",
            f"FINOLA reconstructs at most {KLT_MARGIN:g} dB worse than a KLT with as many components: the precondition "
            "of all comparisons with its features.",
            exceeds("finola", "psnr", "klt", by=-KLT_MARGIN),
            metrics=("psnr", "klt", "lin"),
        ),
        studies(
            "masking-probes",
            "In probing, masked FINOLA-B is better than masked FINOLA-E, and that better than FINOLA.",
            *(increasing("finola", "masked-e", "masked-b", metric=metric) for metric in ("lin", "tran-1")),
            rows=over_images("finola", "masked-e", "masked-b"),
            metrics=PROBES,
        ),
        order(
            "masking",
            "After fine-tuning, masked FINOLA-B is better than masked FINOLA-E, and that better than FINOLA.",
            ("fine-tuned",),
            *("finola", "masked-e", "masked-b"),
        ),
        page="recognition.md",
        recipes=probed("e-w2880", "2880", "masked FINOLA-E", "masked-e-w2880")
        | recipes("finetune/e-w2880", "finetune/w2880", "fine-tuning after masked FINOLA-E", "probe-e-w2880-tran1")
        | recipes(
            "finetune/finola-q3072",
            "finetune/w2880",
            "fine-tuning after plain FINOLA whose q has 3072 channels",
            "probe-finola-q3072-tran1",
        ),
        quoted=numbers(
            "method psnr lin tran1 tran1_ft",
            ("FINOLA", 25.8, 17.9, 46.8, 81.9),
            ("Masked FINOLA-E", 16.7, 54.1, 67.8, 82.2),
            ("Masked FINOLA-B", 17.3, 66.4, 78.7, 82.5),
        ),
        commands=(
            *pre_trained(("paper/channels/3072", 2880), ("masked/e-w2880", 2880), ("masked/b-w2880", 2880)),
            *(train(f"masked/recon-{variant}-w2880") for variant in "eb"),
        ),
    ),
    table(
        "table:appendix:finola-maskedfinola-probing",
        "No size of q brings the probing accuracy of FINOLA near that of masked FINOLA.",
        studies(
            "size-of-q",
            f"Whatever the size of q, FINOLA is more than {PARITY:g} % below masked FINOLA-E in probing.",
            *(above(size, "masked-e-20", by=PARITY, metric=metric) for size in SIZES for metric in ("lin", "tran-1")),
            rows=SIZES,
            metrics=PROBES,
        ),
        page="recognition.md",
        recipes={
            name: settings
            for size in Q_SIZES
            for name, settings in probed(
                f"finola-q{size}",
                "2880",
                f"plain FINOLA whose q has {size} channels (paper/channels/{size})",
                f"paper-channels-{size}",
            ).items()
        },
        quoted=numbers(
            "method size_of_q lin tran1",
            *(("FINOLA", 64, 10.2, 20.2), ("FINOLA", 128, 11.5, 24.0), ("FINOLA", 256, 15.0, 29.0)),
            *(("FINOLA", 512, 20.1, 34.1), ("FINOLA", 1024, 23.0, 39.6), ("FINOLA", 2048, 23.2, 41.1)),
            *(("FINOLA", 3072, 17.9, 46.8), ("Masked FINOLA-E", 512, 54.1, 67.8)),
            ("Masked FINOLA-B", None, 66.4, 78.7),
        ),
        commands=tuple(
            train(recipe)
            for size in Q_SIZES
            for recipe in (f"paper/channels/{size}", f"probe/finola-q{size}-lin", f"probe/finola-q{size}-tran1")
        ),
    ),
)

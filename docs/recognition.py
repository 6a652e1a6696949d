"""Writes docs/recognition.md from results/, no figure typed: python docs/recognition.py"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import finola.heads

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PROBES = ("lin", "knn", "tran-1", "fine-tuned")
HEAD = """# Masked FINOLA: pre-train without labels, probe, fine-tune

Written by `python docs/recognition.py`. One quadrant of an image is seen, anywhere in it; the recurrence predicts the
rest (`finola/masked.py`, §5 and appendix B of the paper). What the encoder learns by it is read by heads: `lin` (a
batch norm without affine part and a linear layer), `tran-1` and `tran-4` (transformer blocks, 192 to 768 wide).

## From photos to a classifier
```
finola train masked/b-w720-128 data.path=photos/                    # no labels needed
finola probe runs/masked-b-w720-128/model photos/ --probes knn lin tran-1   # minutes: features are kept
finola train probe/tran1-w720-128 data.path=photos/                 # the paper's protocol: a new crop in every epoch
finola train finetune/w720-128 data.path=photos/                    # encoder and head, starting from that probe
finola classify new.jpg --model runs/finetune-w720-128/model
```
`finola classify photo.jpg` alone takes `masked-b-w720` of the package, which knows ten classes.
`photos/` is a folder with one subfolder per class, or parquet files with a label column; how many classes there are is
read from it and kept in the model. Recipes without `-128` have the paper's sizes and settings.

| what | recipes |
|---|---|
| pre-training E and B; over 100 … 800 epochs | `masked/{e,b}-w{720,1440,2880}`, `masked/{e,b}-w2880-{100 … 800}` |
| `lin`, `tran-1`, `tran-4` on a frozen encoder | `probe/{lin,tran1,tran4}-w{720,1440,2880}` |
| the same on plain FINOLA, by the size of q | `probe/finola-q{64 … 3072}-{lin,tran1}` after `paper/channels/…` |
| fine-tuning with layer-wise decay | `finetune/w{720,1440,2880}` |
| with labels from scratch | `supervised/w{720,1440,2880}` |
| MoCo-v2 on the same encoder (lightly; `pip install 'finola[moco]'`) | `moco/w{720,1440,2880}` |
| reconstruction by a masked encoder, frozen (appendix C) | `masked/recon-{e,b}-w2880` |

Any of these models gives its encoder to any other by one name: `model.weights=runs/…/model` in a recipe,
`finola.zoo.load_encoder(name)` in code. A checkpoint always holds the decoder too.
"""

STUDY_NOTES = """The paper's order in `lin` is FINOLA ≪ E < B. With 16,000 images seen it comes the other way round, in
both seeds: FINOLA teaches most of what can be had without labels, E less, B least. It has the easiest task, and 250
steps of 64 are where easy tasks lead; at 64 pixels a masked model sees 2×2 positions of 4×4. The paper's runs see
100,000 times as many images. MoCo-v2, too, has hardly begun, though it is the best start for fine-tuning among those
without labels. Two seeds differ by 1 to 4 points, in fine-tuning, 93 steps, by up to 6.

The random encoder's batch norms were settled on photos first. As they are made, with means of 0 and variances of 1,
its maps differ by 2 % from photo to photo, are nearly linear in the pixels, and `lin`, which rescales them, read 38 %
from them in an earlier run with heads of too many outputs: more than from any encoder trained so briefly but the one
with labels. A linear look at the picture is hard to beat before an encoder has learnt what to throw away.
"""
SPEED_NOTES = """Done about it: Mobile-Former keeps its maps and weights channels-last, so that depthwise convolutions
read memory in order and maps become tokens without a copy; DyReLU is a mean slope and half a difference instead of a
maximum, whose backward makes masks; the loss multiplies by the mask instead of picking pixels out. Together a step
went from 1.29 to 1.00 CPU seconds per 32 images (one thread, in turns). Denormal gradients are flushed to zero.
"""


def study() -> str:
    found = json.loads((RESULTS / "study-imagenette128.json").read_text())
    lines = [
        "\n## A study on two cores\n",
        f"    {found['command']}\n",
        f"{found['data']}, images of {found['pixels']} pixels. Every method has the same encoder "
        f"({found['encoder']}), the same photos and {found['pre_training_epochs']} epochs; fine-tuning takes "
        f"{found['fine_tuning_epochs']}. Percent of val photos named right, by seed. Probes are those on kept features "
        "(`finola/probing.py`).\n",
        "| pre-training | " + " | ".join(PROBES) + " | minutes |",
        "|---|" + "---|" * (len(PROBES) + 1),
    ]
    for method, by_seed in found["percent_right_by_method_and_seed"].items():
        cells = [" / ".join(f"{figures[probe]:.1f}" for figures in by_seed.values()) for probe in PROBES]
        minutes = statistics.mean(figures["pre_training_seconds"] for figures in by_seed.values()) / 60
        lines.append(f"| {method} | {' | '.join(cells)} | {minutes:.1f} |")
    return "\n".join([*lines, "", STUDY_NOTES])


def bundled() -> str:
    found = json.loads((RESULTS / "evaluate-masked-b-w720-imagenette128.json").read_text())
    right, among_five = (f"{100 * found[key]:.1f} %" for key in ("accuracy", "accuracy_5"))
    return (
        "\n## In the package\n\n`masked-b-w720` has 55 minutes of one thread of masked FINOLA-B behind it, 106,000 "
        f"images of 128 pixels, and a tran-1 head on the frozen encoder: {right} of {found['images']:,} val photos of "
        f"ten classes named right, {among_five} among the first five (`finola evaluate masked-b-w720 imagenette128 "
        "--split val`). It shows that everything works, from pre-training without labels to `finola classify`; it is "
        "no good classifier yet (training: `results/train-masked-b-w720`).\n"
    )


def quoted() -> str:
    found = json.loads((Path(finola.heads.__file__).parent / "quoted.json").read_text())
    lines = ["\n## What the paper reports (ImageNet-1K, quoted, not measured here)\n"]
    lines += ["| pre-training | reconstruction, dB | lin | tran-1 | fine-tuned |", "|---|---|---|---|---|"]
    for row in found["finola_and_masked"]:
        lines.append(f"| {row['method']} | {row['psnr']} | {row['lin']} | {row['tran1']} | {row['tran1_ft']} |")
    lines += ["", "More of its tables, its own and those it quotes of others, are in `finola/heads/quoted.json`.", ""]
    return "\n".join(lines)


def speed() -> str:
    found = json.loads((RESULTS / "bench-train-masked.json").read_text())
    bounds = found["bounds"]
    lines = [
        "\n## What bounds pre-training on a CPU\n",
        f"    finola bench train {found['recipe']} --json\n",
        f"{found['images_per_second']:.0f} images/s of 128×128 on {found['threads']} threads "
        f"({found['images_per_second_with_loading']:.0f} with loading): {found['share_of_gemm']:.0%} of the GEMM rate "
        f"({found['gemm_flops_per_second'] / 1e9:.0f} GFLOP/s). By the roofline, where an operation takes as long as "
        f"its arithmetic or its memory traffic ({bounds['bytes_per_second'] / 1e9:.0f} GB/s), a step cannot take less "
        f"than {1e3 * bounds['roofline_seconds']:.0f} ms, {bounds['memory_bound_share']:.0%} of it bound by memory; it "
        f"reaches {bounds['share_of_roofline']:.0%} of that.\n",
        "| operation | least time, ms | GFLOP | MB moved |",
        "|---|---|---|---|",
    ]
    for kind, row in bounds["kinds"].items():
        lines.append(f"| {kind} | {1e3 * row['seconds']:.1f} | {row['gflop']:.2f} | {row['megabytes']:.0f} |")
    return "\n".join([*lines, "", SPEED_NOTES])


def main() -> None:
    (HERE / "recognition.md").write_text(HEAD + bundled() + study() + speed() + quoted())


if __name__ == "__main__":
    main()

"""Writes docs/sizes.md: the paper's counts beside ours, every number of ours counted: python docs/sizes.py"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from finola.decoders.upsampling import UpsamplingDecoder
from finola.encoders.mobile_former import MobileFormer
from finola.zoo import count

PAPER_ENCODERS = {"mf-w720": "5.0", "mf-w1440": "12.0", "mf-w2880": "25.0", "mf-w4320": "43.5", "mf-w5760": "67.6"}
PAPER_MULTIPLY_ADDS = {"mf-w720": "5.6", "mf-w1440": "20.4", "mf-w2880": "77.5"}
PAPER_DECODERS = {8: "25.3", 16: "18.5", 32: "9.6", 64: "7.9", 128: "1.7", 256: "1.2"}


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def encoder_rows() -> list[str]:
    rows = []
    for name, paper in PAPER_ENCODERS.items():
        with torch.device("meta"):
            encoder = MobileFormer(name).eval().requires_grad_(False)
            images = torch.empty(1, 3, 800, 1333)
        encoder.reduction = 1  # the paper's size is no multiple of 16; the strided convolutions round it up
        adds = "–"
        if name in PAPER_MULTIPLY_ADDS:
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                encoder.with_tokens(images)
            adds = f"{counter.get_total_flops() / 2e9:.2f} G"
        quoted = f"{PAPER_MULTIPLY_ADDS[name]} G" if name in PAPER_MULTIPLY_ADDS else "–"
        rows.append(f"| {name} | {paper} M | {parameters(encoder) / 1e6:.3f} M | {quoted} | {adds} |")
    return rows


def decoder_rows() -> list[str]:
    rows = []
    for side, paper in PAPER_DECODERS.items():
        with torch.device("meta"):
            ours = [parameters(UpsamplingDecoder(channels, 256 // side)) / 1e6 for channels in (512, 1024, 3072)]
        rows.append(f"| {side}×{side} | {paper} M | " + " | ".join(f"{value:.2f} M" for value in ours) + " |")
    return rows


def conv_ae_rows() -> list[str]:
    rows = []
    for name, paper in {
        "mf-w2880/1024x2@64": "16.6",
        "mf-w2880/1024x8@64": "16.6",
        "mf-w2880/512x4@64+convae": "35.9",
        "mf-w2880/2048x4@64+convae": "61.9",
    }.items():
        counted = {station: size.parameters / 1e6 for station, size in count(name).items() if station != "encoder"}
        parts = " | ".join(f"{value:.2f} M" for value in counted.values())
        rows.append(f"| `{name}` | {paper} M | {sum(counted.values()):.2f} M | {parts} |")
    return rows


def matrix_rows() -> list[str]:
    rows = []
    for name in ("mf-w2880/16384x1@64", "mf-w2880/1024x16@64"):
        size = count(name)["propagation"]
        one, adds = size.parameters / 4e6, size.multiply_adds / 1e9
        rows.append(f"| `{name}` | {one:.1f} M | {4 * one:.1f} M | {adds:.0f} G |")
    return rows


PAGE = """# The paper's sizes beside ours

Written by `python docs/sizes.py`; every number of ours is counted from the modules. `finola models` counts the rest.

## Encoders
Multiply–adds at 800×1333, convolutions and matrix products, attention among them.

| encoder | paper | ours | paper | ours |
|---|---|---|---|---|
{encoders}

- W1440: the table's first row of stage 4 prints 288/96, which repeats its own stage 3. Read as 576/176, half of
  W2880 like every other row, it gives the printed 12.0 M and its multiply–adds.
- W4320 and W5760 are W2880 with 1.5 and 2 times the channels. That alone gives 45.2 and 71.1 M. The printed sizes
  follow when the last Mobile→Former is left out and the last 1×1 convolution stays at 2880 channels, so that is how
  they are built.
- W2880 stands 1.9 % above the printed 25.0 M. Without the last Mobile→Former, which no feature map depends on, it is
  25.1 M.

## Upsampling decoders
The table is built literally: res-conv is two 3×3 convolutions with an identity where the width stays, up-conv is
upsampling and one 3×3 convolution. How many channels the map has is not printed, so three are counted.

| map | paper | C = 512 | C = 1024 | C = 3072 |
|---|---|---|---|---|
{decoders}

No single reading gives the paper's column: 8×8 has one res-conv and one up-conv of 512 channels more than 16×16.
That is 27·512² = 7.08 M, and the paper's difference is 6.8 M.

## The Conv-AE comparison
Pooling, growing and decoding together; the encoder is shared and left out, as in the paper.

| model | paper | ours | pooling | growing | decoder |
|---|---|---|---|---|---|
{conv_ae}

FINOLA's 16.6 M is matched. Conv-AE's is not: the paper says five blocks of three 3×3 convolutions from 2×2 to
64×64×1024 and no widths. With 512 channels throughout and 1024 at the end ours is larger.

## One path or sixteen at a latent of 16,384
| model | one matrix | all four | multiply–adds |
|---|---|---|---|
{matrices}
"""

if __name__ == "__main__":
    page = PAGE.format(
        encoders="\n".join(encoder_rows()),
        decoders="\n".join(decoder_rows()),
        conv_ae="\n".join(conv_ae_rows()),
        matrices="\n".join(matrix_rows()),
    )
    (Path(__file__).parent / "sizes.md").write_text(page)
    print(page)

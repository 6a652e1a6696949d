"""Tables 10 to 18 of the paper, in the order of their captions."""

from __future__ import annotations

from finola.paper.definitions import Row, Same, claim, increasing, numbers, table
from finola.paper.tables_main import compared

GRID = {(1024, 2): 24.8, (1024, 4): 26.1, (1024, 8): 27.1, (1024, 16): 27.7, (2048, 8): 28.0, (2048, 16): 29.1}
"""PSNR by channels C and paths M on a map of 64×64 where a table has it; others are points of a figure."""
SCATTERED = {(1024, 4): 26.7, (1024, 8): 28.0, (1024, 16): 29.1, (2048, 8): 28.9, (2048, 16): 30.0}

TABLES = (
    table("table:hidden-vs-dct", "Properties of the DCT, wavelets and FINOLA."),
    table("table:appendix:mf-enc-achs", "Architecture of the Mobile-Former encoders."),
    table("table:appendix:upsampler-achs", "Architecture of the upsampling decoder."),
    table("table:appendix:FINOLA", "Settings of reconstruction training."),
    table("table:comp-arch-conv-ae", "Architecture of the Conv-AE."),
    table(
        "table:comp-diffusion",
        "FINOLA reconstructs better than the first stage of generative models at a similar number of latents, except "
        "at the largest one.",
        needs="ImageNet-1K",
        page="compare.md",
        quoted=numbers(
            "method latents shape psnr",
            ("DALL-E", None, "32x32x-", 22.8),
            ("VQGAN", 65536, "16x16x256", 19.9),
            ("Stable Diffusion", 4096, "16x16x16", 24.1),
            ("Stable Diffusion", 12288, "64x64x3", 27.5),
            ("Stable Diffusion", 32768, "128x128x2", 30.9),
        ),
        commands=compared(),
    ),
    table(
        "table:ablation",
        "PSNR increases with the number of channels.",
        claim(
            "channels",
            "PSNR increases with the number of channels C of a single path.",
            increasing("256", "512", "1024", "3072"),
            also=("fig:appendix:recon-num-channels", "fig:recon-mc"),
        ),
        name="channels",
        part="a",
        rows={
            str(channels): Row(f"C = {channels}", f"mf-w2880/{channels}x1@16", psnr)
            for channels, psnr in {
                **{4096: 25.9, 3072: 25.8, 2048: 25.1, 1024: 23.7},
                **{512: 22.2, 256: 20.8, 128: 19.4, 64: 18.2},
            }.items()
        },
    ),
    table(
        "table:ablation",
        "PSNR increases with the size of the encoder.",
        claim(
            "encoders",
            "PSNR increases with the size of the encoder.",
            increasing("mf-w720", "mf-w1440", "mf-w2880"),
            also=("fig:appendix:recon-enc",),
        ),
        name="encoders",
        part="b",
        rows={
            f"mf-w{width}": Row(f"Mobile-Former W{width}", f"mf-w{width}/3072x1@16", psnr, {"encoder_m": size})
            for width, psnr, size in ((5760, 26.1, 67.6), (4320, 26.0, 43.5), (1440, 25.1, 12.0), (720, 24.4, 5.0))
        }
        | {"mf-w2880": Same("channels/3072", "Mobile-Former W2880", {"encoder_m": 25.0})},
    ),
    table(
        "table:special-case-all",
        "Complex speeds are better than real ones, these better than all-one speeds, and these better than repetition.",
        claim(
            "speeds",
            "Complex speeds are better than real ones, and real ones are better than all-one speeds.",
            increasing("unit", "real", "complex"),
            also=("fig:recon-special",),
        ),
        claim(
            "all-one",
            "All-one speeds are better than repetition, both with position embedding and the same number of latents.",
            increasing("repetition-pos", "unit"),
            also=("fig:recon-special",),
        ),
        name="speeds",
        rows={
            "complex": Same("grid/1024x4", "complex speeds"),
            "real": Row("real speeds", "mf-w2880/1024x4@64+real", 25.1),
            "unit": Row("all speeds one, with position embedding", "mf-w2880/1024x4@64+unit", 23.9),
            "repetition-pos": Row("repetition with position embedding", "mf-w2880/4096x1@64+repeat+pos", 21.6),
        },
    ),
    table(
        "table:mixture-hidden-waves",
        "Scattered start positions are better than a common one.",
        claim(
            "starts",
            "Scattered starts are better than a common start at the centre.",
            *(increasing(f"1024x{paths}-center", f"1024x{paths}-scatter") for paths in (4, 8)),
        ),
        name="starts",
        rows={
            f"{c}x{m}-scatter": Row(f"C = {c}, M = {m}, scattered starts", f"mf-w2880/{c}x{m}@64+scatter", psnr)
            for (c, m), psnr in SCATTERED.items()
        }
        | {
            f"{c}x{m}-center": Same(f"grid/{c}x{m}", f"C = {c}, M = {m}, all starts at the center")
            for c, m in SCATTERED
        },
    ),
)

"""Writes docs/compare.md and its plots from results/compare-*.json, no figure typed: python docs/compare.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from finola.compare.report import NAMES, by_latents, by_rate
from finola.plotting.rate_distortion import draw

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
HEAD = """# Compared: every baseline of the paper, and the ones it left out

Written by `python docs/compare.py` from `results/compare-*.json`, which `finola compare` wrote. PSNR, SSIM and MS-SSIM
are means over photos of the figure of each photo; times are means per photo of one process on one thread, with as many
processes as cores beside each other. **Quoted** figures are the paper's, on ImageNet-1K val at 256×256; nothing quoted
was measured here. A file "of at most X bits per pixel" has the best quality that fits, searched for photo by photo,
and its encoding time is the search's, without the files that the curve had written before; where none fits it is the
smallest file, so that WebP may exceed the rate.

The DCT, DWT and DTCWT keep what the paper's tables keep. The paper does not name its wavelet: its counts ask for six
taps, and ours are Daubechies' (db3). The KLT is fitted to the train split of photos256, 4,866 photos: on whole photos
it is starved of data, on 64×64 tiles it is the strongest linear code. `waves/…` models are wave starts, not
trained; `tile64`, `tile64-512` and `photo256` are the models in the package.
"""


def page(results: dict[str, dict[str, Any]]) -> str:
    """The whole page, from what the comparisons found."""
    took = json.loads((RESULTS / "time-compare.json").read_text())
    parts = [
        HEAD,
        f"{took['rows']:,} rows of classical baselines on photos256 took {took['wall_seconds'] / 60:.1f} minutes.\n",
    ]
    for name, result in results.items():
        parts.append(f"\n## {result['data']}, {result['images']} photos\n\n    {result['command']}\n")
        parts.append(f"![PSNR over bits and over latents](images/compare-{name}.png)\n")
        parts.append(latents_table(result))
        parts += [rate_table(rate, methods) for rate, methods in by_rate(result["methods"]).items()]
        parts.append(delta_table(result))
        parts += [f"Left out: {sentence}.\n" for sentence in result["left_out"]]
    parts.append(quoted_tables(next(iter(results.values()))["quoted"]))
    parts.append(
        "\n## Seen\n\nCrops of scikit-image's photos at 0.2 bits per pixel:\n\n"
        "![original, JPEG, JPEG 2000, WebP, AVIF](images/compare-sheet.png)\n"
    )
    return "\n".join(parts)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    return "\n".join(lines) + "\n"


def figures(method: dict[str, Any]) -> list[str]:
    shown = [f"{method['psnr']:.2f}"]
    shown += ["" if method[key] is None else f"{method[key]:.3f}" for key in ("ssim", "ms_ssim")]
    return shown + [f"{1e3 * method[key]:.0f}" for key in ("encode_seconds", "decode_seconds")]


FIGURES = ["PSNR", "SSIM", "MS-SSIM", "encode, ms", "decode, ms"]


def latents_table(result: dict[str, Any]) -> str:
    rows = [
        [m["label"], f"{m['latents']:.0f}", *figures(m), f"{m['quoted_psnr']:.1f}" if "quoted_psnr" in m else ""]
        for m in by_latents(result["methods"])
    ]
    return "### By latents\n\n" + table(["method", "latents per photo", *FIGURES, "quoted PSNR"], rows)


def rate_table(rate: str, methods: list[dict[str, Any]]) -> str:
    rows = [[m["label"], f"{m['bpp']:.3f}", *figures(m)] for m in methods]
    return f"### Files of at most {rate} bits per pixel\n\n" + table(["method", "bpp", *FIGURES], rows)


def delta_table(result: dict[str, Any]) -> str:
    rows = [
        [NAMES.get(name, name), f"{delta['bd_rate_percent']:+.1f} %", f"{delta['bd_psnr_db']:+.2f}"]
        for name, delta in result["against_jpeg"].items()
        if delta["bd_rate_percent"] is not None and delta["bd_psnr_db"] is not None
    ]
    return "### Against optimised JPEG (Bjøntegaard)\n\n" + table(["", "rate", "PSNR, dB"], rows)


def quoted_tables(quoted: dict[str, Any]) -> str:
    own = [e for e in quoted["latents"] if not e.get("of_others")]
    others = [e for e in quoted["latents"] if e.get("of_others")]
    text = "\n## Quoted from the paper\n\nImageNet-1K val, 256×256. Not measured here.\n\n"
    text += table(["method", "latents", "PSNR"], [[e["method"], f"{e['latents']}", f"{e['psnr']:.1f}"] for e in own])
    text += "\nWhat the paper quotes of others' auto-encoders:\n\n"
    rows = [[e["method"], e["shape"], f"{e['latents'] or ''}", f"{e['psnr']:.1f}"] for e in others]
    text += table(["method", "shape", "latents", "PSNR"], rows)
    text += "\nIts table of bits per pixel:\n\n"
    rows = [[e["method"], e["data"], f"{e['bpp']:.2f}", f"{e['psnr']:.1f}"] for e in quoted["bits"]]
    return text + table(["method", "data", "bpp", "PSNR"], rows)


def load() -> dict[str, dict[str, Any]]:
    found = sorted(RESULTS.glob("compare-*.json"))
    return {path.stem.removeprefix("compare-"): json.loads(path.read_text()) for path in found}


if __name__ == "__main__":
    results = load()
    for name, result in results.items():
        draw(result, HERE / "images" / f"compare-{name}.png")
    (HERE / "compare.md").write_text(page(results))
    print("docs/compare.md")

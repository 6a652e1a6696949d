"""Aggregation of measurements: means per method, tables, rate–distortion curves, and results quoted from the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from finola.compare.bjontegaard import MIN_RATIO, bd_psnr, bd_rate, common_rates
from finola.compare.methods import is_klt, plain_codec
from finola.config import DEFAULT_CODEC, ModelConfig
from finola.paper.definitions import Row as PaperRow
from finola.paper.tables import ROWS, find_table

Row = dict[str, Any]
METRICS = ("psnr", "ssim", "ms_ssim")


def quoted() -> dict[str, list[Row]]:
    """PSNR that the paper prints by latents and by bits per pixel: its own, and what it quotes from others."""
    transforms = [*find_table("table:comp-dct").quoted, *find_table("table:comp-dwt").quoted]
    models = []
    for name, row in ROWS.items():
        if isinstance(row, PaperRow) and row.psnr and name.startswith(("conv-ae/", "grid/", "starts/")):
            config = ModelConfig.parse(row.model)
            size = f"{config.channels}x{config.paths}" + (" scattered" if config.start == "scatter" else "")
            method = {"method": "Conv-AE"} if "conv" in name else {"method": f"FINOLA, {size}", "word": row.model}
            models.append({**method, "latents": config.channels * config.paths, "psnr": row.psnr})
    models.sort(key=lambda entry: (entry["method"] != "Conv-AE", entry["latents"], entry["psnr"]))
    others = [{**entry, "of_others": True} for entry in find_table("table:comp-diffusion").quoted]
    return {"latents": [*transforms, *models, *others], "bits": list(find_table("table:comp-jpeg").quoted)}


def summarise(rows: Iterable[Row], words: Sequence[str]) -> list[Row]:
    """One entry per method: means over photos of the metrics, of bits per pixel and of seconds."""
    by_word: dict[str, list[Row]] = {word: [] for word in words}
    for row in rows:
        by_word[row["word"]].append(row)
    paper = {entry["word"]: entry["psnr"] for entry in quoted()["latents"] if "word" in entry}
    methods = []
    for word, own in by_word.items():
        if not own:
            continue
        method: Row = {"word": word, "label": label(word), "images": len(own)}
        counts = [(row["latents"], row["pixels"]) for row in own if row["latents"] is not None]
        method["latents"] = round(statistics.fmean(count for count, _ in counts), 1) if counts else None
        per_256 = statistics.fmean(count * 65536 / pixels for count, pixels in counts) if counts else None
        method["latents_per_256"] = None if per_256 is None else round(per_256, 1)
        rates = [row["bits"] / row["pixels"] for row in own if row["bits"] is not None]
        method["bpp"] = round(statistics.fmean(rates), 4) if rates else None
        for metric in METRICS:
            values = [row[metric] for row in own if row[metric] is not None]
            method[metric] = round(statistics.fmean(values), 4) if values else None
        for stage in ("encode_seconds", "decode_seconds"):
            method[stage] = round(statistics.fmean(row[stage] for row in own), 5)
        if word in paper:
            method["quoted_psnr"] = paper[word]
        methods.append(method)
    return methods


NAMES = {"jpeg": "JPEG, optimised", "jpeg-progressive": "JPEG, progressive", "jpeg2000": "JPEG 2000", "webp": "WebP"}
NAMES |= {"finola": f"finola ({DEFAULT_CODEC})"}
NAMES |= {
    "avif": "AVIF, speed 6",
    "avif-speed2": "AVIF, speed 2",
    "jxl": "JPEG XL",
    "dct": "DCT, first",
    "dwt": "DWT,",
    "dtcwt": "DTCWT,",
}
BANDS = {"ll": "scale 3 LL", "scale3": "scale 3", "scale2": "scale 2", "all": "all"}


def label(word: str) -> str:
    """Display name of a method.

    >>> label("dtcwt:ll"), label("jpeg@0.2"), label("klt64:256")
    ('DTCWT, scale 3 LL', 'JPEG, optimised', 'KLT 64x64, 256')
    """
    method, _, setting = word.partition(":")
    if method == "finola-paper":
        return f"finola ({plain_codec(word)}), bits per latent: 4"
    if is_klt(word):
        side = method[3:]
        return f"KLT {side}x{side}, {setting}"
    if method.partition("@")[0] in NAMES and "@" in method:
        return NAMES[method.partition("@")[0]]
    if method in ("dct", "dwt", "dtcwt"):
        return f"{NAMES[method]} {BANDS.get(setting, setting)}"
    return f"{NAMES[method]} {setting}" if method in NAMES else word


def curve_label(result: Row, name: str) -> str:
    """Display name of a curve, with the codec that the stored rows were measured with.

    >>> curve_label({"methods": [{"word": "finola@0.2", "label": "finola (tile32)"}]}, "finola")
    'finola (tile32)'
    """
    at_rate = (row["label"] for row in result["methods"] if row["word"].startswith(f"{name}@"))
    return next(at_rate, NAMES.get(name, name))


def by_latents(methods: Sequence[Row]) -> list[Row]:
    """Methods that store a number of latents, fewest first."""
    return sorted((m for m in methods if m["latents"] is not None), key=lambda m: (m["latents"], m["psnr"]))


def by_rate(methods: Sequence[Row]) -> dict[str, list[Row]]:
    """Methods with a target rate, grouped by that rate, highest PSNR first."""
    tables: dict[str, list[Row]] = {}
    for method in methods:
        if method["bpp"] is not None and "@" in method["word"].partition(":")[0]:
            tables.setdefault(method["word"].rpartition("@")[2], []).append(method)
    return {rate: sorted(table, key=lambda m: -m["psnr"]) for rate, table in sorted(tables.items())}


def fixed_length(methods: Sequence[Row]) -> list[Row]:
    """Methods that store a fixed number of bits per latent, and the JPEG files next to them in rate, by rate."""
    plain = [m for m in methods if m["word"].startswith("finola-paper:")]
    jpeg = sorted((m for m in methods if m["word"].startswith("jpeg:")), key=lambda m: m["bpp"])
    rows = {m["word"]: m for m in plain}
    for method in plain:
        rows |= {m["word"]: m for m in [m for m in jpeg if m["bpp"] <= method["bpp"]][-1:]}
        rows |= {m["word"]: m for m in [m for m in jpeg if m["bpp"] > method["bpp"]][:1]}
    return sorted(rows.values(), key=lambda m: m["bpp"])


def curves(methods: Sequence[Row]) -> dict[str, list[list[float]]]:
    """Rate–distortion curve of every file format: (bits per pixel, PSNR) at each of its qualities.

    The fixed-length mode has no qualities, and its rows may belong to different models.
    """
    found: dict[str, list[list[float]]] = {}
    for method in methods:
        name, colon, _ = method["word"].partition(":")
        if method["bpp"] is not None and colon and "@" not in name and name != "finola-paper":
            found.setdefault(name, []).append([method["bpp"], method["psnr"]])
    rising = {name: _rising(sorted(points)) for name, points in found.items()}
    return {name: points for name, points in rising.items() if len(points) > 1}


def _rising(points: list[list[float]]) -> list[list[float]]:
    """Points of strictly increasing rate and PSNR: on tiny photos, two qualities can give the same file."""
    selected = points[:1]
    for rate, quality in points[1:]:
        if rate > selected[-1][0] and quality > selected[-1][1]:
            selected.append([rate, quality])
    return selected


def deltas(found: dict[str, list[list[float]]], reference: str = "jpeg") -> dict[str, Row]:
    """Bjøntegaard deltas of every other curve with respect to the reference, and the rates that both curves cover.

    Deltas are None if the highest common rate is less than three times the lowest.
    """
    if reference not in found:
        return {}
    base = [(rate, quality) for rate, quality in found[reference]]
    result = {}
    for name, points in found.items():
        other = [(rate, quality) for rate, quality in points]
        if name != reference:
            common = common_rates(base, other)
            comparable = common is not None and common[1] >= MIN_RATIO * common[0]
            rate, quality = (bd_rate(base, other), bd_psnr(base, other)) if comparable else (None, None)
            result[name] = {
                "rates": None if common is None else list(common),
                "bd_rate_percent": None if rate is None else round(rate, 2),
                "bd_psnr_db": None if quality is None else round(quality, 3),
            }
    return result

"""finola compare: compare models, the paper's baselines and further codecs on the same photos."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from finola.cli.inputs import (
    PHOTOS,
    add_device,
    add_limit,
    add_whole_crop,
    device_of,
    find_photos,
    positive,
    positive_number,
)
from finola.cli.loop import report_failures
from finola.cli.output import add_force, input_files, print_error, print_json, print_line, print_table, progress_bar
from finola.errors import InputError
from finola.files import cache_folder, output_paths, plot_path, write_json
from finola.locations import WRITE, user_path

HELP = "compare models with DCT, wavelets, KLT and image codecs on photos"
BUDGETS = (1024, 2048, 4096, 8192)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="+", metavar="DATA", help=PHOTOS)
    text = "of data sets: train, val, test or all (default: test, else val, else all)"
    parser.add_argument("--split", default="test", help=text)
    add_limit(parser)
    add_whole_crop(parser)
    parser.add_argument(
        "-m",
        "--model",
        "--models",
        dest="models",
        nargs="*",
        metavar="MODEL",
        help="names, folders, hub ids, vae:FOLDER (default: untrained wave models and bundled models)",
    )
    add_device(parser)
    text = "numbers per 256×256 pixels of the KLT; those of an elastic model are in its name, as in tile32@4096"
    parser.add_argument("--budget", nargs="*", type=positive, metavar="N", help=text)
    parser.add_argument(
        "--bpp", nargs="*", type=positive_number, default=[0.2], metavar="X", help="bit rates of the codec table"
    )
    parser.add_argument("--train", help="photos whose train split the KLT is fitted to (default: that of DATA, if any)")
    parser.add_argument(
        "--methods", nargs="*", metavar="WORD", help="compare only these methods, such as dct:3 jpeg:8 webp@0.2"
    )
    text = "processes for methods on the CPU (default: one per core)"
    parser.add_argument("--workers", type=positive, metavar="N", help=text)
    parser.add_argument("--cache", help="folder for cached rows and fitted KLTs (default: the user's cache folder)")
    parser.add_argument("--plot", metavar="FILE", help="plot of rate–distortion curves to write")
    parser.add_argument("--sheet", metavar="FILE", help="image with crops at the first bit rate of --bpp to write")
    parser.add_argument("-o", "--out", metavar="FILE", help="JSON file to write")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    import shlex
    import sys
    import time

    if args.plot:
        plot_path(args.plot)
    if args.sheet and Path(args.sheet).suffix.lower() not in WRITE:
        raise InputError(f"Cannot write --sheet {args.sheet}: the name must end with one of {', '.join(WRITE)}.")
    inputs = input_files(data=[*args.data, *([args.train] if args.train else [])], models=args.models or [])
    output_paths(filter(None, (args.out, args.plot, args.sheet)), inputs, args.force)

    from finola.compare.klt_cache import fit
    from finola.compare.methods import build_method, files_at, is_klt
    from finola.compare.runner import Photos
    from finola.compare.runner import run as measure

    photos = Photos(tuple(find_photos(args.data, args.limit, args.split)), args.crop)
    device = device_of(args)
    cache = user_path(args.cache) if args.cache else cache_folder("compare")
    cache.mkdir(parents=True, exist_ok=True)
    words, left_out = choose(args)
    if not words:
        raise InputError("There are no methods to compare. Name some with --methods, or omit it for all of them.")
    train, failures = args.train or args.data[0], list[str]()
    fitted = fit(train, [word for word in words if is_klt(word)], cache, args.crop, failures.append)
    for word in words:
        build_method(word, fitted, device)  # raise for invalid methods before the long computation
    start = time.perf_counter()
    with progress_bar("comparing") as report:
        found = measure(photos, words, fitted, cache, args.workers, device, report, partial(print_error, args.verb))
    unreadable = list(found.left_out.values())
    if not found.rows:
        raise InputError(f"No photo of {' '.join(args.data)} can be compared: {unreadable[0]}")
    result = gather(found.rows, words, args) | {"unreadable": unreadable, "device": device.type}
    result["seconds"] = round(time.perf_counter() - start, 1)  # cached rows take no time
    result["command"] = f"finola {shlex.join(sys.argv[1:])}"
    result["left_out"] = left_out
    if args.out:
        write_json(user_path(args.out), result)
    if args.plot:
        from finola.plotting.rate_distortion import plot_rate_distortion

        plot_rate_distortion(result, args.plot)
    if args.sheet:
        from finola.plotting.sheets import save_comparison_sheet

        shown = [word for rate in args.bpp[:1] for word in files_at(rate)] if args.methods is None else args.methods
        compared = [photo for index, photo in enumerate(photos.photos) if index not in found.left_out]
        methods = {word: build_method(word, fitted, device) for word in shown}
        save_comparison_sheet(Photos(tuple(compared), args.crop), methods, args.sheet)
    if args.json:
        print_json(result)
    else:
        _show(result)
    return report_failures(args.verb, [*failures, *unreadable])


def choose(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the methods to compare, and a message for each excluded kind."""
    from finola.baselines.image_codecs import FORMATS
    from finola.compare.klt_cache import WHOLE, klt_words
    from finola.compare.methods import MODELS, TRANSFORMS, file_ladder, files_at
    from finola.data import open_data
    from finola.hub import bundled_models

    if args.methods is not None:
        return list(dict.fromkeys(args.methods)), []
    words = [*TRANSFORMS, *file_ladder(), *(word for rate in args.bpp for word in files_at(rate))]
    words += [*MODELS, *bundled_models("autoencoder")] if args.models is None else args.models
    left_out = [
        f"{name}: not supported by the installed Pillow" for name, known in FORMATS.items() if not known.available()
    ]
    if args.budget is not None and not args.budget:
        return words, left_out
    if args.train or _has_train(args.data):
        train = open_data(args.train or args.data[0], "train")
        fitting, too_many = klt_words(args.budget or BUDGETS, len(train), args.crop or WHOLE)
        words += fitting
        left_out += [f"{word}: the train split has too few photos to fit it" for word in too_many]
    else:
        left_out.append("KLT: no train split to fit it to; give one with --train")
    return list(dict.fromkeys(words)), left_out


def _has_train(data: Sequence[str]) -> bool:
    """Whether the data has a separate train split. Fitting the KLT to the test photos would not be a fair baseline."""
    from finola.data import open_data

    if len(data) > 1:
        return False
    try:
        train, test = open_data(data[0], "train"), open_data(data[0], "test")
    except ValueError:
        return False
    names = {train.name(index) for index in range(len(train))}
    return not any(test.name(index) in names for index in range(len(test)))


def gather(rows: list[dict[str, Any]], words: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Summarise a comparison as a JSON-serialisable dictionary."""
    import PIL
    import torch

    from finola.compare.report import curves, deltas, quoted, summarise
    from finola.data import available_cores

    methods = summarise(rows, words)
    found = curves(methods)
    return {
        "data": " ".join(Path(word).name if "/" in word else word for word in args.data),
        "split": args.split,
        **({"crop": args.crop} if args.crop else {}),
        "images": max(method["images"] for method in methods),
        "processes": args.workers or available_cores(),
        "threads_per_process": 1,
        "versions": {"Pillow": PIL.__version__, "torch": torch.__version__},
        "methods": methods,
        "curves": found,
        "against_jpeg": deltas(found),
        "quoted": quoted(),
    }


def _show(result: dict[str, Any]) -> None:
    from finola.compare.bjontegaard import MIN_RATIO
    from finola.compare.report import NAMES, by_latents, by_rate, fixed_length

    where = f"{result['images']} photos of {result['data']}"
    if "crop" in result:
        where += f", short side resized to {result['crop']} pixels and centre cropped"
    columns = ["PSNR", "SSIM", "MS-SSIM", "encode*", "decode*"]
    latents = [
        (m["label"], f"{m['latents']:.0f}", *_metrics(m), _optional(m.get("quoted_psnr"), ".1f"))
        for m in by_latents(result["methods"])
    ]
    if latents:
        print_table(f"by latents: {where}", ["", "latents", *columns, "quoted"], latents)
        others = [e for e in result["quoted"]["latents"] if "word" not in e or e["word"].startswith("mf-")]
        rows = [(e["method"], e["latents"] or e.get("shape", "-"), f"{e['psnr']:.1f}") for e in others]
        print_table("quoted from the paper, not measured here", ["ImageNet-1K val", "latents", "PSNR"], rows)
    for rate, table in by_rate(result["methods"]).items():
        body = [(m["label"], f"{m['bpp']:.3f}", *_metrics(m)) for m in table]
        print_table(f"files of at most {rate} bits per pixel: {where}", ["", "bpp", *columns], body)
    if plain := fixed_length(result["methods"]):
        body = [(m["label"], f"{m['bpp']:.3f}", *_metrics(m)) for m in plain]
        print_table(f"four bits per latent without entropy coding: {where}", ["", "bpp", *columns], body)
    if result["against_jpeg"]:
        body = [
            (
                NAMES.get(name, name),
                "–".join(f"{rate:.2f}" for rate in d["rates"] or ()),
                _optional(d["bd_rate_percent"], "+.1f", " %"),
                _optional(d["bd_psnr_db"], "+.2f"),
            )
            for name, d in result["against_jpeg"].items()
        ]
        print_table("against optimised JPEG (Bjøntegaard)", ["", "common bpp", "rate", "PSNR, dB"], body)
        print(f"Deltas are omitted where the highest common rate is less than {MIN_RATIO:g} times the lowest.")
    if any(m["bpp"] is not None for m in result["methods"]):
        bits = [(e["method"], e["data"], f"{e['bpp']:.2f}", f"{e['psnr']:.1f}") for e in result["quoted"]["bits"]]
        print_table("quoted from the paper, not measured here", ["", "data", "bpp", "PSNR"], bits)
    place = "" if result["device"] == "cpu" else f", of models on {result['device']}"
    print(f"* milliseconds per photo on one thread{place}; for a given bit rate, including the search for the quality.")
    for message in result["left_out"]:
        print_line(f"excluded: {message}.")


def _metrics(method: dict[str, Any]) -> tuple[str, ...]:
    metrics = (_optional(method["psnr"], ".2f"), _optional(method["ssim"], ".3f"), _optional(method["ms_ssim"], ".3f"))
    return *metrics, f"{1e3 * method['encode_seconds']:.0f}", f"{1e3 * method['decode_seconds']:.0f}"


def _optional(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"

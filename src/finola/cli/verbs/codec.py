"""finola compress, decompress and calibrate: photos to `.finola` files and back, and the codec of a model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import (
    Photo,
    add_data,
    add_device,
    add_effort,
    add_leading_model,
    add_limit,
    add_photos,
    device_of,
    find_files,
    find_photos,
    integer,
    load_model,
    open_dataset,
    positive,
    positive_number,
    take_leading_model,
)
from finola.cli.loop import Loop, report_unreadable
from finola.cli.output import (
    add_force,
    input_files,
    print_error,
    print_json,
    print_line,
    print_table,
    progress,
    progress_bar,
)
from finola.cli.verbs import Verb
from finola.cli.verbs.embed import add_engine, run_batch
from finola.config import DEFAULT_CODEC, PLAIN_CODEC, show_size
from finola.errors import InputError, require
from finola.files import output_path, output_paths
from finola.hub import bundled_models, local_folder
from finola.locations import SKIMAGE, WRITE, user_path

if TYPE_CHECKING:
    import torch

    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset

TILES, PHOTOS = 9600, 400  # samples for calibration
STRIP_PIXELS = 2**22  # size of the strips for computing PSNR, which limits memory


def _add_compress(parser: argparse.ArgumentParser) -> None:
    add_photos(parser)
    parser.add_argument("-o", "--out", help="output file for one photo, else a folder (default: next to each photo)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--quality", type=integer(1, 100), metavar="1-100", help="quality (default: 50)")
    rate.add_argument("--bpp", type=positive_number, metavar="X", help="maximum bits per pixel")
    parser.add_argument("--per-tile", type=positive, metavar="K", help="maximum number of coefficients per tile")
    text = f"bundled codec, or folder of a calibrated model (default: {DEFAULT_CODEC}; in mode paper: {PLAIN_CODEC})"
    parser.add_argument("-m", "--model", help=text)
    add_device(parser)
    parser.add_argument(
        "--mode", choices=["coded", "paper"], default="coded", help="paper: four bits per latent without entropy coding"
    )
    add_effort(parser, "rate-distortion optimisation with the decoder (default: 0, off)")
    parser.add_argument("--exif", action="store_true", help="keep the EXIF metadata")
    text = "compress one data set to WebDataset shards in the folder of -o, resuming a run that is there"
    parser.add_argument("--shards", action="store_true", help=text)
    parser.add_argument("--split", help="--shards: train, val, test or all (default: all)")
    add_engine(parser)
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def compress(args: argparse.Namespace) -> int:
    """Compress photos to `.finola` files and print size and PSNR, or a data set to shards."""
    if args.shards:
        return _compress_shards(args)
    for name in ("engine", "shard_size", "split"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} applies to data sets: add --shards, and a folder with -o.")
    pairs = targets(find_photos(args.photos, args.limit), args.out, ".finola", (".finola",))
    options = {key: getattr(args, key) for key in ("quality", "bpp", "per_tile", "mode", "effort")}
    if args.mode == "paper":
        from finola.codec.codec import check_options

        check_options(**options)
    inputs = input_files([photo.name for photo, _ in pairs])
    written = output_paths([target for _, target in pairs], inputs, args.force, create=True)

    from finola.codec.calibration import codec_on
    from finola.codec.codec import default_codec

    model = args.model or default_codec(args.mode)
    device = device_of(args)
    codec_on(model, device)  # raise for an unknown model before any photo is read
    options |= {"model": model, "keep_exif": args.exif, "device": device}
    loop = Loop(args, "compressing")
    tasks = [(photo, str(target), options) for (photo, _), target in zip(pairs, written, strict=True)]
    rows = list(loop.each(compress_one, tasks, args.workers or 1))
    for row in rows:
        if not row.get("bpp_reached", True):
            text = f"{row['file']} has {row['bpp']:.4g} bits per pixel, the minimum of this model"
            print_error(args.verb, f"{text}; --bpp {args.bpp:g} cannot be reached.")
    if args.json:
        print_json({"model": model, "photos": rows, "unreadable": loop.unreadable})
    elif rows:
        body = [(Path(row["file"]).name, *_cells(row)) for row in rows]
        if len(rows) > 1:
            keys = ("bytes", "bpp", "psnr", "seconds")
            body.append(("mean", *_cells({key: sum(row[key] for row in rows) / len(rows) for key in keys})))
        print_table(f"compressed with {model}", ["file", "bytes", "bpp", "PSNR, dB", "seconds"], body)
    return loop.code


def _compress_shards(args: argparse.Namespace) -> int:
    if len(args.photos) != 1 or args.out is None:
        raise InputError(f"--shards takes one data set and a folder with -o, not {len(args.photos)} inputs.")
    if args.engine == "ray":
        require("ray")
    from finola.batch import compress_dataset

    args.data = args.photos[0]
    names = ("model", "limit", "quality", "bpp", "per_tile", "mode", "effort", "device")
    options = {name: getattr(args, name) for name in names}
    return run_batch(
        args, compress_dataset, options | {"keep_exif": args.exif, "split": args.split or "all"}, "compressing"
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return f"{row['bytes']:,.0f}", f"{row['bpp']:.3f}", f"{row['psnr']:.2f}", f"{row['seconds']:.2f}"


def targets(
    photos: Sequence[Photo], out: str | None, suffix: str, suffixes: Collection[str]
) -> list[tuple[Photo, Path]]:
    """Return pairs of a source and its output file.

    `out` is a file for a single source, with one of `suffixes`, or else a folder, in which names end with `suffix`.
    It is treated as a folder if it is one, ends with a slash or has no suffix.
    """
    if out is None:
        return [(photo, _default_target(photo, suffix)) for photo in photos]
    place = user_path(out)
    if not (place.is_dir() or out.endswith(("/", os.sep)) or place.suffix == ""):
        if len(photos) > 1:
            raise InputError(f"-o {out} is one file, but there are {len(photos)} inputs. Give a folder.")
        if place.suffix.lower() not in suffixes:
            raise InputError(f"-o {out} must end with {' or '.join(suffixes)}, or be a folder.")
        return [(photos[0], place)]
    return [(photo, place / f"{photo.stem}{suffix}") for photo in photos]


def _default_target(photo: Photo, suffix: str) -> Path:
    """Path next to a file, or in the working directory for photos of scikit-image and of data sets.

    If photo.png exists, photo.finola is decompressed to photo.finola.png, since photo.png may be the original.
    """
    if photo.data is not None or photo.name.startswith(SKIMAGE):
        return Path(photo.stem + suffix)
    path = user_path(photo.name)
    target = path.with_suffix(suffix)
    alternative = path.with_name(path.name + suffix)
    return alternative if suffix != ".finola" and os.path.lexists(target) else target


def compress_one(photo: Photo, target: str, options: dict[str, Any]) -> dict[str, Any]:
    """Compress one photo to a file and return its size, PSNR and compression time."""
    import time

    from finola.codec.codec import compress, decompress
    from finola.files import write_bytes
    from finola.image_io import Regions
    from finola.metrics import psnr_by_strips

    start = time.perf_counter()
    made = compress(photo.name if photo.data is None else photo.open(), **options)
    seconds = time.perf_counter() - start
    write_bytes(Path(target), made.data)
    rebuilt = decompress(made.data, model=options["model"], device=options.get("device", "cpu"))
    original = Regions(photo.open(), photo.name, srgb=True)
    height, width = original.size
    rows = max(1, STRIP_PIXELS // width)
    strips = ((top, min(height, top + rows)) for top in range(0, height, rows))
    quality = psnr_by_strips((rebuilt[:, top:end], original.read(top, end, 0, width)) for top, end in strips)
    row = {"photo": photo.name, "file": target, "bytes": len(made.data), "bpp": round(made.bits_per_pixel, 5)}
    if options.get("bpp") is not None:
        row["bpp_reached"] = 8 * len(made.data) <= options["bpp"] * width * height
    return row | {"psnr": round(min(quality, 100.0), 4), "seconds": round(seconds, 4)}


def _add_decompress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help=".finola files, folders of them, or patterns")
    add_limit(parser)
    text = "file for one input, else a folder (default: PNG next to each, photo.finola.png if photo.png exists)"
    parser.add_argument("-o", "--out", help=text)
    parser.add_argument("-m", "--model", help="folder of the model used for compression, if it is not bundled")
    add_device(parser)
    parser.add_argument("--workers", type=positive, default=1, help="number of processes (default: %(default)s)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def decompress(args: argparse.Namespace) -> int:
    """Decode `.finola` files to photos."""
    pairs = targets(find_files(args.files, ".finola", args.limit), args.out, ".png", tuple(WRITE))
    written = output_paths([target for _, target in pairs], [file.name for file, _ in pairs], args.force, create=True)

    loop = Loop(args, "decompressing")
    device = device_of(args)
    tasks = [(file, str(target), args.model, device) for (file, _), target in zip(pairs, written, strict=True)]
    rows = list(loop.each(decompress_one, tasks, args.workers))
    if args.json:
        print_json({"photos": rows, "unreadable": loop.unreadable})
    elif rows:
        body = [(row["photo"], show_size((row["height"], row["width"])), f"{row['seconds']:.2f}") for row in rows]
        print_table("decompressed", ["photo", "size", "seconds"], body)
    return loop.code


def decompress_one(source: Photo, target: str, model: str | None, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Decode one file, write the photo, and return its size and the decoding time."""
    import time

    from finola.codec.codec import decode, write_photo
    from finola.codec.container import read_container

    start = time.perf_counter()
    container = read_container(source.name)
    image = decode(container, model, device=device)
    seconds = time.perf_counter() - start
    write_photo(image, container, Path(target))
    row = {"file": source.name, "photo": target, "width": container.width, "height": container.height}
    return row | {"seconds": round(seconds, 4)}


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    add_leading_model(parser, "model folder, or the name of an untrained wave model")
    add_data(parser, "train")
    number = parser.add_mutually_exclusive_group()
    text = f"models with q of a fixed length: number of random tiles (default: {TILES})"
    number.add_argument("--tiles", type=positive, metavar="N", help=text)
    text = f"elastic models: number of whole photos, evenly spread over the data (default: {PHOTOS})"
    number.add_argument("--photos", type=positive, metavar="N", help=text)
    text = "only the range of each latent, for compress --mode paper: fast for many latents, without entropy model"
    parser.add_argument("--plain", action="store_true", help=text)
    parser.add_argument("-o", "--out", help="file to write (default: codec.safetensors in the model folder)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def calibrate(args: argparse.Namespace) -> int:
    """Fit the quantiser and the entropy model of a codec to photos."""
    take_leading_model(args)
    folder = None if args.model in bundled_models() else local_folder(args.model)
    place = args.out or (folder and folder / "codec.safetensors")
    if place is None:
        raise InputError(f"{args.model} is not a folder, so the output file is unknown. Give it with -o FILE.")
    target = output_path(place, input_files(data=[args.data], models=[args.model]), args.force)

    model = load_model(args)
    if model.config.elastic and args.tiles:
        raise InputError(f"{args.model} is elastic and is calibrated on whole photos; use --photos instead of --tiles.")
    if model.config.elastic and args.plain:
        raise InputError(f"{args.model} is elastic and has no fixed-length mode; remove --plain.")
    if not model.config.elastic and args.photos:
        raise InputError(f"{args.model} has q of a fixed length and is calibrated on tiles; use --tiles.")
    latents, data = (_calibrate_elastic if model.config.elastic else _calibrate_fixed)(args, model, target)
    facts = {"model": args.model, "written": str(target), "latents": latents, "bytes": target.stat().st_size}
    if args.json:
        print_json(facts)
    else:
        print_line(f"{target}: calibration of {facts['latents']} latents, {facts['bytes']:,} bytes")
    return report_unreadable(args.verb, data)


def _calibrate_fixed(args: argparse.Namespace, model: Autoencoder, target: Path) -> tuple[int, PhotoDataset]:
    """Calibrate a model with q of a fixed length, and return the number of its latents and the data."""
    from finola.codec.calibration import calibrate
    from finola.codec.samples import BATCH, random_tiles
    from finola.data import RandomCrop

    data = open_dataset(args, RandomCrop(model.config.image_size), crops_per_image=2)
    count = args.tiles or TILES
    tiles = progress(random_tiles(data, count), -(-count // (2 * BATCH)), "reading tiles")
    calibration = calibrate(model, tiles, plain=args.plain)
    calibration.save(target)
    return len(calibration.mean), data


def _calibrate_elastic(args: argparse.Namespace, model: Autoencoder, target: Path) -> tuple[int, PhotoDataset]:
    """Calibrate an elastic model, and return the maximum number of latents of a tile and the data."""
    from finola.codec.elastic_calibration import calibrate_elastic
    from finola.codec.samples import photo_coordinates
    from finola.data import Whole
    from finola.data.sources import evenly

    data = open_dataset(args, Whole())
    data.source = evenly(data.source, args.photos or PHOTOS)
    photos = list(progress(photo_coordinates(model, data), len(data), "reading photos"))
    with progress_bar("calibrating") as report:
        coder = calibrate_elastic(model, photos, report)
    coder.save(target)
    return coder.contexts.sizes[-1], data


VERBS = {
    "compress": Verb("compress photos to .finola files", _add_compress, compress),
    "decompress": Verb("decompress .finola files to photos", _add_decompress, decompress),
    "calibrate": Verb("fit the quantiser and the entropy model of a codec", _add_calibrate, calibrate),
}

"""finola reconstruct and finola classify: encode photos, and decode them or predict their classes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import (
    Photo,
    add_batch,
    add_budget,
    add_effort,
    add_model,
    add_photos,
    budget_options,
    device_of,
    find_photos,
    load_model,
    positive,
)
from finola.cli.output import add_force, input_files, output_folder, print_json, print_line, print_table
from finola.cli.verbs import Verb
from finola.config import DEFAULT_MODEL, show_size
from finola.files import output_paths

if TYPE_CHECKING:
    from torch import Tensor


def _add_reconstruct(parser: argparse.ArgumentParser) -> None:
    add_photos(parser)
    parser.add_argument("-o", "--out", default="reconstructed", help="folder to write to (default: %(default)s)")
    add_model(parser, DEFAULT_MODEL)
    add_budget(parser)
    add_effort(parser)
    add_batch(parser)
    parser.add_argument(
        "--side-by-side", action="store_true", help="also save original and reconstruction in one image"
    )
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def reconstruct(args: argparse.Namespace) -> int:
    """Reconstruct photos of any size, write them as PNG, and print PSNR and SSIM."""
    photos = list(dict.fromkeys(find_photos(args.photos, args.limit)))
    out = output_folder(args.out)
    kinds = ("", "-beside-original") if args.side_by_side else ("",)
    files = {photo: [out / f"{name}{kind}.png" for kind in kinds] for photo, name in unique_names(photos).items()}
    inputs = input_files([photo.name for photo in photos], models=[args.model])
    output_paths([path for paths in files.values() for path in paths], inputs, args.force, create=True)
    model = load_model(args)

    from finola.cli.loop import Loop
    from finola.evaluation.reconstruction import Reconstruction, allocation, reconstruct
    from finola.image_io import save_photo, side_by_side

    options, device = budget_options(args), device_of(args)
    model.space.check(args.budget, args.per_tile)

    def run(images: Tensor) -> list[Reconstruction]:
        return reconstruct(model, images.to(device), **options)

    rows: list[dict[str, Any]] = []
    loop = Loop(args, "reconstructing")
    for photo, original, found in loop.batches(photos, Photo.read, run, args.batch):
        written, rebuilt = files[photo], found.best.clamp(0, 1).cpu()
        images = [rebuilt, side_by_side([original, rebuilt])] if args.side_by_side else [rebuilt]
        for path, image in zip(written, images, strict=True):
            save_photo(image, path)
        height, width = original.shape[-2:]
        row = {"photo": photo.name, "written": str(written[0]), "width": width, "height": height}
        row |= {"latents": found.used.total, "side": found.used.side} | found.per_256()
        row |= _metrics(found.amortised, original)
        if found.refined is not None:
            row["refined"] = _metrics(found.refined, original)
        rows.append(row)
    kind, description = allocation(model, args.budget, args.per_tile)
    if args.json:
        facts = {"model": args.model, "config": str(model.config), "allocation": kind, **options}
        print_json(facts | {"photos": rows, "unreadable": loop.unreadable})
    elif rows:
        columns = ["photo", "size", "latents", "per 256²", "PSNR, dB", "SSIM"]
        if args.effort:
            columns[4:] = ["amortised PSNR, dB", "SSIM", "refined PSNR, dB", "SSIM"]
        print_table(f"reconstructed with {args.model} ({description})", columns, map(_cells, rows))
        print_line(f"written to {out}")
    return loop.code


def _metrics(image: Tensor, original: Tensor) -> dict[str, float | None]:
    """PSNR and SSIM, which is None if a side is shorter than its window."""
    from finola.metrics import SSIM_SIDE, psnr, ssim

    image, original = image.clamp(0, 1).to(original)[None], original[None]
    found = round(float(ssim(image, original)), 4) if min(original.shape[-2:]) >= SSIM_SIDE else None
    return {"psnr": round(float(psnr(image, original)), 3), "ssim": found}


def _cells(row: dict[str, Any]) -> list[object]:
    size, latents = show_size((row["height"], row["width"])), f"{row['latents']:,}"
    cells = [row["photo"], size, latents, f"{row['latents_per_256']:,.0f}"]
    for metrics in (row, row["refined"]) if "refined" in row else (row,):
        cells += [f"{metrics['psnr']:.2f}", metrics["ssim"]]
    return cells


def unique_names(photos: Sequence[Photo]) -> dict[Photo, str]:
    """Names of photos without suffix, numbered if several are equal.

    Names are compared case-insensitively, as on some file systems.

    >>> list(unique_names([Photo("a/photo.png"), Photo("b/Photo.jpg"), Photo("skimage:cat")]).values())
    ['photo', 'Photo-2', 'cat']
    """
    names: dict[Photo, str] = {}
    taken: set[str] = set()
    for photo in photos:
        name, number = photo.stem, 2
        while name.casefold() in taken:
            name, number = f"{photo.stem}-{number}", number + 1
        taken.add(name.casefold())
        names[photo] = name
    return names


def _add_classify(parser: argparse.ArgumentParser) -> None:
    add_photos(parser)
    add_model(parser, None, "a classifier's folder, name or hub id")
    add_batch(parser, 32)
    parser.add_argument("--top", type=positive, default=5, help="number of classes to print (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def classify(args: argparse.Namespace) -> int:
    """Print the most probable classes of photos."""
    from finola.model_zoo import load_classifier

    photos = find_photos(args.photos, args.limit)
    model = load_classifier(args.model)
    device = device_of(args)
    model.to(device)

    import torch

    from finola.cli.loop import Loop

    @torch.inference_mode()
    def run(images: Tensor) -> list[Tensor]:
        return list(model(images.to(device)).softmax(1).cpu())

    loop = Loop(args, "classifying")
    size, crop_pct = model.image_size, model.crop_pct
    found = []
    for photo, _, probabilities in loop.batches(photos, lambda p: p.read_cropped(size, crop_pct), run, args.batch):
        best = probabilities.topk(min(args.top, len(model.classes)))
        classes = [model.classes[index] for index in best.indices.tolist()]
        found.append((photo.name, list(zip(classes, best.values.tolist(), strict=True))))
    if args.json:
        rows = [
            {"photo": name, "classes": [{"class": word, "probability": p} for word, p in classes]}
            for name, classes in found
        ]
        print_json({"model": args.model, "photos": rows, "unreadable": loop.unreadable})
    else:
        for name, classes in found:
            print_table(name, ["class", "probability"], [(word, f"{100 * p:.1f} %") for word, p in classes])
    return loop.code


VERBS = {
    "reconstruct": Verb("reconstruct photos of any size from their latent vectors", _add_reconstruct, reconstruct),
    "classify": Verb("predict the classes of photos with a trained classifier", _add_classify, classify),
}

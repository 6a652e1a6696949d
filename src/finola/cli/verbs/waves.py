"""finola waves and finola spectrum: wave speeds and residuals of a model; the plane waves that photos consist of."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import (
    MODEL,
    PHOTOS,
    Photo,
    add_data,
    add_leading_model,
    add_limit,
    add_whole_crop,
    find_photos,
    load_model,
    open_dataset,
    positive,
    take_leading_model,
)
from finola.cli.loop import Loop, report_unreadable
from finola.cli.output import add_force, input_files, print_json, print_line, print_table, progress
from finola.cli.verbs import Verb
from finola.errors import InputError
from finola.files import output_path, output_paths, plot_path, write_json
from finola.model_zoo import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from finola.data import PhotoDataset
    from finola.wave.analysis import Quadrant, Waves
    from finola.wave.residuals import Measurement

NAMES = ("right-down", "left-down", "right-up", "left-up")
BATCH = 50  # photos of `spectrum` in memory


def _add_waves(parser: argparse.ArgumentParser) -> None:
    add_leading_model(parser, f"{MODEL}, or a waves… name")
    text = f"{PHOTOS} (default: %(default)s)"
    parser.add_argument("--images", default="skimage:astronaut", metavar="PHOTOS", help=text)
    parser.add_argument("--split", help="train, val or test, of data with splits (default: every photo)")
    add_limit(parser, default=16)
    add_whole_crop(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="plot of speeds, waves and residuals to write (.png, .pdf, .svg or .jpg)"
    )
    parser.add_argument("--random", action="store_true", help="measure random A, B, A₋ and B₋ in the model, too")
    parser.add_argument(
        "--printed", action="store_true", help="the C speeds of AB⁻¹ as printed in Eq. 2, which are not unique"
    )
    parser.add_argument("--quadrant", choices=NAMES, help="quadrant whose speeds are listed and plotted")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def waves(args: argparse.Namespace) -> int:
    """Print the wave speeds of a model, and the residuals of its wave equations on photos."""
    take_leading_model(args)
    every = find_photos([args.images], split=args.split)
    photos = find_photos([args.images], args.limit, args.split)
    if args.plot:
        plot_path(args.plot)
        output_path(args.plot, input_files([photo.name for photo in every], models=[args.model]), args.force)

    check_name(args.model)
    import torch

    from finola.plotting.waves import plot_waves
    from finola.wave.analysis import waves

    found = waves(load_model(args), printed=args.printed)
    loop = Loop(args, "measuring")
    read: list[tuple[Photo, int | None]] = []
    shapes: list[torch.Size] = []

    def images() -> Iterator[Tensor]:
        for photo, image in loop.each(_read, [(photo, args.crop) for photo in photos]):
            read.append((photo, args.crop))
            shapes.append(image.shape)
            yield image

    measured = {"photos": found.residual(images())}
    generator = torch.Generator().manual_seed(0)
    noise = (torch.rand(shape, generator=generator) for shape in shapes)
    measured["white noise"] = found.residual(progress(noise, len(shapes), "white noise"))
    quadrants = {name: found[name] for name in NAMES}
    if args.random:
        control = found.random()
        again = (_read(*task)[1] for task in read)
        measured["random A, B"] = control.residual(progress(again, len(read), "random A, B"))
        quadrants["random A, B"] = control["right-down"]
    names = [photo.name for photo, _ in read]
    shown = found[args.quadrant or "right-down"]
    if args.plot:
        plot_waves(found, measured["photos"], _read(*read[0])[1][None], args.plot, shown.name)
    if args.json:
        result = {
            "model": args.model,
            "photos": [{"photo": name} for name in names],
            "of": len(every),
            "split": args.split,
            "printed": args.printed,
        }
        result |= measured["photos"].to_dict()
        result["controls"] = {name: one.to_dict() for name, one in measured.items() if name != "photos"}
        result["quadrants"] = {name: _plain(one) for name, one in quadrants.items()}
        if args.quadrant:
            result["quadrant"] = shown.name
            result["speeds"] = [_speed(one) for one in shown.speeds.tolist()]
            result["kinds"] = shown.kinds
        print_json(result)
        return loop.code
    _print_quadrants(args.model, quadrants)
    _print_measured(measured, f"{len(names)} of {len(every)} photos" if len(every) > 1 else names[0])
    if found.basis is not None:
        print(
            "  The waves are fixed by construction: their equations hold for every q up to rounding errors of float32,"
        )
        print("  for that of white noise as for that of a photo, so the residual says nothing about photos.")
    if args.quadrant:
        _print_speeds(found, shown)
    if args.plot:
        print_line(f"written to {args.plot}")
    return loop.code


def _read(photo: Photo, crop: int | None) -> tuple[Photo, Tensor]:
    return photo, photo.read_cropped((crop, crop)) if crop else photo.read()


def _plain(quadrant: Quadrant) -> dict[str, Any]:
    conditions = {"cond_B": _finite(quadrant.cond_B), "cond_V": _finite(quadrant.cond_V)}
    values = {"commutator": quadrant.commutator, "identity": quadrant.identity}
    sizes = {"sizes": [_finite(size) for size in quadrant.sizes()], "shares": quadrant.shares()}
    return {"description": quadrant.description, "has_Q": quadrant.Q is not None, **conditions, **values, **sizes}


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite" if math.isinf(value) else "none"


def _speed(value: complex) -> list[float] | str:
    """Convert a speed to [real, imaginary], or to a string for infinity and NaN, which JSON does not have.

    >>> _speed(1 + 2j), _speed(complex(math.inf, 0)), _speed(complex(math.nan, 0))
    ([1.0, 2.0], 'infinite', 'none')
    """
    if math.isfinite(value.real):
        return [value.real, value.imag]
    return "infinite" if math.isinf(value.real) else "none"


def _print_quadrants(model: str, quadrants: dict[str, Quadrant]) -> None:
    kinds = [kind for kind in quadrants["right-down"].shares() if any(kind in one.kinds for one in quadrants.values())]
    rows = [
        [name, *(one.kinds.count(kind) for kind in kinds), f"{one.cond_B:.3g}", f"{one.cond_V:.3g}"]
        for name, one in quadrants.items()
    ]
    print_table(f"{model}: speeds by kind", ["quadrant", *kinds, "cond(B)", "cond(V)"], rows)
    described = {name: one.description for name, one in quadrants.items()}
    for description in dict.fromkeys(described.values()):
        names = [name for name, one in described.items() if one == description]
        print(f"  {', '.join(names) if len(names) < len(quadrants) else 'all'}: {description}")
    print()
    rows = [
        [
            name,
            *(f"{value:.3g}" for value in (*one.sizes(), one.commutator)),
            *(f"{round(mu, 2) + 0.0:.2f}·I, {share:.0%}" for mu, share in one.identity),
        ]
        for name, one in quadrants.items()
    ]
    columns = ["quadrant", "|λ|: 10 %", "50 %", "90 %", "commutator", "I in A", "I in B"]
    print_table(
        "sizes of speeds, commutator of A and B, multiple of I in each and its share of the norm", columns, rows
    )
    print()


def _print_measured(measured: dict[str, Measurement], photos: str) -> None:
    every = list(measured.values())
    rows = {
        f"residual of β Δxζ = α Δyζ, {words}": [one.residual[order] for one in every]
        for order, words in (
            ("horizontal", "horizontal first"),
            ("vertical", "vertical first"),
            ("mean", "mean of both"),
        )
    }
    rows["variance of Δx z explained by Δy z, best Q"] = [one.explained.fitted for one in every]
    rows["the same, Δy z of other photos"] = [one.explained.shuffled for one in every]
    rows["the same, Q of the model"] = [one.explained.model_Q for one in every]
    rows["path inconsistency ‖z_h − z_v‖/‖z‖"] = [one.path_inconsistency for one in every]
    body = [
        [words, *("too few photos" if math.isnan(value) else f"{value:.3g}" for value in values)]
        for words, values in rows.items()
    ]
    print_table(f"measured on {photos}", ["", *measured], body)
    print("  residual: 0 where the equation holds exactly, 0.71 for unrelated differences of equal size")
    first = measured["photos"]
    spread = f"varying by {first.sigma_spread:.3g} within a map"
    print(f"  σ from {first.sigma_min:.6g} to {first.sigma_max:.6g}, {spread}")


def _print_speeds(found: Waves, quadrant: Quadrant) -> None:
    rows = []
    for channel, (speed, kind) in enumerate(zip(quadrant.speeds.tolist(), quadrant.kinds, strict=True)):
        value = f"{speed.real:.5g}{speed.imag:+.5g}i" if kind == "complex" else f"{speed.real:.5g}"
        size = f"{abs(speed):.5g}" if math.isfinite(speed.real) else ""
        rows.append([channel, value if size else "", size, kind, found.describe(channel)])
    columns = ["channel", "λ", "|λ|", "kind", "wave"]
    if found.basis is None:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(f"speeds of {quadrant.name}", columns, rows)


def _add_spectrum(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "train")
    text = "image sides in pixels (default: 32 64 128 256)"
    parser.add_argument("--sides", type=positive, nargs="+", default=[32, 64, 128, 256], help=text)
    parser.add_argument("--waves", type=positive, default=2048, help="number of waves per side (default: %(default)s)")
    parser.add_argument("-o", "--out", required=True, help="file to write")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def spectrum(args: argparse.Namespace) -> int:
    """Rank plane waves by their energy on photos, for the initialisation of wave models."""
    [out] = output_paths([args.out], input_files(data=[args.data]), args.force, create=True)
    if min(args.sides) < 2:
        raise InputError(f"--sides contains {min(args.sides)}, but sides must be at least 2 pixels.")

    from finola.wave.initialisation import measure_radius
    from finola.wave.spectrum import measure_spectrum

    spectra = []
    for side in args.sides:
        dataset = _at_256(args, side)
        count = len(dataset)
        batches = progress(_batches(dataset, side, count), -(-count // BATCH), f"side {side}: ranking")
        found = measure_spectrum(batches, side, keep=args.waves)
        few = min(count, 1000)
        batches = progress(_batches(dataset, side, few), -(-few // BATCH), f"side {side}: amplitudes")
        spectra.append(measure_radius(found, batches).to_json())
    count -= len(dataset.unreadable)
    write_json(out, {"photos": count, "spectra": spectra})
    if args.json:
        print_json({"written": str(out), "sides": args.sides, "images": count})
    else:
        print_line(f"{out}: {', '.join(str(side) for side in args.sides)} px from {count} photos")
    return report_unreadable(args.verb, dataset)


def _at_256(args: argparse.Namespace, side: int) -> PhotoDataset:
    """Photos at 256 pixels, since models are applied to crops, not to thumbnails."""
    from finola.data import CentreCrop

    return open_dataset(args, CentreCrop(256 if 256 % side == 0 else side))


def _batches(dataset: PhotoDataset, side: int, count: int) -> Iterator[Tensor]:
    """Yield all tiles of `side` pixels of the readable ones of the first `count` photos."""
    import torch

    from finola.tiling import cut

    for first in range(0, count, BATCH):
        items = [dataset[0, index] for index in range(first, min(first + BATCH, count))]
        images = [item.images[0] for item in items if not item.replaced]
        if images:
            yield cut(torch.stack(images).float() / 255, (side, side))[0]


VERBS = {
    "waves": Verb("print the wave speeds of a model, and measure its wave equations on photos", _add_waves, waves),
    "spectrum": Verb("rank plane waves by their energy on photos, to initialise wave models", _add_spectrum, spectrum),
}

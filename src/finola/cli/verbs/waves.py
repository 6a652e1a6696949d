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
    add_limit(parser, default=16)
    add_whole_crop(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="plot of speeds, waves and residuals to write (.png, .pdf, .svg or .jpg)"
    )
    parser.add_argument("--quadrant", choices=NAMES, help="quadrant whose speeds are listed and plotted")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def waves(args: argparse.Namespace) -> int:
    """Print the wave speeds of a model, and the residuals of its wave equations on photos."""
    take_leading_model(args)
    every = find_photos([args.images])
    photos = find_photos([args.images], args.limit)
    if args.plot:
        plot_path(args.plot)
        output_path(args.plot, input_files([photo.name for photo in every], models=[args.model]), args.force)

    check_name(args.model)
    from finola.plotting.waves import plot_waves
    from finola.wave.analysis import waves

    found = waves(load_model(args))
    loop = Loop(args, "measuring")
    first: list[Tensor] = []
    names: list[str] = []

    def read() -> Iterator[Tensor]:
        for photo, image in loop.each(_read, [(photo, args.crop) for photo in photos]):
            if not first:
                first.append(image)
            names.append(photo.name)
            yield image

    measurement = found.residual(read())
    quadrants = [found[name] for name in NAMES]
    shown = found[args.quadrant or "right-down"]
    if args.plot:
        plot_waves(found, measurement, first[0][None], args.plot, shown.name)
    if args.json:
        result = {"model": args.model, "photos": [{"photo": name} for name in names], "of": len(every)}
        result |= measurement.to_dict() | {"quadrants": {one.name: _plain(one) for one in quadrants}}
        if args.quadrant:
            result["quadrant"] = shown.name
            result["speeds"] = [_speed(one) for one in shown.speeds.tolist()]
            result["kinds"] = shown.kinds
        print_json(result)
        return loop.code
    _print(args, measurement, quadrants, f"{len(names)} of {len(every)} photos" if len(every) > 1 else names[0])
    if args.quadrant:
        _print_speeds(found, shown)
    if args.plot:
        print_line(f"written to {args.plot}")
    return loop.code


def _read(photo: Photo, crop: int | None) -> tuple[Photo, Tensor]:
    return photo, photo.read_cropped((crop, crop)) if crop else photo.read()


def _plain(quadrant: Quadrant) -> dict[str, Any]:
    shares = quadrant.shares()
    conditions = {"cond_B": _finite(quadrant.cond_B), "cond_V": _finite(quadrant.cond_V)}
    return {"description": quadrant.description, "has_Q": quadrant.Q is not None, **conditions, "shares": shares}


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"


def _speed(value: complex) -> list[float] | str:
    """Convert a speed to [real, imaginary], or to a string for infinity and NaN, which JSON does not have.

    >>> _speed(1 + 2j), _speed(complex(math.inf, 0)), _speed(complex(math.nan, 0))
    ([1.0, 2.0], 'infinite', 'none')
    """
    if math.isfinite(value.real):
        return [value.real, value.imag]
    return "infinite" if math.isinf(value.real) else "none"


def _print(args: argparse.Namespace, measurement: Measurement, quadrants: list[Quadrant], photos: str) -> None:
    kinds = [kind for kind in quadrants[0].shares() if any(kind in one.kinds for one in quadrants)]
    rows = [
        [one.name, *(one.kinds.count(kind) for kind in kinds), f"{one.cond_B:.3g}", f"{one.cond_V:.3g}"]
        for one in quadrants
    ]
    print_table(f"{args.model}: speeds by kind", ["quadrant", *kinds, "cond(B)", "cond(V)"], rows)
    for description in dict.fromkeys(one.description for one in quadrants):
        names = [one.name for one in quadrants if one.description == description]
        print(f"  {', '.join(names) if len(names) < len(quadrants) else 'all'}: {description}")
    print()
    residual_Q = measurement.residual_Q
    orders = ("horizontal", "vertical", "mean")
    body = [["residual of β Δxζ = α Δyζ", *(f"{measurement.residual[order]:.3g}" for order in orders)]]
    body.append(
        ["residual of Δx z = Q Δy z", *(f"{residual_Q[order]:.3g}" if residual_Q else "no Q" for order in orders)]
    )
    print_table(f"measured on {photos} (0: the equation holds exactly)", ["", *orders], body)
    print(f"  path inconsistency ‖z_h − z_v‖/‖z‖: {measurement.path_inconsistency:.3g}")
    spread = f"varying by {measurement.sigma_spread:.3g} within a map"
    print(f"  σ from {measurement.sigma_min:.6g} to {measurement.sigma_max:.6g}, {spread}")


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

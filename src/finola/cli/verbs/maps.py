"""finola curvature and finola grow: the feature maps of a photo, as curved surfaces and as an animation."""

from __future__ import annotations

import argparse
from typing import Literal

from finola.cli.inputs import PHOTO, add_model, device_of, find_photos, integer, load_model, positive_number
from finola.cli.output import add_force, input_files, print_json, print_line, print_table
from finola.cli.verbs import Verb
from finola.config import DEFAULT_WHOLE, show_size
from finola.errors import InputError
from finola.files import animation_path, output_path, plot_path

ENCODER_SIZE = (256, 256)  # of the photo, for encoders without a recurrence


def _add_curvature(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photo", help=PHOTO)
    add_model(parser, help="model of any task or encoder: folder, name or hub id")
    parser.add_argument("--beside", metavar="MODEL", help="second model for comparison, such as a masked one")
    parser.add_argument(
        "--map",
        choices=("z", "encoder"),
        help="z: the propagated map; encoder: the encoder's feature map (default: z if the models have one)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="plot to write (.png, .jpg, .pdf or .svg)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def curvature(args: argparse.Namespace) -> None:
    """Measure and plot the Gaussian curvature of the feature maps of one or two models."""
    [photo] = find_photos([args.photo], limit=1)
    plot_path(args.out)
    output_path(args.out, input_files([photo.name], models=[args.model, args.beside]), args.force)

    from finola.evaluation.curvature import CurvatureMap, feature_map, has_recurrence
    from finola.model_zoo import load_model as load_any
    from finola.plotting.curvature import plot_curvature
    from finola.plotting.style import save_figure

    names = [args.model, args.beside] if args.beside else [args.model]
    models = [load_any(name, untrained=True).to(device_of(args)) for name in names]
    which: Literal["z", "encoder"] = args.map or ("z" if all(map(has_recurrence, models)) else "encoder")
    maps, images = [], []
    for name, model in zip(names, models, strict=True):
        size = model.config.image_size if has_recurrence(model) else ENCODER_SIZE  # type: ignore[union-attr]
        images.append(photo.read_cropped(size))  # type: ignore[arg-type]
        maps.append(CurvatureMap.of(name, feature_map(model, images[-1], which)))
    what = "the propagated map z" if which == "z" else "the encoder's feature map"
    save_figure(plot_curvature(maps, images[0], f"Gaussian curvature of {what}, {photo.name}"), args.out)
    summaries = [one.summary() for one in maps]
    if args.json:
        print_json({"photo": photo.name, "map": which, "written": args.out, "models": summaries})
        return
    rows = [
        (one["model"], one["channels"], *(f"{one['rms_of_peaks'][word]:.3g}" for word in ("median", "mean", "max")))
        for one in summaries
    ]
    print_table("RMS of peak curvatures over channels", ["model", "channels", "median", "mean", "max"], rows)
    print_line(f"written to {args.out}")


def _add_grow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photo", help=PHOTO)
    add_model(parser, DEFAULT_WHOLE)
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="animation to write (.gif, .webp or .mp4)")
    parser.add_argument("--seconds", type=positive_number, default=3.0, help="duration (default: %(default)s)")
    parser.add_argument("--frames", type=integer(2), help="maximum number of frames (default: one per step)")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="keep the photo's size and process it in tiles (default: crop to the model's size)",
    )
    parser.add_argument("--wave", type=int, metavar="K", help="animate channel K of ζ, which moves at its wave speed")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def grow(args: argparse.Namespace) -> None:
    """Animate the propagation of a photo from q, or of a single wave."""
    [photo] = find_photos([args.photo], limit=1)
    animation_path(args.out)
    output_path(args.out, input_files([photo.name], models=[args.model]), args.force)
    if args.wave is not None and args.frames is not None:
        raise InputError(
            f"--frames {args.frames} cannot be combined with --wave {args.wave}, which has one frame per column. "
            "Remove one of them."
        )

    from finola.plotting.animation import propagation_frames, save_animation

    model = load_model(args)
    images = (photo.read() if args.whole else photo.read_cropped(model.config.image_size))[None]
    if args.wave is None:
        animation = propagation_frames(model, images, args.frames)
    else:
        from finola.plotting.wave_animation import wave_frames

        animation = wave_frames(model, images, args.wave)
    path = save_animation(animation, args.out, args.seconds)
    width, height = animation[0].size
    if args.json:
        about = {"model": args.model, "config": str(model.config), "photo": photo.name, "wave": args.wave}
        about |= {"written": str(path), "frames": len(animation), "width": width, "height": height}
        print_json(about | {"bytes": path.stat().st_size})
        return
    size = show_size((height, width))
    print_line(f"{len(animation)} frames of {size} pixels, {path.stat().st_size / 1024:.0f} KB, in {path}")


VERBS = {
    "curvature": Verb(
        "plot the channels of a feature map with the largest curvature, optionally for two models",
        _add_curvature,
        curvature,
    ),
    "grow": Verb("animate the step-by-step propagation of a photo, or of one of its waves", _add_grow, grow),
}

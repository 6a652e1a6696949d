"""finola grow: animate the propagation of a photo from q, or of a single wave."""

from __future__ import annotations

import argparse

from finola.cli.output import add_force
from finola.config import DEFAULT_WHOLE
from finola.errors import InputError

HELP = "animate the step-by-step propagation of a photo, or of one of its waves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photo", help="a file, or skimage:NAME")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_WHOLE, help="model folder, name or hub id (default: %(default)s)"
    )
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="animation to write (.gif, .webp or .mp4)")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration (default: %(default)s)")
    parser.add_argument("--frames", type=int, help="maximum number of frames (default: one per step)")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="keep the photo's size and process it in tiles (default: crop to the model's size)",
    )
    parser.add_argument("--wave", type=int, metavar="K", help="animate channel K of ζ, which moves at its wave speed")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.inputs import read_cropped
    from finola.cli.output import input_files, print_json
    from finola.files import output_path
    from finola.image_io import read_photo
    from finola.model_zoo import load
    from finola.plotting.animation import check_path, propagation_frames, save_animation

    check_path(args.out)
    output_path(args.out, input_files([args.photo], models=[args.model]), args.force)
    if args.wave is not None and args.frames is not None:
        raise InputError(
            f"--frames {args.frames} cannot be combined with --wave {args.wave}, which has one frame per column. "
            "Remove one of them."
        )
    model = load(args.model)
    photo = read_photo(args.photo)[None] if args.whole else read_cropped([args.photo], model.config.image_size)
    if args.wave is None:
        animation = propagation_frames(model, photo, args.frames)
    else:
        from finola.plotting.wave_animation import wave_frames

        animation = wave_frames(model, photo, args.wave)
    path = save_animation(animation, args.out, args.seconds)
    width, height = animation[0].size
    if args.json:
        about = {"model": str(model.config), "photo": args.photo, "wave": args.wave, "written": str(path)}
        print_json(about | {"frames": len(animation), "size": [height, width], "bytes": path.stat().st_size})
        return
    print(f"{len(animation)} frames of {width}x{height} pixels, {path.stat().st_size / 1024:.0f} KB, in {path}")

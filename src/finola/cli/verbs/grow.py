"""finola grow: a film of the picture growing from its vector, or of one wave travelling."""

from __future__ import annotations

import argparse

from finola.cli.output import add_force
from finola.config import DEFAULT_WHOLE

HELP = "film a photo growing from its start, step by step, or one of its waves travelling"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photo", help="a file, or skimage:NAME")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_WHOLE, help="a folder, a name, or a hub id (default: %(default)s)"
    )
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="film to write (.gif, .webp or .mp4)")
    parser.add_argument("--seconds", type=float, default=3.0, help="its length (default: %(default)s)")
    parser.add_argument("--frames", type=int, help="at most this many (default: one per step)")
    parser.add_argument(
        "--whole", action="store_true", help="keep the photo's size, tile by tile (default: cut to the model's own)"
    )
    parser.add_argument("--wave", type=int, metavar="K", help="film channel K of ζ instead, travelling at its speed")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.inputs import read_cropped
    from finola.cli.output import input_files, print_json
    from finola.files import output_path
    from finola.image_io import read_photo
    from finola.plotting.animation import check_path, frames, save
    from finola.zoo import load

    check_path(args.out)
    output_path(args.out, input_files([args.photo], models=[args.model]), args.force)
    if args.wave is not None and args.frames is not None:
        raise ValueError(
            "--frames thins out a growing picture; a wave has one frame per column, so leave one of them out."
        )
    model = load(args.model)
    photo = read_photo(args.photo)[None] if args.whole else read_cropped([args.photo], model.config.image_size)
    if args.wave is None:
        film = frames(model, photo, args.frames)
    else:
        from finola.plotting.wave_animation import wave_frames

        film = wave_frames(model, photo, args.wave)
    path = save(film, args.out, args.seconds)
    width, height = film[0].size
    if args.json:
        about = {"model": str(model.config), "photo": args.photo, "wave": args.wave, "written": str(path)}
        print_json(about | {"frames": len(film), "size": [height, width], "bytes": path.stat().st_size})
        return
    print(f"{len(film)} frames of {width}x{height} pixels, {path.stat().st_size / 1024:.0f} KB, in {path}")

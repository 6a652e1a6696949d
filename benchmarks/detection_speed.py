"""How long a detector takes for one 640-pixel photo, and the memory it needs at most.

    python benchmarks/detection_speed.py --out results/detection-speed.json

Weights are random: they do not change the work. Reading, resizing, finding and scaling back are all counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from finola.evaluation.detection import detect
from finola.files import write_text
from finola.heads.detector import Detector
from finola.image_io import open_photo, to_rgb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="mf-w720")
    parser.add_argument("--head", default="mf-dec-211")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    photo = to_rgb(open_photo("skimage:coffee")).resize((640, 427), Image.Resampling.BICUBIC)
    classes = [str(number) for number in range(80)]
    rows = []
    for size in ((640, 640), (800, 1333)):
        model = Detector(args.encoder, args.head, classes, size=size).eval()
        detect(model, photo)
        times = []
        for _ in range(args.repeats):
            started = time.perf_counter()
            detect(model, photo)
            times.append(time.perf_counter() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        height, width = (int(side) for side in np.array(model_size(size, photo.size)))
        rows.append({"resized_to": [height, width], "seconds": statistics.median(times), "peak_megabytes": round(peak)})
        print(json.dumps(rows[-1]), flush=True)
    result = {"benchmark": "detection_speed", "encoder": args.encoder, "head": args.head, "photo": [427, 640]}
    result |= {"threads": torch.get_num_threads(), "rows": rows}
    if args.out:
        write_text(Path(args.out), json.dumps(result, indent=1) + "\n")


def model_size(size: tuple[int, int], photo: tuple[int, int]) -> tuple[int, int]:
    from finola.data.detection import fitted

    return fitted((photo[1], photo[0]), *size)


if __name__ == "__main__":
    main()

"""Peak memory of compressing and decompressing photos, each in a process of its own; prints JSON.

Photos of 3 to 50 megapixels are generated, smooth colours with noise; a fit of peak over pixels tells whether memory
grows linearly. Extreme shapes follow: a row of tiles of any length, and a one-bit PNG of 169 megapixels in 21 kB.
`idle_bytes` is the peak of a process that has only loaded the codec.
`python benchmarks/codec_memory.py [--shapes-only] [MEGAPIXELS ...]`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# VmHWM and not ru_maxrss, which a process inherits from the one that started it.
WORK = """
import json, re, sys, time
from finola.cli.inputs import Photo
from finola.cli.verbs.codec import compress_one, decompress_one
what, source, target = sys.argv[1:]
begin = time.perf_counter()
from finola.codec.calibration import load_codec
load_codec("waves512")
idle = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
if what == "encode":
    from finola.codec.codec import compress
    row = {"bytes": len(compress(source, quality=30).data)}
elif what == "compress":
    row = compress_one(Photo(source), target, {"quality": 30, "model": "waves512"})
else:
    row = decompress_one(Photo(source), target, None)
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps({"peak_bytes": peak, "idle_bytes": idle, "seconds": time.perf_counter() - begin, **row}))
"""


SHAPES = ((400_000, 16), (4, 100_000))
ONE_BIT = 13_000  # pixels of the sides of a one-bit PNG, which is encoded only
MEGAPIXELS = (3.0, 12.0, 24.0, 50.0)


def make_photo(megapixels: float, path: Path) -> None:
    import numpy as np
    from PIL import Image

    height = round((megapixels * 1e6 / 1.5) ** 0.5)
    width = round(1.5 * height)
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (max(2, height // 60), max(2, width // 60), 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(image + rng.integers(-12, 13, image.shape, dtype=np.int16), 0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(path, quality=90)


def measure(what: str, source: Path, target: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", WORK, what, str(source), str(target)], stdout=subprocess.PIPE, text=True, check=True
    )
    row = json.loads(done.stdout)
    return {key: row[key] for key in ("peak_bytes", "idle_bytes", "seconds")}


def make_shape(width: int, height: int, path: Path) -> None:
    """A one-bit PNG of stripes: few bytes for any number of pixels."""
    from PIL import Image

    stripes = Image.new("1", (min(width, 64), height))
    stripes.paste(1, (0, 0, 20, height))
    photo = Image.new("1", (width, height))
    for left in range(0, width, 64):
        photo.paste(stripes, (left, 0))
    photo.save(path)


def main() -> None:
    from speed.machine import fit_line

    words = [word for word in sys.argv[1:] if word != "--shapes-only"]
    rows: list[dict[str, object]] = []
    shapes: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for width, height in SHAPES:
            photo, file, back = (Path(folder) / f"shape{suffix}" for suffix in (".png", ".finola", "-back.png"))
            make_shape(width, height, photo)
            shape: dict[str, object] = {"width": width, "height": height, "png_bytes": photo.stat().st_size}
            shape["compress"] = measure("compress", photo, file)
            shape["file_bytes"] = file.stat().st_size
            shape["decompress"] = measure("decompress", file, back)
            shapes.append(shape)
        photo = Path(folder) / "one-bit.png"
        make_shape(ONE_BIT, ONE_BIT, photo)
        one_bit: dict[str, object] = {"width": ONE_BIT, "height": ONE_BIT, "png_bytes": photo.stat().st_size}
        shapes.append(one_bit | {"encode": measure("encode", photo, photo)})
        for megapixels in () if "--shapes-only" in sys.argv else [float(word) for word in words] or MEGAPIXELS:
            photo, file, back = (Path(folder) / f"photo{suffix}" for suffix in (".jpg", ".finola", ".png"))
            make_photo(megapixels, photo)
            row: dict[str, object] = {"megapixels": megapixels}
            row["compress"], row["decompress"] = measure("compress", photo, file), measure("decompress", file, back)
            row["bits_per_pixel"] = 8 * file.stat().st_size / (megapixels * 1e6)
            rows.append(row)
    result: dict[str, object] = {"shapes": shapes, "rows": rows}
    for what in ("compress", "decompress") if rows else ():
        peaks = [row[what]["peak_bytes"] for row in rows]  # type: ignore[index]
        slope, constant, r_squared = fit_line([1e6 * row["megapixels"] for row in rows], peaks)  # type: ignore[operator]
        result[what] = {"bytes_per_pixel": slope, "constant_bytes": constant, "r_squared": r_squared}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""Peak memory of compressing and decompressing photos of 3 to 50 megapixels, each in a process of its own; prints JSON.

The photo is made, not loaded: smooth colours with noise. A fit of peak over pixels tells whether it grows linearly.
`python benchmarks/codec_memory.py [MEGAPIXELS ...]`.
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
from finola.cli.verbs.compress import compress_one
from finola.cli.verbs.decompress import decompress_one
what, source, target = sys.argv[1:]
begin = time.perf_counter()
if what == "compress":
    row = compress_one(source, target, {"quality": 30, "model": "tile64-512"})
else:
    row = decompress_one(source, target, None)
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps({"peak_bytes": peak, "seconds": time.perf_counter() - begin, **row}))
"""


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
    return {key: row[key] for key in ("peak_bytes", "seconds")}


def main() -> None:
    from finola.bench.machine import fit_line

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for megapixels in [float(word) for word in sys.argv[1:]] or [3.0, 12.0, 24.0, 50.0]:
            photo, file, back = (Path(folder) / f"photo{suffix}" for suffix in (".jpg", ".finola", ".png"))
            make_photo(megapixels, photo)
            row: dict[str, object] = {"megapixels": megapixels}
            row["compress"], row["decompress"] = measure("compress", photo, file), measure("decompress", file, back)
            row["bits_per_pixel"] = 8 * file.stat().st_size / (megapixels * 1e6)
            rows.append(row)
    result: dict[str, object] = {"rows": rows}
    for what in ("compress", "decompress"):
        peaks = [row[what]["peak_bytes"] for row in rows]  # type: ignore[index]
        slope, constant, r_squared = fit_line([1e6 * row["megapixels"] for row in rows], peaks)  # type: ignore[operator]
        result[what] = {"bytes_per_pixel": slope, "constant_bytes": constant, "r_squared": r_squared}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""Size of the files of a photo that contains nothing: what the headers of each format weigh at 256×256 pixels.

python benchmarks/headers.py > results/headers.json
"""

from __future__ import annotations

import json

import torch

from finola.compare.methods import build_method

QUALITIES = {"jpeg": (5, 30, 75), "jpeg2000": (10, 80), "webp": (1, 5, 40), "avif": (10, 60), "finola": (10, 70)}


def main() -> None:
    grey = torch.full((3, 256, 256), 128 / 255)
    sizes = {
        name: int(min(build_method(f"{name}:{quality}").encode(grey).bits for quality in qualities)) // 8
        for name, qualities in QUALITIES.items()
    }
    print(json.dumps({"command": "python benchmarks/headers.py", "side": 256, "bytes": sizes}, indent=1))


if __name__ == "__main__":
    main()

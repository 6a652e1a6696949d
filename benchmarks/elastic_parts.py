"""What the PSNR of an elastic model consists of: linear codes of the same tiles, lengths by need, codebook, networks.

    FINOLA_DATA=folder/with/photos256 python benchmarks/elastic_parts.py

The linear codes are fitted on the train split and judged on val, as the model is. With lengths by need, what the
lengths cost is part of the budget, as in the model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from scipy.fft import idctn
from torch import Tensor

import finola
from finola.data import CentreCrop, open_data
from finola.files import write_text
from finola.metrics import psnr
from finola.tiling import cut, join
from finola.wave.codebook import LENGTHS, REFERENCE_PIXELS, share_out
from finola.wave.spectrum import OPPONENT

TILE = (32, 32)
COMPONENTS = 768
LENGTHS_OF_LINEAR = torch.tensor([*LENGTHS, 512, COMPONENTS])


def photos(split: str, limit: int | None) -> Tensor:
    """Photos of a split as bytes (N, 3, 256, 256), evenly spread."""
    data = open_data("photos256", split, transform=CentreCrop(256))
    chosen = torch.linspace(0, len(data) - 1, min(len(data), limit or len(data))).round().long().tolist()
    return torch.stack([data.sample(index)[0] for index in chosen])


def dct() -> Tensor:
    """Orthonormal DCT of a tile in opponent colours: (3072, 3072), basis images in columns."""
    count = TILE[0] * TILE[1]
    cosines = torch.from_numpy(idctn(torch.eye(count).reshape(count, *TILE).numpy(), axes=(1, 2), norm="ortho"))
    return torch.einsum("kc,nyx->cyxkn", OPPONENT.float(), cosines.float()).reshape(3 * count, 3 * count)


def moments(train: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and second central moments of the tiles of photos."""
    mean, total, count = torch.zeros(3 * TILE[0] * TILE[1]), torch.zeros(()), 0
    for photo in train.split(100):
        tiles = cut(photo / 255, TILE)[0].flatten(1)
        mean, total, count = mean + tiles.sum(0), total + tiles.T @ tiles, count + len(tiles)
    mean = mean / count
    return mean, total / count - torch.outer(mean, mean)


def linear_codes(mean: Tensor, covariance: Tensor) -> dict[str, Tensor]:
    """The strongest `COMPONENTS` columns of each transform."""
    transform = dct()
    energy = ((covariance @ transform) * transform).sum(0) + ((mean - 0.5) @ transform).square()
    strongest = energy.argsort(descending=True)[:COMPONENTS]
    return {"DCT": transform[:, strongest], "KLT": torch.linalg.eigh(covariance)[1].flip(1)[:, :COMPONENTS]}


def shortened(photo: Tensor, mean: Tensor, basis: Tensor, budget: int, *, by_need: bool) -> Tensor:
    """A photo (3, H, W) from the first components of its tiles: equally many, or as many as each tile needs."""
    tiles, grid = cut(photo[None], TILE)
    p = (tiles.flatten(1) - mean) @ basis
    per_tile = torch.full((len(p),), round(budget * TILE[0] * TILE[1] / REFERENCE_PIXELS))
    if by_need:
        left = p.square().flip(1).cumsum(1).flip(1)  # squared error without the components from each one on
        errors = torch.cat([left, torch.zeros(len(p), 1)], 1)[:, None, LENGTHS_OF_LINEAR]
        per_tile = share_out(errors, LENGTHS_OF_LINEAR, budget * photo[0].numel() / REFERENCE_PIXELS)[1]
    kept = torch.where(torch.arange(COMPONENTS) < per_tile[:, None], p, 0.0)
    return join((kept @ basis.T + mean).unflatten(1, (3, *TILE)), grid)[0]


def codebook_only(model: finola.Autoencoder, photo: Tensor, budget: int) -> Tensor:
    """The model without its networks on pixels."""
    codebook = model.encoder.codebook
    tiles, grid = cut(photo[None], TILE)
    p = codebook.coordinates(tiles)
    basis, length = codebook.choose(p, budget=budget * photo[0].numel() / REFERENCE_PIXELS)
    values = codebook.encode(p, basis, length)
    return join(codebook.superpose(codebook.decode(values, basis), TILE), grid)[0]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="photos per split, to try it out")
    parser.add_argument("--budgets", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--out", default="results/elastic-parts.json")
    args = parser.parse_args()
    mean, covariance = moments(photos("train", args.limit))
    codes = linear_codes(mean, covariance)
    val, model = photos("val", args.limit), finola.load("tile32")
    methods: dict[str, Callable[[Tensor, int], Tensor]] = {}
    for name, basis in codes.items():
        centre = torch.full_like(mean, 0.5) if name == "DCT" else mean
        for how, by_need in (("the same length in every tile", False), ("lengths by need", True)):
            methods[f"{name}, {how}"] = lambda photo, budget, c=centre, b=basis, n=by_need: shortened(
                photo, c, b, budget, by_need=n
            )
    methods["waves with a codebook of 16 bases, lengths by need"] = lambda photo, n: codebook_only(model, photo, n)
    methods["the same with networks on pixels: tile32"] = lambda photo, n: finola.decode(
        model, finola.encode(model, photo, budget=n)
    )
    rows = []
    for name, method in methods.items():
        row: dict[str, str | float] = {"method": name}
        for budget in args.budgets:
            values = [psnr(method(photo / 255, budget)[None], photo[None] / 255) for photo in val]
            row[str(budget)] = round(float(torch.cat(values).mean()), 2)
        rows.append(row)
        print(row)
    result = {
        "command": "python benchmarks/elastic_parts.py",
        "data": "photos256 val",
        "photos": len(val),
        "rows": rows,
    }
    write_text(Path(args.out), json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Draws the pictures of the README and the docs, from scikit-image's photos: python docs/pictures.py"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import finola
from finola.image_io import read_photo, save_photo, side_by_side
from finola.metrics import psnr

IMAGES = Path(__file__).parent / "images"


def astronaut(side: int = 256) -> Tensor:
    """(1, 3, side, side), the head and shoulders."""
    photo = read_photo("skimage:astronaut")[None, :, :384, 48:432]
    return torch.nn.functional.interpolate(photo, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)


@torch.no_grad()
def growing(name: str, steps: tuple[int, ...]) -> None:
    """One vector, and the picture as the recurrence has walked 0, 1, 2, … steps from the centre."""
    model, photo = finola.create(name).eval(), astronaut()
    z = model.propagate(model.encode(photo))
    height, width = model.config.map_size
    y, x = torch.arange(height)[:, None] - height // 2, torch.arange(width)[None, :] - width // 2
    distance = torch.maximum(y.abs(), x.abs())
    whole = model.decode(z).clamp(0, 1)
    frames = []
    for step in steps:
        reached = (distance <= step).float()[None, None]
        shown = torch.nn.functional.interpolate(reached, scale_factor=float(model.config.cell[0]))
        frames.append((whole * shown + (1 - shown) * 0.93)[0])
    save_photo(side_by_side([*frames, photo[0]], gap=6), IMAGES / "growing.jpg", quality=90)
    print(f"growing.jpg: {name}, {psnr(whole, photo).item():.2f} dB")


@torch.no_grad()
def channels(counts: tuple[int, ...]) -> None:
    """The same photo from one vector of more and more channels, with no training."""
    photo = astronaut()
    rebuilt = [finola.create(f"waves/{count}x1@16").eval()(photo).clamp(0, 1) for count in counts]
    save_photo(side_by_side([*(image[0] for image in rebuilt), photo[0]], gap=6), IMAGES / "channels.jpg", quality=90)
    print(
        "channels.jpg:",
        ", ".join(f"C = {c}: {psnr(i, photo).item():.2f} dB" for c, i in zip(counts, rebuilt, strict=True)),
    )


@torch.no_grad()
def basis(count: int = 14) -> None:
    """The strongest plane waves of a 64×64 model, each drawn by the recurrence from its own q."""
    model = finola.create("waves/256x1@16:64").eval()
    waves = model.encoder.basis
    pictures = torch.zeros(count, 1, waves.size)
    chosen = torch.cat([torch.arange(count - 4), (waves.waves[:, 2] > 0).nonzero()[:4, 0]])
    for row, index in enumerate(chosen):
        pictures[row, 0, waves.pairs[index]] = 0.45 * waves.gain
    drawn = model.decode(model.propagate(waves.complete(pictures))).clamp(0, 1)
    save_photo(side_by_side(list(drawn), gap=6), IMAGES / "basis.png")
    for row, index in enumerate(chosen):
        print(f"basis.png, {row}: {waves.describe(int(index))}")


@torch.no_grad()
def tiles() -> None:
    """A photo of any size by tiles: original and reconstruction, untrained."""
    photo = read_photo("skimage:chelsea")[None]
    rebuilt = finola.create("waves/256x1@16:64").eval()(photo).clamp(0, 1)
    save_photo(side_by_side([photo[0], rebuilt[0]], gap=6), IMAGES / "tiles.jpg", quality=90)
    print(f"tiles.jpg: {psnr(rebuilt, photo).item():.2f} dB")


def speeds() -> None:
    """The picture that `finola waves … --plot` draws."""
    from finola.cli import main

    main(["waves", "waves/256x1@16:64", "--plot", str(IMAGES / "speeds.jpg"), "--force"])


def latent(model: str = "waves/1024x1@16") -> None:
    """What `finola latent` draws, with statistics over the smoke data, and two films of `finola grow`."""
    from tempfile import TemporaryDirectory

    from finola.cli import main

    photos = ["skimage:coffee", "skimage:chelsea"]
    with TemporaryDirectory() as folder:
        statistics = f"{folder}/q.safetensors"
        main(["latent", "fit", "smoke", "-m", model, "-o", statistics])
        given = ["-m", model, "-s", statistics, "-o"]
        main(["latent", "mirror", *photos, *given, str(IMAGES / "latent-mirror.jpg"), "--force"])
        main(["latent", "pca", *photos, *given, str(IMAGES / "latent-pca.jpg"), "--force"])
        main(["latent", "sample", "--count", "5", *given, str(IMAGES / "latent-sample.jpg"), "--force"])
    main(["latent", "interpolate", *photos, "-m", model, "-o", str(IMAGES / "latent-mix.jpg"), "--force"])
    main(["grow", photos[1], "-m", "waves/1024x4@16+scatter", "-o", str(IMAGES / "growing.webp"), "--force"])
    main(["grow", photos[1], "-m", "waves/1024x1@32", "--wave", "60", "-o", str(IMAGES / "travelling.webp"), "--force"])


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    growing("waves/3072x1@16", (0, 2, 4, 6, 8))
    channels((64, 256, 1024, 3072))
    basis()
    tiles()
    speeds()
    latent()

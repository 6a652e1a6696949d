"""The picture as it grows: every position shown once the recurrence has reached it, frame by frame, as a film.

Both orders reach the position (y, x) from a start (y₀, x₀) after |y − y₀| + |x − x₀| steps, so what is there after n
steps is a diamond around every start. Paths that start elsewhere arrive at other times; z sums those that have.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from finola.autoencoder import position_embedding
from finola.files import check_folder, replacing, write_bytes
from finola.image_io import to_pillow
from finola.propagation import Position, propagate, start_positions
from finola.tiling import cut, join, pad_to_multiple
from finola.transitions import prepared

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

PAPER = 0.93  # the grey of what is not there yet
FORMATS = (".gif", ".webp", ".mp4")
STILL = 1.5  # seconds that the whole picture stays


@torch.no_grad()
def frames(model: Autoencoder, images: Tensor, count: int | None = None) -> list[Image.Image]:
    """Images (N, 3, H, W) of any size growing from their starts, side by side where N > 1; the last frame is whole.

    There is a frame per step of the recurrence, or with `count` at most so many of them, evenly apart. The tiles of a
    photo larger than the model's own size all grow at once, and each frame is decoded across their borders.

    >>> import finola
    >>> film = frames(finola.load("waves/64x1@8:32"), torch.rand(1, 3, 40, 70))
    >>> len(film), film[0].size
    (9, (70, 40))
    """
    config = model.config
    if config.transition == "conv-ae":
        raise ValueError(f"{config} has no recurrence, so nothing grows: use a model without +convae.")
    if count is not None and count < 2:
        raise ValueError(f"{count} frames are no film: use 2 or more.")
    height, width = images.shape[-2:]
    padded = pad_to_multiple(images.to(next(model.parameters())), config.image_size)
    tiles, grid = cut(padded, config.image_size)
    parts = _parts(model, model.encode(tiles))
    position = position_embedding(config.channels, config.map_size) if config.has_position else None
    film = []
    for step in _steps(max(int(distance.max()) for distance, _ in parts), count):
        reached = torch.stack([distance <= step for distance, _ in parts]).any(0)  # (h, w)
        z = sum(phi * (distance <= step).to(phi) for distance, phi in parts)
        assert isinstance(z, Tensor)
        z = z if position is None else z + position.to(z)
        drawn = model.decode(join(z, grid)).clamp(0, 1)
        shown = reached.repeat(*grid).repeat_interleave(config.cell[0], 0).repeat_interleave(config.cell[1], 1)
        whole = torch.where(shown, drawn, drawn.new_tensor(PAPER))[..., :height, :width]
        film.append(to_pillow(torch.cat(list(whole), dim=-1)))
    return film


def _parts(model: Autoencoder, q: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Per start: how many steps away every position is (h, w), and the map φ (N, C, h, w) of the paths from there."""
    config = model.config
    groups: dict[Position, list[int]] = {}
    for path, cell in enumerate(start_positions(config.start, config.map_size, config.paths)):
        groups.setdefault(cell, []).append(path)
    step = prepared(model.transition)
    return [
        (steps_from(cell, config.map_size).to(q.device), propagate(q[:, paths], step, config.map_size, cell))
        for cell, paths in groups.items()
    ]


def steps_from(start: Position, size: Position) -> Tensor:
    """How many steps of the recurrence lead from `start` to every position: (H, W).

    >>> steps_from((0, 1), (2, 3)).tolist()
    [[1, 0, 1], [2, 1, 2]]
    """
    return (torch.arange(size[0]) - start[0]).abs()[:, None] + (torch.arange(size[1]) - start[1]).abs()


def _steps(last: int, count: int | None) -> list[int]:
    every = list(range(last + 1))
    if count is None or count > last:
        return every
    return [round(number * last / (count - 1)) for number in range(count)]


def save(film: Sequence[Image.Image], path: str | Path, seconds: float = 3.0) -> Path:
    """Write frames as .gif, .webp (Pillow) or .mp4 (imageio-ffmpeg, where installed), `seconds` long.

    The last frame stays a while longer. The file is written beside its target and renamed.
    """
    path = check_path(path)
    if not film:
        raise ValueError("a film needs at least one frame, got none.")
    if not seconds > 0:
        raise ValueError(f"a film of {seconds} seconds cannot be shown: use more than 0.")
    each = max(20, round(1000 * seconds / len(film)))  # milliseconds; viewers slow down what is faster
    if path.suffix.lower() == ".mp4":
        _save_mp4(film, path, each)
        return path
    durations = [each] * (len(film) - 1) + [each + round(1000 * STILL)]
    first, *rest = film
    target = io.BytesIO()
    first.save(
        target, path.suffix[1:].upper(), save_all=True, append_images=rest, duration=durations, loop=0, quality=85
    )
    write_bytes(path, target.getvalue())
    return path


def check_path(path: str | Path) -> Path:
    """The path, if a film can be written there."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"cannot write a film as {str(path)!r}: end its name with one of {', '.join(FORMATS)}.")
    check_folder(path)
    if path.suffix.lower() == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise ValueError("an .mp4 needs imageio-ffmpeg: pip install imageio-ffmpeg, or write a .webp or a .gif.")
    return path


def _save_mp4(film: Sequence[Image.Image], path: Path, each: int) -> None:
    """H.264 wants even sides; the last row or column is repeated where one is odd."""
    import imageio_ffmpeg

    width, height = (side + side % 2 for side in film[0].size)
    with replacing(path, ".part.mp4") as beside:  # ffmpeg chooses the format by the suffix
        writer = imageio_ffmpeg.write_frames(str(beside), (width, height), fps=1000 / each, macro_block_size=1)
        writer.send(None)
        still = round(1000 * STILL / each)
        for frame in [*film, *[film[-1]] * still]:
            pixels = np.asarray(frame)
            writer.send(
                np.pad(pixels, ((0, height - frame.height), (0, width - frame.width), (0, 0)), "edge").tobytes()
            )
        writer.close()

"""Animate the propagation: each frame shows the positions that the recurrence has reached.

Both orders reach position (y, x) from a start (y₀, x₀) after |y − y₀| + |x − x₀| steps, so the region reached after n
steps is a diamond around each start. With several starts, z is the sum of the paths that have reached a position.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from finola.autoencoder import position_embedding
from finola.config import RECURRENT
from finola.errors import InputError
from finola.evaluation.latent.operations import encode
from finola.files import animation_path, replacing, write_bytes
from finola.image_io import to_pillow
from finola.propagation import Position, propagate, start_positions
from finola.tiling import join
from finola.transitions import prepared

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

BACKGROUND = 0.93  # grey of positions that are not reached yet
HOLD = 1.5  # additional seconds of the last frame


@torch.no_grad()
def propagation_frames(model: Autoencoder, images: Tensor, count: int | None = None) -> list[Image.Image]:
    """Frames of the propagation of images (N, 3, H, W) of any size, side by side; the last frame is complete.

    There is one frame per step, or at most `count` evenly spaced ones. All tiles of an image larger than the model's
    size are propagated at the same time, and each frame is decoded across their borders.

    >>> import finola
    >>> frames = propagation_frames(finola.load("waves/64x1@8:32"), torch.rand(1, 3, 40, 70))
    >>> len(frames), frames[0].size
    (9, (70, 40))
    """
    config = model.config
    if config.transition not in RECURRENT:
        raise InputError(f"{config} has no recurrence to animate. Use a model without +convae, +free or +resae.")
    if count is not None and count < 2:
        raise InputError(f"count must be at least 2 frames, got {count}.")
    q, grid, (height, width) = encode(model, images)
    parts = _parts(model, q)
    position = position_embedding(config.channels, config.map_size) if config.position else None
    frames = []
    for step in _steps(max(int(distance.max()) for distance, _ in parts), count):
        reached = torch.stack([distance <= step for distance, _ in parts]).any(0)  # (h, w)
        z = sum(phi * (distance <= step).to(phi) for distance, phi in parts)
        assert isinstance(z, Tensor)
        z = z if position is None else z + position.to(z)
        drawn = model.decode(join(z, grid)).clamp(0, 1)
        shown = reached.repeat(*grid).repeat_interleave(config.cell[0], 0).repeat_interleave(config.cell[1], 1)
        whole = torch.where(shown, drawn, drawn.new_tensor(BACKGROUND))[..., :height, :width]
        frames.append(to_pillow(torch.cat(list(whole), dim=-1)))
    return frames


def _parts(model: Autoencoder, q: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Per start: distance of every position in steps (h, w), and the map φ (N, C, h, w) of the paths from there."""
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
    """Number of steps of the recurrence from `start` to every position: (H, W).

    >>> steps_from((0, 1), (2, 3)).tolist()
    [[1, 0, 1], [2, 1, 2]]
    """
    return (torch.arange(size[0]) - start[0]).abs()[:, None] + (torch.arange(size[1]) - start[1]).abs()


def _steps(last: int, count: int | None) -> list[int]:
    every = list(range(last + 1))
    if count is None or count > last:
        return every
    return [round(number * last / (count - 1)) for number in range(count)]


def save_animation(frames: Sequence[Image.Image], path: str | Path, seconds: float = 3.0) -> Path:
    """Write frames as an animation of `seconds`: .gif or .webp with Pillow, .mp4 with imageio-ffmpeg if installed.

    The last frame is held longer.
    """
    path = animation_path(path)
    if not frames:
        raise InputError("An animation needs at least 1 frame, got 0.")
    if not seconds > 0:
        raise InputError(f"seconds must be positive, got {seconds}.")
    if path.suffix.lower() == ".mp4":
        _save_mp4(frames, path, _frame_milliseconds(frames, seconds))
    else:
        write_bytes(path, encode_animation(frames, path.suffix[1:].upper(), seconds))
    return path


def encode_animation(frames: Sequence[Image.Image], kind: str, seconds: float = 3.0) -> bytes:
    """Encode frames as an animated image of `seconds`, a format of Pillow: GIF or WEBP."""
    each = _frame_milliseconds(frames, seconds)
    durations = [each] * (len(frames) - 1) + [each + round(1000 * HOLD)]
    target, (first, *rest) = io.BytesIO(), frames
    first.save(target, kind, save_all=True, append_images=rest, duration=durations, loop=0, quality=85)
    return target.getvalue()


def _frame_milliseconds(frames: Sequence[Image.Image], seconds: float) -> int:
    """Duration of a frame; viewers do not play shorter ones at full speed."""
    return max(20, round(1000 * seconds / len(frames)))


def _save_mp4(frames: Sequence[Image.Image], path: Path, each: int) -> None:
    """Write H.264, which requires even sides; the last row or column of an odd side is repeated."""
    import imageio_ffmpeg

    width, height = (side + side % 2 for side in frames[0].size)
    with replacing(path, ".part.mp4") as temporary:  # ffmpeg chooses the format by the suffix
        writer = imageio_ffmpeg.write_frames(str(temporary), (width, height), fps=1000 / each, macro_block_size=1)
        writer.send(None)
        held = round(1000 * HOLD / each)
        for frame in [*frames, *[frames[-1]] * held]:
            pixels = np.asarray(frame)
            writer.send(
                np.pad(pixels, ((0, height - frame.height), (0, width - frame.width), (0, 0)), "edge").tobytes()
            )
        writer.close()

"""Images decoded from modified latents: interpolation to mean and mirror, PCA, interpolation of photos, animation."""

from __future__ import annotations

from torch import Tensor

from finola.app.comparison import possible_effort
from finola.app.models import Opened, statistics
from finola.app.photos import Photo, fitted, shrunk
from finola.evaluation.latent import decode, encode, fade, interpolate, project
from finola.evaluation.reconstruction import Reconstruction, reconstruct
from finola.image_io import to_uint8

SIDE = 512  # pixels: small enough for interactive updates
FRAMES, SECONDS = 24, 3.0


def faded(photo: Photo, opened: Opened, t: float) -> Tensor:
    """Decode (1 − t)·q + t·q̄: the photo at t = 0, the mean at 1, the mirror 2q̄ − q at 2. Returns uint8 (3, h, w)."""
    q, grid, size = encode(opened.model, shrunk(photo.pixels, SIDE)[None])
    return to_uint8(decode(opened.model, fade(q, statistics(opened.name)[0], t), grid, size)[0])


def projected(photo: Photo, opened: Opened, k: int) -> Tensor:
    """Decode the projection of q onto the first k principal components: uint8 (3, h, w)."""
    q, grid, size = encode(opened.model, shrunk(photo.pixels, SIDE)[None])
    known = statistics(opened.name)[0]
    return to_uint8(decode(opened.model, project(q, known, min(k, len(known.components))), grid, size)[0])


def mixed(photo: Photo, other: Photo, opened: Opened, t: float) -> Tensor:
    """Decode (1 − t)·q + t·q′ for the q′ of another photo, cropped to the same shape: uint8 (3, h, w)."""
    first = shrunk(photo.pixels, SIDE)
    second = fitted(other.pixels, (first.shape[-2], first.shape[-1]))
    q, grid, size = encode(opened.model, first[None])
    return to_uint8(decode(opened.model, interpolate(q, encode(opened.model, second[None]).q, t), grid, size)[0])


def reconstructed(photo: Photo, opened: Opened, budget: int, effort: int) -> tuple[Tensor, Reconstruction, int]:
    """Reconstruct the photo from a budget per 256×256 pixels, which only elastic models use.

    Returns the displayed photo, uint8 (3, h, w), its reconstruction, and the effort that was used.
    """
    image = shrunk(photo.pixels, SIDE)
    effort = possible_effort(effort, image.shape[-2] * image.shape[-1])
    number = budget if opened.model.config.elastic else None
    (found,) = reconstruct(opened.model, image[None].float() / 255, budget=number, effort=effort)
    return image, found, effort


def animation(photo: Photo, opened: Opened) -> bytes:
    """Animate the propagation of the photo, as WebP."""
    from finola.plotting.animation import encode_animation, propagation_frames

    frames = propagation_frames(opened.model, shrunk(photo.pixels, SIDE)[None].float() / 255, count=FRAMES)
    return encode_animation(frames, "WEBP", SECONDS)

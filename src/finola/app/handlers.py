"""Event handlers of the page, one function per event.

Handlers are stateless: inputs come from the session of a browser tab, and only models are shared between sessions.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Any

import gradio as gr

from finola.app import latent_views, views, waves
from finola.app.comparison import rebuild
from finola.app.models import is_elastic, open_model, statistics
from finola.app.photos import Photo, example, scaled_down
from finola.errors import InputError
from finola.image_io import to_uint8
from finola.metrics import psnr

LEAST_BUDGET, MOST_BUDGET = 512, 16_384  # per 256×256 pixels
FIRST, SECOND = "astronaut", "coffee"
Order = tuple[str, list[tuple[int, float]]]
"""A model, and its waves with their fractions of the energy of a photo, strongest first."""


def shows_errors(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that shows an error message in place of the image if a handler raises, and then releases memory."""

    @wraps(handler)
    def guarded(*args: Any) -> Any:
        try:
            return handler(*args)
        except Exception as error:
            return views.message(user_message(error), alarm=True)
        finally:
            release_memory()

    return guarded


def release_memory() -> None:
    """Return freed memory to the system, where the C library is glibc, which keeps what each thread has freed."""
    with suppress(AttributeError, OSError, TypeError):  # another C library; Windows has no default one
        ctypes.CDLL(None).malloc_trim(0)


def user_message(error: Exception) -> str:
    """Message shown on the page: the error itself if input caused it, otherwise a general one.

    The traceback of unexpected errors is printed on the server only.
    """
    if isinstance(error, ValueError | FileNotFoundError):
        words = str(error)
        # Capitalise words, but keep the case of file names.
        return words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words
    traceback.print_exception(error, file=sys.stderr)
    return "An unexpected error occurred. Details are printed in the terminal of the server."


def load_photo(load: Callable[[], Photo]) -> tuple[Photo | None, str]:
    """Load a photo and return it with its description, or None with an error message."""
    try:
        photo = load()
    except Exception as error:
        return None, views.message(user_message(error), alarm=True)
    height, width = photo.full_size or photo.size
    return photo, views.message(f"{photo.name}: {width} × {height} pixels")


def update_photo(photo: Photo | None, words: str, model: str, quality: int, effort: int) -> tuple[Any, str, Any]:
    """Updates for a new photo: photo, description and comparison. Without a new photo, the current one is kept."""
    if photo is None:
        return gr.skip(), words, gr.skip()
    return photo, words, compare(photo, model, quality, effort)


def chosen(event: gr.EventData) -> str:
    return str(event.choice)


def start(model: str, quality: int, effort: int) -> tuple[Any, str, Any]:
    """Initial photo, description and comparison of a new session."""
    photo, words = load_photo(lambda: example(FIRST))
    return photo, words, first_comparison(model, int(quality), int(effort))


@lru_cache(maxsize=4)
def first_comparison(model: str, quality: int, effort: int) -> str:
    """Comparison of the first example, cached for all sessions."""
    photo = example(FIRST)
    return views.comparison(photo, rebuild(photo, open_model(model), quality, effort=effort), model, effort)


def choose_other(event: gr.EventData) -> tuple[Photo | None, str]:
    """Use an example as the second photo."""
    return load_photo(lambda: example(chosen(event)))


@shows_errors
def compare(photo: Photo | None, model: str, quality: int, effort: int) -> str:
    """Compare a photo with its reconstruction and other formats, or show a decoded photo."""
    photo = _require_photo(photo)
    if photo.coded is not None:
        return views.decoded(photo)
    opened = open_model(model)
    photo = scaled_down(photo, opened.model.config.image_size)
    effort = min(max(int(effort), 0), 9)
    return views.comparison(photo, rebuild(photo, opened, int(quality), effort), model, effort)


def draw_tab(
    tab: str, photo: Photo | None, other: Photo | None, model: str, budget: float, effort: float, *sliders: float
) -> tuple[Any, ...]:
    """Update the outputs of the visible tab; all others are unchanged."""
    outputs = [gr.skip()] * 12
    if tab == "latents":
        outputs[10:] = gr.Slider(visible=is_elastic(model)), draw_latents(photo, model, budget, effort)
    elif tab == "moves":
        outputs[:5] = _draw_latent_views(photo, other, model, *sliders)
    elif tab == "waves":
        outputs[6:10] = _draw_waves(photo, model)
    return tuple(outputs)


def _draw_latent_views(
    photo: Photo | None, other: Photo | None, model: str, fade: float, components: float, mix: float
) -> list[Any]:
    try:
        found, words = statistics(model)
    except Exception as error:
        return [gr.skip(), gr.skip(), gr.skip(), gr.skip(), views.message(user_message(error), alarm=True)]
    maximum = len(found.components)
    count = min(int(components), maximum)
    pictures = [
        draw_fade(photo, model, fade),
        draw_components(photo, model, count),
        draw_mix(photo, other, model, mix),
    ]
    return [*pictures, gr.Slider(maximum=maximum, value=count), views.message(words)]


@shows_errors
def draw_fade(photo: Photo | None, model: str, t: float) -> str:
    """Interpolate from the photo to the mean and the mirror image."""
    t = min(max(t, 0.0), 2.0)
    where = f"{1 - t:.0%} photo, {t:.0%} mean" if t <= 1 else f"{2 - t:.0%} mean, {t - 1:.0%} mirror image"
    drawn = latent_views.faded(_require_photo(photo), open_model(model), t)
    return views.gallery(views.picture(drawn, "Photo, mean, mirror image", where))


@shows_errors
def draw_components(photo: Photo | None, model: str, k: int) -> str:
    """Reconstruct the photo from the first k principal components."""
    k = min(max(int(k), 0), len(statistics(model)[0].components))
    share = float(statistics(model)[0].explained()[k - 1]) if k else 0.0
    drawn = latent_views.projected(_require_photo(photo), open_model(model), k)
    return views.gallery(views.picture(drawn, f"From {k} components", f"{share:.1%} of the variance"))


@shows_errors
def draw_mix(photo: Photo | None, other: Photo | None, model: str, t: float) -> str:
    """Interpolate between two photos."""
    t = min(max(t, 0.0), 1.0)
    second = other or example(SECOND)
    drawn = latent_views.mixed(_require_photo(photo), second, open_model(model), t)
    return views.gallery(views.picture(drawn, f"{1 - t:.0%} first, {t:.0%} second", f"second: {second.name}"))


@shows_errors
def draw_latents(photo: Photo | None, model: str, budget: float, effort: float) -> str:
    """Reconstruct the photo within a budget, amortised and refined."""
    asked, number = min(max(int(effort), 0), 9), min(max(int(budget), LEAST_BUDGET), MOST_BUDGET)
    image, found, used = latent_views.reconstructed(_require_photo(photo), open_model(model), number, asked)
    original = image[None].float() / 255
    size = image.shape[-2], image.shape[-1]
    figures = [views.picture(image, "Original", f"{size[1]} × {size[0]} pixels")]
    versions = {"Amortised q": found.amortised, f"Refined q, effort {used}": found.refined}
    for title, version in versions.items():
        if version is not None:
            note = f"{float(psnr(version[None], original)):.2f} dB"
            figures.append(views.picture(to_uint8(version), title, note))
    if is_elastic(model):
        figures.append(views.length_map(found.lengths, size))
    counts = found.per_256()
    words = f"{counts['latents_per_256']:,.0f} numbers per 256 × 256 pixels"
    if counts["side_per_256"]:
        words += f", of which {counts['side_per_256']:,.0f} describe the bases and lengths of the tiles"
    words += (
        ", shared out by need over the tiles."
        if is_elastic(model)
        else ", the same in every tile: q has a fixed length."
    )
    if used < asked:
        words += f" Effort {asked} takes more than about ten seconds for a photo of this size; {used} was used."
    return views.gallery(*figures) + views.message(words)


def invite() -> str:
    """What stands in place of an animation until the button is pressed."""
    return views.message("Press the button to animate the propagation step by step.")


@shows_errors
def draw_animation(photo: Photo | None, model: str) -> str:
    """Animate the propagation of the photo."""
    photo = _require_photo(photo)
    animation = latent_views.animation(photo, open_model(model))
    uri = views.data_uri(animation, "image/webp")
    link = f'<p class="links"><a class="button" href="{uri}" download="growing.webp">Download the animation</a></p>'
    note = "propagation from the start of every tile, step by step"
    return views.gallery(views.figure(uri, photo.size, "Propagation", note, link))


def _draw_waves(photo: Photo | None, model: str) -> list[Any]:
    """Rank the waves by energy in the photo, and draw the strongest one."""
    try:
        order = model, waves.strongest_first(_require_photo(photo), open_model(model))
        return [order, gr.Slider(maximum=len(order[1]), value=1), *draw_wave(photo, model, order, 1)]
    except Exception as error:
        return [None, gr.skip(), gr.skip(), views.message(user_message(error), alarm=True)]


def draw_wave(photo: Photo | None, model: str, order: Order | None, rank: int) -> tuple[Any, str]:
    """Draw the complex plane with one speed marked, and the wave over the photo.

    The waves are ranked here if `order` is not that of the model yet.
    """
    try:
        photo, opened = _require_photo(photo), open_model(model)
        ranked = order[1] if order is not None and order[0] == model else waves.strongest_first(photo, opened)
        rank = min(max(int(rank), 1), len(ranked))
        number, share = ranked[rank - 1]
        found, groups = waves.waves_of(model), waves.groups(model)
        dots = [(*found[group[0]].place(), len(group), _speed(found[group[0]].speed)) for group in groups]
        chosen = next(place for place, group in enumerate(groups) if number in group)
        image, over = waves.wave_picture(photo, opened, number)
        title = f"Wave {rank} of {len(ranked)}, {_speed(found[number].speed)}, {share:.1%} of the waves’ energy"
        return views.plane(dots, chosen), views.gallery(views.wave_over(image, over, title, found[number].words))
    except Exception as error:
        return gr.skip(), views.message(user_message(error), alarm=True)


def point(model: str, order: Order | None, rank: int, event: gr.EventData) -> int:
    """Rank of the strongest wave at the selected dot; selecting the dot again returns the next wave there."""
    groups = waves.groups(model)
    choice = chosen(event)
    dot = int(choice) if choice.isdecimal() else -1
    if order is None or order[0] != model or not 0 <= dot < len(groups):
        return int(rank)
    ranks = [place for place, (number, _) in enumerate(order[1], start=1) if number in groups[dot]]
    return ranks[(ranks.index(int(rank)) + 1) % len(ranks)] if int(rank) in ranks else ranks[0]


def _speed(speed: complex) -> str:
    """Format a wave speed.

    >>> _speed(0.5 - 0.25j), _speed(complex("inf"))
    ('λ = 0.50 − 0.25i', 'λ = ∞')
    """
    if speed.real in (float("inf"), float("-inf")):
        return "λ = ∞"
    if abs(speed.imag) < 5e-3:
        return f"λ = {speed.real:.2f}".replace("-", "−")
    return f"λ = {speed.real:.2f} {'−' if speed.imag < 0 else '+'} {abs(speed.imag):.2f}i".replace("-", "−")


def _require_photo(photo: Photo | None) -> Photo:
    if photo is None:
        raise InputError("The photo was deleted after an hour without use. Drop it again.")
    return photo

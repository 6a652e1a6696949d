"""What the page's controls draw: one function for each event.

A handler gets everything it needs from the visitor's own session and stores nothing: two visitors share models only.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import gradio as gr

from finola.app import latent_views as moves
from finola.app import views as markup
from finola.app import waves
from finola.app.comparison import rebuild
from finola.app.models import open_model, statistics
from finola.app.photos import Photo, example, read, scaled_down
from finola.app.uploads import Uploads
from finola.app.visitors import VisitorLeft, Visitors
from finola.errors import InputError

FIRST, SECOND = "astronaut", "coffee"


def spoken(handler: Callable[..., Any]) -> Callable[..., Any]:
    """What goes wrong in a handler of one picture becomes one sentence in the picture's place."""

    @wraps(handler)
    def guarded(*args: Any) -> Any:
        try:
            return handler(*args)
        except Exception as error:
            return markup.sentence(in_words(error), alarm=True)

    return guarded


def in_words(error: Exception) -> str:
    """The sentence of an error that a visitor can mend; of any other one that owns up, with the rest for the host."""
    if isinstance(error, VisitorLeft):
        return ""
    if isinstance(error, ValueError | FileNotFoundError):
        words = str(error)
        return words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words  # a file's name stays
    traceback.print_exception(error, file=sys.stderr)
    return "Something went wrong here that should not have: whoever runs this page finds the details in its terminal."


def taken(take: Callable[[], Photo]) -> tuple[Photo | None, str]:
    """A new photo and its name; or none, and why."""
    try:
        photo = take()
    except Exception as error:
        return None, markup.sentence(in_words(error), alarm=True)
    height, width = photo.full_size or photo.size
    return photo, markup.sentence(f"{photo.name}: {width} × {height} pixels")


def shown(
    photo: Photo | None, words: str, model: str, quality: int, visitors: Visitors, session: str | None
) -> tuple[Any, str, Any]:
    """A new photo, its name and what the model makes of it; without a new photo the old one stays."""
    if photo is None:
        return gr.skip(), words, gr.skip()
    return photo, words, compare(photo, model, quality, visitors, session)


def take_upload(path: str | None, uploads: Uploads, visitors: Visitors, session: str | None) -> Photo:
    """The photo of an uploaded file, which is deleted."""
    if path is None:
        raise InputError("No file was sent. Drop one.")
    data = uploads.take(path)
    with visitors.working(lambda: visitors.check(session)):
        return read(data, Path(path).name)


def chosen(event: gr.EventData) -> str:
    return str(getattr(event, "choice", ""))


def start(model: str, quality: int) -> tuple[Any, str, Any]:
    """The photo that a new visitor finds."""
    photo, words = taken(lambda: example(FIRST))
    return photo, words, first_comparison(model, int(quality))


@lru_cache(maxsize=16)
def first_comparison(model: str, quality: int) -> str:
    """Drawn once for all visitors: the example is nobody's own."""
    photo = example(FIRST)
    return markup.comparison(photo, *rebuild(photo, open_model(model), quality), model)


def choose_other(event: gr.EventData) -> tuple[Photo | None, str]:
    """The second photo, one of the examples."""
    return taken(lambda: example(chosen(event)))


@spoken
def compare(photo: Photo | None, model: str, quality: int, visitors: Visitors, session: str | None) -> str:
    """The comparison; of a photo that was decoded here, the photo."""
    photo = _here(photo)
    if photo.coded is not None:
        return markup.decoded(photo)

    def check() -> None:
        visitors.check(session)

    with visitors.working(check):
        opened = open_model(model)
        photo = scaled_down(photo, opened.model.config.image_size)
        return markup.comparison(photo, *rebuild(photo, opened, int(quality), check), model)


def draw_tab(tab: str, photo: Photo | None, other: Photo | None, model: str, *sliders: float) -> tuple[Any, ...]:
    """What the tab in view shows; every other picture stays as it is."""
    kept = [gr.skip()] * 10
    if tab == "moves":
        kept[:5] = _draw_moves(photo, other, model, *sliders)
    elif tab == "growth":
        kept[5] = markup.sentence("The button draws the photo step by step, as the recurrence walks.")
    elif tab == "waves":
        kept[6:] = _draw_waves(photo, model)
    return tuple(kept)


def _draw_moves(
    photo: Photo | None, other: Photo | None, model: str, fade: float, components: float, mix: float
) -> list[Any]:
    try:
        found, words = statistics(model)
    except Exception as error:
        return [gr.skip(), gr.skip(), gr.skip(), gr.skip(), markup.sentence(in_words(error), alarm=True)]
    most = len(found.components)
    kept = min(int(components), most)
    pictures = [
        draw_fade(photo, model, fade),
        draw_components(photo, model, kept),
        draw_mix(photo, other, model, mix),
    ]
    return [*pictures, gr.Slider(maximum=most, value=kept), markup.sentence(words)]


@spoken
def draw_fade(photo: Photo | None, model: str, t: float) -> str:
    """The photo on its way to the mean and to its mirror."""
    t = min(max(t, 0.0), 2.0)
    where = f"{1 - t:.0%} photo, {t:.0%} mean" if t <= 1 else f"{2 - t:.0%} mean, {t - 1:.0%} mirror image"
    drawn = moves.faded(_here(photo), open_model(model), t)
    return markup.gallery(markup.picture(drawn, "Photo, mean, mirror image", where))


@spoken
def draw_components(photo: Photo | None, model: str, k: int) -> str:
    """The photo from few components."""
    k = min(max(int(k), 0), len(statistics(model)[0].components))
    share = float(statistics(model)[0].explained()[k - 1]) if k else 0.0
    drawn = moves.projected(_here(photo), open_model(model), k)
    return markup.gallery(markup.picture(drawn, f"From {k} components", f"they hold {share:.1%} of what varies"))


@spoken
def draw_mix(photo: Photo | None, other: Photo | None, model: str, t: float) -> str:
    """The photo mixed with another."""
    t = min(max(t, 0.0), 1.0)
    second = other or example(SECOND)
    drawn = moves.mixed(_here(photo), second, open_model(model), t)
    return markup.gallery(markup.picture(drawn, f"{1 - t:.0%} first, {t:.0%} second", f"second: {second.name}"))


@spoken
def draw_film(photo: Photo | None, model: str) -> str:
    """The photo growing."""
    photo = _here(photo)
    film = moves.film(photo, open_model(model))
    uri = markup.data_uri(film, "image/webp")
    link = f'<p class="links"><a class="button" href="{uri}" download="growing.webp">Download the film</a></p>'
    note = "every start grows by one step at a time"
    return markup.gallery(markup.figure(uri, photo.size, "Growing", note, link))


def _draw_waves(photo: Photo | None, model: str) -> list[Any]:
    """The order of the waves in this photo, and the strongest of them drawn."""
    try:
        strengths = waves.strongest_first(_here(photo), open_model(model))
        return [strengths, gr.Slider(maximum=len(strengths), value=1), *draw_wave(photo, model, strengths, 1)]
    except Exception as error:
        return [[], gr.skip(), gr.skip(), markup.sentence(in_words(error), alarm=True)]


def draw_wave(photo: Photo | None, model: str, order: list[tuple[int, float]], rank: int) -> tuple[Any, str]:
    """The plane with one wave marked, and that wave over the photo."""
    try:
        number, share = order[min(max(int(rank), 1), len(order)) - 1]
        found, groups = waves.waves_of(model), waves.groups(model)
        dots = [(*found[group[0]].place(), len(group), _speed(found[group[0]].speed)) for group in groups]
        chosen = next(place for place, group in enumerate(groups) if number in group)
        image, over = waves.wave_picture(_here(photo), open_model(model), number)
        title = f"Wave {int(rank)} of {len(order)}, {_speed(found[number].speed)}, {share:.1%} of the waves’ energy"
        return markup.plane(dots, chosen), markup.gallery(markup.wave_over(image, over, title, found[number].words))
    except Exception as error:
        return gr.skip(), markup.sentence(in_words(error), alarm=True)


def point(model: str, order: list[tuple[int, float]], rank: int, event: gr.EventData) -> int:
    """The rank of the strongest wave at the dot that was chosen; of the next one there when it is chosen again."""
    groups = waves.groups(model)
    choice = chosen(event)
    dot = int(choice) if choice.isdecimal() else -1
    if not order or not 0 <= dot < len(groups):
        return int(rank)
    there = [place for place, (number, _) in enumerate(order, start=1) if number in groups[dot]]
    return there[(there.index(int(rank)) + 1) % len(there)] if int(rank) in there else there[0]


def _speed(speed: complex) -> str:
    """λ for people.

    >>> _speed(0.5 - 0.25j), _speed(complex("inf"))
    ('λ = 0.50 − 0.25i', 'λ = ∞')
    """
    if speed.real in (float("inf"), float("-inf")):
        return "λ = ∞"
    if abs(speed.imag) < 5e-3:
        return f"λ = {speed.real:.2f}".replace("-", "−")
    return f"λ = {speed.real:.2f} {'−' if speed.imag < 0 else '+'} {abs(speed.imag):.2f}i".replace("-", "−")


def _here(photo: Photo | None) -> Photo:
    if photo is None:
        raise InputError("The photo was deleted after an hour without use. Drop it again.")
    return photo

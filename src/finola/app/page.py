"""The page itself: its controls, and which of them redraws what.

A handler gets everything it needs from the visitor's own session and keeps nothing: two visitors share models only.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import gradio as gr

from finola.app import markup, moves, waves
from finola.app.models import label, names, open_model, statistics
from finola.app.photos import MAX_BYTES, MAX_PIXELS, Photo, example, take_upload
from finola.app.rebuild import rebuild

FIRST, SECOND = "astronaut", "coffee"
FORGET = 3600  # seconds after which a visitor's photo is let go
COMPONENTS = 32  # shown at first

# A click on, or a key pressed at, anything that offers a choice tells the handler of `select` which one it was.
CHOOSING = """element.addEventListener('click', event => {
  const offer = event.target.closest('[data-choice]');
  if (offer) trigger('select', {choice: offer.dataset.choice});
});"""

LIMITS = f"""
<p class="said">Any common image file up to {MAX_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels.</p>
<p class="said alarm" role="alert" id="too-large" data-bytes="{MAX_BYTES}"></p>
"""

INTRODUCTION = """
<header><h1>finola</h1><p>A photo as one-way waves. Each piece of it becomes one list of numbers, and one simple step,
repeated from the middle outwards, grows the picture back. Your photo stays on the machine that serves this page.</p>
</header>
"""


def build() -> gr.Blocks:
    """The page; `finola.app.server` serves it."""
    page = gr.Blocks(title="finola", analytics_enabled=False, delete_cache=(600, 600))
    with page:
        photo = gr.State(None, time_to_live=FORGET)
        other = gr.State(None, time_to_live=FORGET)
        order = gr.State([])  # the waves by number, strongest in the photo first
        tab = gr.State("compare")
        gr.HTML(INTRODUCTION)
        with gr.Row(elem_id="whole"):
            with gr.Column(scale=1, min_width=280, elem_id="controls"):
                drop = _drop("drop", "Your photo, or a .finola file")
                gr.HTML(LIMITS, elem_id="limits")
                thumbs = gr.HTML(markup.thumbnails(), js_on_load=CHOOSING, elem_id="examples")
                model = gr.Dropdown(
                    [(label(name), name) for name in names()],
                    value=names()[0],
                    label="Model",
                    elem_id="model",
                    filterable=False,
                )
                quality = gr.Slider(
                    1,
                    100,
                    50,
                    step=1,
                    label="Quality",
                    info="1 is the smallest file, 100 the finest",
                    elem_id="quality",
                )
                status = gr.HTML(markup.sentence("Loading …"), elem_id="status")
            with gr.Column(scale=4, min_width=300), gr.Tabs():
                with gr.Tab("Compare", id="compare") as compare_tab:
                    compared = gr.HTML(_waiting(4), elem_id="compared")
                with gr.Tab("Morph", id="moves") as moves_tab:
                    with gr.Row(equal_height=False):
                        with gr.Column(min_width=260):
                            fade = gr.Slider(
                                0, 2, 0.5, step=0.05, label="Fade to the mean",
                                info="0 photo, 1 mean, 2 mirror", elem_id="fade",
                            )  # fmt: skip
                            faded = gr.HTML(_waiting(1), elem_id="faded")
                        with gr.Column(min_width=260):
                            components = gr.Slider(
                                0, 512, COMPONENTS, step=1, label="Components kept",
                                info="0 is the mean alone", elem_id="components",
                            )  # fmt: skip
                            projected = gr.HTML(_waiting(1), elem_id="projected")
                        with gr.Column(min_width=260):
                            mix = gr.Slider(
                                0, 1, 0.5, step=0.05, label="Mix two photos",
                                info="0 first, 1 second", elem_id="mix",
                            )  # fmt: skip
                            mixed = gr.HTML(_waiting(1), elem_id="mixed")
                            other_thumbs = gr.HTML(markup.thumbnails(), js_on_load=CHOOSING, elem_id="other-examples")
                            other_drop = _drop("other-drop", "The second photo")
                    source = gr.HTML(markup.sentence(""), elem_id="source")
                with gr.Tab("Grow", id="growth") as growth_tab:
                    grow = gr.Button("Watch it grow", variant="primary", elem_id="grow")
                    grown = gr.HTML(_waiting(1), elem_id="grown")
                with gr.Tab("Waves", id="waves") as waves_tab:
                    wave = gr.Slider(
                        1, 256, 1, step=1, label="Wave", info="1 is the strongest in this photo", elem_id="wave"
                    )
                    with gr.Row(equal_height=False):
                        with gr.Column(min_width=280):
                            plane = gr.HTML(_waiting(1), js_on_load=CHOOSING, elem_id="plane")
                        with gr.Column(min_width=280):
                            waved = gr.HTML(_waiting(1), elem_id="waved")

        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        live = quiet | {"trigger_mode": "always_last"}
        comparing = [photo, model, quality]
        moved, pictures = [photo, other, model, fade, components, mix], [faded, projected, mixed, components, source]
        seen = [order, wave, plane, waved]
        current = [tab, *moved]
        everything = [*pictures, grown, *seen]

        # What the photo or the model decides is drawn again for the tab in view; the others are drawn when looked at.
        changes = (
            page.load(start, [model, quality], [photo, status, compared], **quiet),
            drop.upload(receive, [drop, model, quality], [drop, photo, status, compared], **quiet),
            thumbs.select(choose, [model, quality], [photo, status, compared], **quiet),
            model.input(compare, comparing, compared, **live),
        )
        for change in changes:
            change.then(draw_tab, current, everything, **quiet)
        quality.input(compare, comparing, compared, **live)
        for name, one in {"compare": compare_tab, "moves": moves_tab, "growth": growth_tab, "waves": waves_tab}.items():
            one.select(lambda name=name: name, None, tab, **quiet).then(draw_tab, current, everything, **quiet)
        fade.input(draw_fade, [photo, model, fade], faded, **live)
        components.input(draw_components, [photo, model, components], projected, **live)
        mix.input(draw_mix, [photo, other, model, mix], mixed, **live)
        for change in (
            other_drop.upload(receive_other, other_drop, [other_drop, other, source], **quiet),
            other_thumbs.select(choose_other, None, [other, source], **quiet),
        ):
            change.then(draw_mix, [photo, other, model, mix], mixed, **quiet)
        grow.click(draw_film, [photo, model], grown, api_visibility="private")
        wave.input(draw_wave, [photo, model, order, wave], [plane, waved], **live)
        pointed = plane.select(point, [model, order, wave], wave, **quiet)
        pointed.then(draw_wave, [photo, model, order, wave], [plane, waved], **quiet)
    page.queue(max_size=64, default_concurrency_limit=2)
    return page


def _drop(name: str, words: str) -> gr.File:
    return gr.File(label=words, height=132, elem_id=name)


def _waiting(count: int) -> str:
    """Empty places where pictures will be, so that nothing jumps."""
    return markup.gallery(
        *['<figure class="shot waiting"><figcaption><b>…</b></figcaption><div class="empty"></div></figure>'] * count
    )


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
    if isinstance(error, ValueError | FileNotFoundError):
        words = str(error)
        return words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words  # a file's name stays
    traceback.print_exception(error, file=sys.stderr)
    return "Something went wrong here that should not have: whoever runs this page finds the details in its terminal."


def _taken(take: Callable[[], Photo]) -> tuple[Photo | None, str]:
    """A new photo and its name; or none, and why."""
    try:
        photo = take()
    except Exception as error:
        return None, markup.sentence(in_words(error), alarm=True)
    height, width = photo.size
    return photo, markup.sentence(f"{photo.name}: {width} × {height} pixels")


def _shown(take: Callable[[], Photo], model: str, quality: int) -> tuple[Any, str, Any]:
    """A new photo, its name and what the model makes of it; where it is not taken, the old one stays."""
    photo, words = _taken(take)
    return (gr.skip(), words, gr.skip()) if photo is None else (photo, words, compare(photo, model, quality))


def start(model: str, quality: int) -> tuple[Any, str, Any]:
    """The photo that a new visitor finds."""
    photo, words = _taken(lambda: example(FIRST))
    return photo, words, first_comparison(model, int(quality))


@lru_cache(maxsize=16)
def first_comparison(model: str, quality: int) -> str:
    """Drawn once for all visitors: the example is nobody's own."""
    photo = example(FIRST)
    return markup.comparison(photo, *rebuild(photo, open_model(model), quality), model)


def receive(path: str, model: str, quality: int) -> tuple[Any, ...]:
    """An upload, read and deleted; the drop zone is empty again."""
    return None, *_shown(lambda: take_upload(path), model, quality)


def choose(model: str, quality: int, event: gr.EventData) -> tuple[Any, str, Any]:
    """One of the example photos."""
    return _shown(lambda: example(str(event.choice)), model, quality)


def receive_other(path: str) -> tuple[Any, Any, str]:
    """The second photo, uploaded."""
    photo, words = _taken(lambda: take_upload(path))
    return None, photo or gr.skip(), words


def choose_other(event: gr.EventData) -> tuple[Photo | None, str]:
    """The second photo, one of the examples."""
    return _taken(lambda: example(str(event.choice)))


@spoken
def compare(photo: Photo | None, model: str, quality: int) -> str:
    """The comparison; of a photo that was decoded here, the photo."""
    photo = _here(photo)
    if photo.coded is not None:
        return markup.decoded(photo)
    return markup.comparison(photo, *rebuild(photo, open_model(model), int(quality)), model)


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
    where = f"{1 - t:.0%} photo, {t:.0%} mean" if t <= 1 else f"{2 - t:.0%} mean, {t - 1:.0%} mirror image"
    drawn = moves.faded(_here(photo), open_model(model), t)
    return markup.gallery(markup.picture(drawn, "Photo, mean, mirror image", where))


@spoken
def draw_components(photo: Photo | None, model: str, k: int) -> str:
    """The photo from few components."""
    share = float(statistics(model)[0].explained()[int(k) - 1]) if k else 0.0
    drawn = moves.projected(_here(photo), open_model(model), int(k))
    return markup.gallery(markup.picture(drawn, f"From {int(k)} components", f"they hold {share:.1%} of what varies"))


@spoken
def draw_mix(photo: Photo | None, other: Photo | None, model: str, t: float) -> str:
    """The photo mixed with another."""
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
    dot = int(event.choice)
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
        raise ValueError("this page was left alone for too long and has let the photo go: drop it again.")
    return photo

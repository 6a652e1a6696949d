"""The page itself: its controls, and which of them redraws what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from finola.app import views as markup
from finola.app.handlers import (
    choose_other,
    chosen,
    compare,
    draw_components,
    draw_fade,
    draw_film,
    draw_mix,
    draw_tab,
    draw_wave,
    point,
    shown,
    start,
    take_upload,
    taken,
)
from finola.app.models import label, names
from finola.app.photos import MAX_PIXELS, Photo, example, shrunk
from finola.app.uploads import MAX_BYTES, Uploads
from finola.app.visitors import Visitors

FORGET = 3600  # seconds after which a visitor's photo is deleted
COMPONENTS = 32  # shown at first
OTHER_SIDE = 1024  # pixels of the longer side of the second photo, which is shown at half of it

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


def build(uploads: Uploads, visitors: Visitors) -> gr.Blocks:
    """The page; `finola.app.server` serves it."""

    def compare_for(photo: Photo | None, model: str, quality: int, request: gr.Request) -> str:
        return str(compare(photo, model, quality, visitors, request.session_hash))

    def choose(model: str, quality: int, event: gr.EventData, request: gr.Request) -> tuple[Any, str, Any]:
        photo, words = taken(lambda: example(chosen(event)))
        return shown(photo, words, model, quality, visitors, request.session_hash)

    def receive(path: str | None, model: str, quality: int, request: gr.Request) -> tuple[Any, ...]:
        photo, words = taken(lambda: take_upload(path, uploads, visitors, request.session_hash))
        return None, *shown(photo, words, model, quality, visitors, request.session_hash)

    def receive_other(path: str | None, request: gr.Request) -> tuple[Any, Any, str]:
        photo, words = taken(lambda: take_upload(path, uploads, visitors, request.session_hash))
        if photo is None:
            return None, gr.skip(), words
        return None, replace(photo, pixels=shrunk(photo.pixels, OTHER_SIDE)), words

    page = gr.Blocks(title="finola", analytics_enabled=False)
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

        # Every job is in one group: two run at a time, whoever asks for them.
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_id": "page"}
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
            model.input(compare_for, comparing, compared, **live),
        )
        for change in changes:
            change.then(draw_tab, current, everything, **quiet)
        quality.input(compare_for, comparing, compared, **live)
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
        grow.click(draw_film, [photo, model], grown, api_visibility="private", concurrency_id="page")
        wave.input(draw_wave, [photo, model, order, wave], [plane, waved], **live)
        pointed = plane.select(point, [model, order, wave], wave, **quiet)
        pointed.then(draw_wave, [photo, model, order, wave], [plane, waved], **quiet)
    page.queue(max_size=64, default_concurrency_limit=2, api_open=False)
    return page


def _drop(name: str, words: str) -> gr.File:
    return gr.File(label=words, height=132, elem_id=name)


def _waiting(count: int) -> str:
    """Empty places where pictures will be, so that nothing jumps."""
    return markup.gallery(
        *['<figure class="shot waiting"><figcaption><b>…</b></figcaption><div class="empty"></div></figure>'] * count
    )

"""Layout of the page: its components, and the events that update them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from finola.app import views as markup
from finola.app.guard import Uploads
from finola.app.handlers import (
    LEAST_BUDGET,
    MOST_BUDGET,
    choose_other,
    chosen,
    compare,
    draw_animation,
    draw_components,
    draw_fade,
    draw_latents,
    draw_mix,
    draw_tab,
    draw_wave,
    invite,
    load_photo,
    point,
    start,
    update_photo,
)
from finola.app.models import is_elastic, label, names
from finola.app.photos import MAX_BYTES, MAX_PIXELS, Photo, example, read, shrunk
from finola.config import DEFAULT_BUDGET

STATE_LIFETIME = 3600  # seconds without use after which a photo is deleted
COMPONENTS = 32  # initial number of principal components
OTHER_SIDE = 1024  # maximum side of the second photo in pixels, twice the side at which it is displayed

# Clicking an element with data-choice, or activating it by keyboard, triggers `select` with that choice.
CHOOSING = """element.addEventListener('click', event => {
  const offer = event.target.closest('[data-choice]');
  if (offer) trigger('select', {choice: offer.dataset.choice});
});"""

LIMITS = f"""
<p class="said">Any common image file up to {MAX_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels.</p>
<p class="said alarm" role="alert" id="too-large" data-bytes="{MAX_BYTES}"></p>
"""

INTRODUCTION = """
<header><h1>finola</h1><p>Images as one-way waves. Each tile of a photo is encoded as one vector, and a first-order
recurrence reconstructs the tile from it. Your photo stays on the machine that serves this page.</p>
</header>
"""


def build(uploads: Uploads) -> gr.Blocks:
    """Build the page, which `finola.app.server` serves. The choice of an upload event is the key of the upload."""

    def choose(model: str, quality: int, effort: int, event: gr.EventData) -> tuple[Any, str, Any]:
        return update_photo(*load_photo(lambda: example(chosen(event))), model, quality, effort)

    def uploaded(event: gr.EventData) -> tuple[Photo | None, str]:
        return load_photo(lambda: read(*uploads.take(chosen(event))))

    def receive(_: None, model: str, quality: int, effort: int, event: gr.EventData) -> tuple[Any, ...]:
        return None, *update_photo(*uploaded(event), model, quality, effort)

    def receive_other(_: None, event: gr.EventData) -> tuple[Any, Any, str]:
        photo, words = uploaded(event)
        smaller = gr.skip() if photo is None else replace(photo, pixels=shrunk(photo.pixels, OTHER_SIDE))
        return None, smaller, words

    page = gr.Blocks(title="finola", analytics_enabled=False)
    with page:
        photo = gr.State(None, time_to_live=STATE_LIFETIME)
        other = gr.State(None, time_to_live=STATE_LIFETIME)
        order = gr.State(None)  # of waves, strongest in the photo first
        tab = gr.State("compare")
        gr.HTML(INTRODUCTION)
        with gr.Row(elem_id="whole"):
            with gr.Column(scale=1, min_width=280, elem_id="controls"):
                drop = _drop("drop", "Your photo, or a .finola file")
                gr.HTML(LIMITS, elem_id="limits")
                thumbs = gr.HTML(markup.thumbnails(), js_on_load=CHOOSING, elem_id="examples")
                labels = [(label(name), name) for name in names()]
                model = gr.Dropdown(labels, value=labels[0][1], label="Model", elem_id="model", filterable=False)
                able = gr.HTML(markup.abilities(names()[0]), elem_id="abilities")
                quality = _slider("quality", (1, 100, 50), 1, "Quality", "1: smallest file, 100: best quality")
                effort = _slider("effort", (0, 9, 0), 1, "Effort", "0: encoder only, 9: most refined")
                status = gr.HTML(markup.message("Loading …"), elem_id="status")
            with gr.Column(scale=4, min_width=300), gr.Tabs():
                with gr.Tab("Compare", id="compare") as compare_tab:
                    compared = gr.HTML(_placeholders(7), elem_id="compared")
                with gr.Tab("Latents", id="latents") as latents_tab:
                    words = "Latents per 256 × 256 pixels", "shared out by need over the tiles; not quantised"
                    budget = _slider("budget", (LEAST_BUDGET, MOST_BUDGET, DEFAULT_BUDGET), 256, *words)
                    budget.visible = is_elastic(names()[0])
                    latent_pictures = gr.HTML(_placeholders(3), elem_id="reconstructed")
                with gr.Tab("Morph", id="moves") as moves_tab:
                    with gr.Row(equal_height=False):
                        with gr.Column(min_width=260):
                            words = "Interpolate to the mean", "0: photo, 1: mean, 2: mirror image"
                            fade = _slider("fade", (0, 2, 0.5), 0.05, *words)
                            faded = gr.HTML(_placeholders(1), elem_id="faded")
                        with gr.Column(min_width=260):
                            words = "Principal components", "0: mean only"
                            components = _slider("components", (0, 512, COMPONENTS), 1, *words)
                            projected = gr.HTML(_placeholders(1), elem_id="projected")
                        with gr.Column(min_width=260):
                            words = "Interpolate two photos", "0: first, 1: second"
                            mix = _slider("mix", (0, 1, 0.5), 0.05, *words)
                            mixed = gr.HTML(_placeholders(1), elem_id="mixed")
                            other_thumbs = gr.HTML(markup.thumbnails(), js_on_load=CHOOSING, elem_id="other-examples")
                            other_drop = _drop("other-drop", "The second photo")
                    source = gr.HTML(markup.message(""), elem_id="source")
                with gr.Tab("Grow", id="growth") as growth_tab:
                    grow = gr.Button("Animate the propagation", variant="primary", elem_id="grow")
                    grown = gr.HTML(invite(), elem_id="grown")
                with gr.Tab("Waves", id="waves") as waves_tab:
                    wave = _slider("wave", (1, 256, 1), 1, "Wave", "1: strongest in this photo")
                    with gr.Row(equal_height=False):
                        with gr.Column(min_width=280):
                            plane = gr.HTML(_placeholders(1), js_on_load=CHOOSING, elem_id="plane")
                        with gr.Column(min_width=280):
                            waved = gr.HTML(_placeholders(1), elem_id="waved")

        # All events share one concurrency group, so that one job runs at a time.
        # While a job of an event waits or runs, the page stores the last call of that event and drops those before.
        grouped: dict[str, Any] = {"api_visibility": "private", "concurrency_id": "page", "trigger_mode": "always_last"}
        live = grouped | {"show_progress": "hidden"}
        every = live | {"trigger_mode": "multiple"}  # a call that Gradio stores loses the choice of its event
        comparing = [photo, model, quality, effort]
        settings = [model, quality, effort]
        pictures = [faded, projected, mixed, components, source]
        seen = [order, wave, plane, waved]
        current = [tab, photo, other, model, budget, effort, fade, components, mix]
        everything = [*pictures, grown, *seen, budget, latent_pictures]

        # A new photo or model updates the visible tab; other tabs are updated when they are selected. Selecting a tab
        # leaves the animation alone: its button may be pressed before the tab is updated.
        changes = (
            page.load(start, settings, [photo, status, compared], **live),
            drop.upload(receive, [drop, *settings], [drop, photo, status, compared], **live),
            thumbs.select(choose, settings, [photo, status, compared], **every),
            model.input(compare, comparing, compared, **live),
        )
        for change in changes:
            change.then(invite, None, grown, **live)
            change.then(draw_tab, current, everything, **live)
        quality.input(compare, comparing, compared, **live)
        effort.input(draw_tab, current, everything, **live).then(compare, comparing, compared, **live)
        model.input(markup.abilities, model, able, **live)
        budget.input(draw_latents, [photo, model, budget, effort], latent_pictures, **live)
        tabs = {"compare": compare_tab, "latents": latents_tab, "moves": moves_tab, "growth": growth_tab}
        for name, one in (tabs | {"waves": waves_tab}).items():
            one.select(lambda name=name: name, None, tab, **live).then(draw_tab, current, everything, **live)
        fade.input(draw_fade, [photo, model, fade], faded, **live)
        components.input(draw_components, [photo, model, components], projected, **live)
        mix.input(draw_mix, [photo, other, model, mix], mixed, **live)
        for change in (
            other_drop.upload(receive_other, other_drop, [other_drop, other, source], **live),
            other_thumbs.select(choose_other, None, [other, source], **every),
        ):
            change.then(draw_mix, [photo, other, model, mix], mixed, **live)
        grow.click(draw_animation, [photo, model], grown, **grouped)
        wave.input(draw_wave, [photo, model, order, wave], [plane, waved], **live)
        pointed = plane.select(point, [model, order, wave], wave, **every)
        pointed.then(draw_wave, [photo, model, order, wave], [plane, waved], **live)
    page.queue(max_size=64, default_concurrency_limit=1, api_open=False)
    return page


def _slider(name: str, values: tuple[float, float, float], step: float, label: str, info: str) -> gr.Slider:
    """A slider with these (lowest, highest, initial) values."""
    low, high, initial = values
    return gr.Slider(low, high, initial, step=step, label=label, info=info, elem_id=name)


def _drop(name: str, words: str) -> gr.File:
    return gr.File(label=words, height=132, elem_id=name)


def _placeholders(count: int) -> str:
    """Placeholders for images, to avoid layout shifts."""
    return markup.gallery(
        *['<figure class="shot waiting"><figcaption><b>…</b></figcaption><div class="empty"></div></figure>'] * count
    )

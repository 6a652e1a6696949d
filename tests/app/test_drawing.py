"""Images and HTML of the page, without a browser."""

from __future__ import annotations

import re
from functools import partial
from itertools import chain

import pytest
import torch
from gradio import EventData
from torch import Tensor

from finola.app import latent_views as moves
from finola.app import views as markup
from finola.app import waves
from finola.app.comparison import OTHERS, TOLERANCE, Comparison, error_levels, possible_effort, rebuild
from finola.app.handlers import draw_latents, draw_tab, draw_wave, point, user_message
from finola.app.models import WHOLE, describe, is_elastic, label, names, open_model, statistics
from finola.app.photos import Photo, example
from finola.baselines.image_codecs import file_within
from finola.codec.codec import decompress
from finola.config import DEFAULT_CODEC
from finola.errors import UnknownNameError
from finola.image_io import to_uint8
from finola.metrics import psnr, ssim

MODEL = "waves512"  # always available, whichever model is the default


file_of = partial(file_within, tolerance=TOLERANCE)


def small(name: str = "astronaut", side: int = 128) -> Photo:
    return Photo(f"{name}.png", example(name).pixels[:, :side, 150 : 150 + side].contiguous())


def test_metrics_match_the_downloadable_file():
    photo = small()
    ours, others, _ = rebuild(photo, open_model(MODEL), 50)
    assert torch.equal(decompress(ours.data), ours.image)
    pair = ours.image[None].float() / 255, photo.pixels[None].float() / 255
    assert ours.psnr == pytest.approx(float(psnr(*pair)), abs=1e-3)
    assert ours.ssim == pytest.approx(float(ssim(*pair)), abs=1e-5)
    assert ours.bits_per_pixel() == pytest.approx(8 * len(ours.data) / 128**2)
    assert list(others) == list(OTHERS.values())
    for name, title in OTHERS.items():
        other = others[title]
        assert len(other.data) <= len(ours.data) or other.data == file_of(name, photo.pixels, 1)
        pair = other.image[None].float() / 255, photo.pixels[None].float() / 255
        assert other.psnr == pytest.approx(float(psnr(*pair)), abs=1e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_use_the_budget_or_are_the_smallest_possible(name):
    image = small().pixels
    whole = file_of(name, image, 10**6)
    assert len(file_of(name, image, 3000)) <= 3000 < len(whole)
    assert len(file_of(name, image, 3000)) > (0.8 if name == "webp" else 0.9) * 3000
    assert len(file_of(name, image, 1)) == min(len(file_of(name, image, budget)) for budget in (1, 900, 2000))


def test_a_format_that_cannot_be_as_small_is_shown_with_its_size_and_is_not_best():
    photo = small()
    ours, others, effort = rebuild(photo, open_model(MODEL), 1)
    large = {"WebP": rebuild(photo, open_model(MODEL), 100).ours}
    page = markup.comparison(photo, Comparison(ours, others | large, effort), MODEL)
    assert "its smallest file is larger" in page
    assert page.count("<b>WebP") == 1 and f"<b>{large['WebP'].psnr:.2f} dB</b>" not in page


def test_a_format_that_pillow_lacks_is_named(monkeypatch):
    from dataclasses import replace

    from finola.baselines import image_codecs

    lacking = replace(image_codecs.FORMATS["avif"], available=lambda: False)
    monkeypatch.setitem(image_codecs.FORMATS, "avif", lacking)
    found = rebuild(small(side=64), open_model(MODEL), 20)
    assert "AVIF" not in found.others
    assert "no AVIF" in markup.comparison(small(side=64), found, MODEL)


def test_effort_changes_the_file_and_is_reduced_for_large_photos():
    photo = small()
    files = [rebuild(photo, open_model(MODEL), 60, effort=effort).ours for effort in (0, 3)]
    assert torch.equal(decompress(files[1].data), files[1].image) and files[0].data != files[1].data
    assert possible_effort(9, 2_000_000) == 0 and possible_effort(9, 100) == 9
    page = markup.comparison(photo, Comparison(files[0], {}, 0), MODEL, asked=4)
    assert "Effort 4" in page


def test_model_without_codec_reconstructs_without_a_file():
    found = rebuild(small(), open_model(WHOLE), 50)
    assert found.ours.data is None and found.others == {} and found.ours.psnr > 15
    assert "writes no file" in markup.comparison(small(), found, WHOLE)


def test_error_levels_are_zero_for_equal_pixels():
    image = small().pixels
    assert not error_levels(image, image).any()
    other = image.clone()
    other[:, 3, 4] = 255 - other[:, 3, 4]
    assert error_levels(other, image).nonzero().tolist() == [[3, 4]]


def test_default_model_is_first_and_paths_are_rejected():
    assert names()[0] == DEFAULT_CODEC and WHOLE in names()
    with pytest.raises(UnknownNameError, match=r"\.\./\.\./etc"):
        open_model("../../etc")


def test_bundled_models_are_listed_with_codecs_first(tmp_path, monkeypatch):
    from finola import hub

    for name in ("early", "later"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"name": "waves/64x1@8:32"}')
    (tmp_path / "later" / "codec.safetensors").touch()
    monkeypatch.setattr(hub, "WEIGHTS_FOLDER", tmp_path)
    assert [name for name in names() if name in (DEFAULT_CODEC, "early", "later")] == [DEFAULT_CODEC, "later", "early"]
    assert label("early") == "early, trained" and "64" in describe("early")


@pytest.fixture
def elastic(tmp_path, monkeypatch):
    """An elastic model of the page, with its codec."""
    import finola
    from finola import hub
    from finola.codec.elastic_calibration import calibrate_elastic
    from finola.codec.samples import photo_coordinates
    from finola.data import open_data
    from finola.data.sources import evenly

    model = finola.create("waves+nets/64x1@4:16+elastic2").eval()
    model.save_pretrained(tmp_path / "small-elastic")
    data = open_data("smoke", "val")
    data.source = evenly(data.source, 3)
    calibrate_elastic(model, photo_coordinates(model, data)).save(tmp_path / "small-elastic" / "codec.safetensors")
    monkeypatch.setattr(hub, "WEIGHTS_FOLDER", tmp_path)
    return "small-elastic"


def test_elastic_models_are_compared_and_have_a_number_of_latents(elastic):
    assert elastic in names() and is_elastic(elastic) and not is_elastic(MODEL)
    found = rebuild(small(), open_model(elastic), 50, effort=1)
    assert torch.equal(decompress(found.ours.data), found.ours.image) and found.effort == 1
    few, many = (draw_latents(small(), elastic, number, 1) for number in (1024, 8192))
    assert "Latents of each tile" in few and "Refined q, effort 1" in few and few != many
    assert float(re.search(r"([\d.]+) dB", few)[1]) < float(re.search(r"([\d.]+) dB", many)[1])
    assert all("shared out" in page and "describe the bases" in page for page in (few, many))
    assert waves.strongest_first(small(), open_model(elastic))
    assert "fixed length" not in markup.abilities(elastic) and "no vector of a whole photo" in markup.abilities(elastic)


def test_latents_of_a_fixed_model_cannot_be_chosen_but_refined():
    pages = [draw_latents(small(), MODEL, number, 1) for number in (1024, 8192)]
    assert pages[0] == pages[1] and "Refined q, effort 1" in pages[0] and "the same in every tile" in pages[0]
    assert "fixed length" in markup.abilities(MODEL) and "fixed length" in markup.abilities(WHOLE)
    assert "no codec" in markup.abilities(WHOLE) and "whole photo" not in markup.abilities(WHOLE)


@pytest.mark.parametrize(("budget", "effort"), [(-5, -1), (1e9, 1e9)])
def test_values_beyond_the_sliders_are_clamped(budget, effort, elastic):
    assert "dB" in draw_latents(small(side=32), elastic, budget, effort)


def test_interpolations_start_at_the_photo_and_end_at_the_other():
    opened, photo, other = open_model(MODEL), small(), small("coffee")
    plain = to_uint8(opened.model(photo.pixels[None].float() / 255)[0])
    assert alike(moves.faded(photo, opened, 0.0), plain)
    assert alike(moves.mixed(photo, other, opened, 1.0), moves.mixed(other, photo, opened, 0.0))
    assert alike(moves.projected(photo, opened, 0), moves.faded(photo, opened, 1.0))
    assert not alike(moves.faded(photo, opened, 0.0), moves.faded(photo, opened, 2.0))


def alike(image: Tensor, other: Tensor) -> bool:
    return bool((image.int() - other.int()).abs().max() <= 1)


def test_more_components_increase_psnr():
    opened, photo = open_model(MODEL), small()
    original = photo.pixels[None].float() / 255
    near = [float(psnr(moves.projected(photo, opened, k)[None].float() / 255, original)) for k in (0, 8, 64, 10_000)]
    assert near == sorted(near) and near[-1] > near[0] + 5


def test_statistics_stored_with_the_weights_are_used(tmp_path, monkeypatch):
    from finola.app import models
    from finola.evaluation import latent

    statistics(MODEL)[0].save(tmp_path / "q.safetensors")
    monkeypatch.setattr(latent, "stored_statistics", lambda name: tmp_path / "q.safetensors")

    models._statistics.cache_clear()
    try:
        assert "scikit-image" not in statistics(MODEL)[1]
    finally:
        models._statistics.cache_clear()


def test_waves_sum_to_the_reconstruction():
    """The contributions of all waves sum to the reconstruction, up to a constant per colour."""
    opened, photo = open_model(MODEL), small(side=64)
    basis, cell = waves.analysed(MODEL).basis, opened.model.config.cell
    with torch.no_grad():
        z = opened.model.propagate(opened.model.encode(photo.pixels[None].float() / 255))
        rest = opened.model.decode(z)[0]
    pairs = [[c, c + 1] for c in basis.pairs.tolist()]
    rest = rest - waves.added(basis, list(chain(*pairs[2:])), z, cell)
    for pair in pairs[:2]:
        assert float(rest.std()) > 0.01
        rest = rest - waves.added(basis, pair, z, cell)
    assert (rest - rest.mean((1, 2), keepdim=True)).abs().max() < 1e-3


def test_wave_energies_are_sorted_and_sum_to_one():
    order = waves.strongest_first(small(), open_model(MODEL))
    shares = [share for _, share in order]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=1e-4)
    assert sorted(number for number, _ in order) == list(range(len(waves.waves_of(MODEL))))
    assert sorted(number for group in waves.groups(MODEL) for number in group) == list(range(len(order)))


@pytest.mark.parametrize("order", [None, (WHOLE, [(10_000, 1.0)])])
@pytest.mark.parametrize("rank", [1, 3, 10_000])
def test_wave_slider_moved_before_the_waves_of_the_model_are_ranked(order, rank):
    """The tab may not have been drawn yet, or its waves are those of the model before."""
    ranked = draw_tab("waves", small(side=64), None, MODEL, 0, 0)[6]
    assert draw_wave(small(side=64), MODEL, order, rank) == draw_wave(small(side=64), MODEL, ranked, rank)
    assert "Wave" in draw_wave(small(side=64), MODEL, order, rank)[1]
    assert point(MODEL, order, 7, EventData(None, {"choice": "0"})) == 7


def test_waves_of_any_model_can_be_drawn(monkeypatch):
    """Without a basis of plane waves, the channel of an eigenvector is drawn."""
    opened, photo = open_model(MODEL), small(side=64)
    assert waves.waves_of(MODEL)  # cached before the basis is hidden, so that other tests see all waves
    monkeypatch.setattr(waves.analysed(MODEL), "basis", None)
    image, shown = waves.wave_picture(photo, opened, 3)
    assert image.shape[-2:] == shown.shape and shown.abs().max() == 1


def test_animation_has_several_frames_of_the_photo_size():
    import io

    from PIL import Image

    film = Image.open(io.BytesIO(moves.animation(small(side=64), open_model(MODEL))))
    assert film.n_frames > 5 and film.size == (64, 64)


def test_file_names_are_escaped():
    photo = Photo("<img src=x onerror=alert(1)>.png", small(side=64).pixels)
    pages = [markup.comparison(photo, rebuild(photo, open_model(MODEL), 20), MODEL), markup.message(photo.name)]
    pages.append(markup.decoded(Photo(photo.name, photo.pixels, 100, "<b>")))
    assert not any("<img src=x" in page or "<b>" in page.replace("<b>", "", page.count("</b>")) for page in pages)


def test_unexpected_errors_are_logged_and_not_shown_on_the_page(capsys):
    assert "secret" not in user_message(RuntimeError("secret"))
    assert "secret" in capsys.readouterr().err
    assert user_message(ValueError("photo.png is broken.")) == "photo.png is broken."
    assert user_message(ValueError("the file is damaged.")) == "The file is damaged."

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

import finola
from finola.errors import MissingExtraError
from finola.files import animation_path
from finola.image_io import to_pillow
from finola.plotting.animation import BACKGROUND, propagation_frames, save_animation, steps_from
from finola.plotting.wave_animation import wave_frames

BLANK = round(BACKGROUND * 255)


def shown(frame: Image.Image, cell: int) -> np.ndarray:
    """Which cells of a frame are not blank."""
    pixels = np.asarray(frame) != BLANK
    height, width = pixels.shape[:2]
    return pixels.reshape(height // cell, cell, width // cell, cell, 3).any((1, 3, 4))


@pytest.mark.parametrize(
    "name", ["waves/64x1@8:32", "waves/64x3@8:32", "waves/64x4@8:32+scatter", "waves/64x1@8:32+corner"]
)
def test_the_last_frame_is_the_reconstruction(name):
    model, photo = finola.load(name), torch.rand(1, 3, 40, 70)
    film = propagation_frames(model, photo)
    whole = np.asarray(to_pillow(model(photo)[0])).astype(int)
    assert np.abs(np.asarray(film[-1]).astype(int) - whole).max() <= 1
    assert film[0].size == (70, 40)


@pytest.mark.parametrize(("name", "start"), [("waves/64x1@8:32", (4, 4)), ("waves/64x1@8:32+corner", (0, 0))])
def test_frame_n_shows_the_positions_within_n_steps(name, start):
    film = propagation_frames(finola.load(name), torch.rand(1, 3, 32, 32))
    distance = steps_from(start, (8, 8)).numpy()
    assert len(film) == distance.max() + 1
    for step, frame in enumerate(film):
        assert np.array_equal(shown(frame, 4), distance <= step)


def test_scattered_paths_reach_a_position_one_after_the_other():
    """A cell is there when the first path reaches it, and done when the last has."""
    model, photo = finola.load("waves/64x4@8:32+scatter"), torch.rand(1, 3, 32, 32)
    film = propagation_frames(model, photo)
    starts = [(2, 2), (2, 6), (6, 2), (6, 6)]
    distances = torch.stack([steps_from(start, (8, 8)) for start in starts])
    assert len(film) == int(distances.max()) + 1
    first, last = distances.amin(0).numpy(), distances.amax(0).numpy()
    whole = np.asarray(film[-1])
    for step, frame in enumerate(film):
        assert np.array_equal(shown(frame, 4), first <= step)
        done = (last <= step).repeat(4, 0).repeat(4, 1)
        assert np.array_equal(np.asarray(frame)[done], whole[done])


def test_all_tiles_are_propagated_at_once_from_their_own_starts():
    film = propagation_frames(finola.load("waves/64x1@8:32"), torch.rand(1, 3, 64, 96))
    one = steps_from((4, 4), (8, 8)).numpy()
    for step, frame in enumerate(film):
        assert np.array_equal(shown(frame, 4), np.tile(one <= step, (2, 3)))


def test_fewer_frames_have_the_same_first_and_last_frame():
    model, photo = finola.load("waves/64x1@8:32"), torch.rand(2, 3, 32, 32)
    every, few = propagation_frames(model, photo), propagation_frames(model, photo, count=4)
    assert len(every) == 9 and len(few) == 4 and len(propagation_frames(model, photo, count=100)) == 9
    assert few[0].tobytes() == every[0].tobytes() and few[-1].tobytes() == every[-1].tobytes()
    assert few[0].size == (64, 32)  # two photos beside each other


def test_a_model_with_a_position_embedding_can_be_animated():
    model = finola.create("mf-w720/8x1@4:64+unit").eval()
    photo = torch.rand(1, 3, 64, 64)
    last, whole = np.asarray(propagation_frames(model, photo)[-1]), np.asarray(to_pillow(model(photo)[0]))
    assert np.abs(last.astype(int) - whole).max() <= 1


def test_models_without_recurrence_and_single_frames_raise():
    with pytest.raises(ValueError, match="no recurrence"):
        propagation_frames(finola.create("mf-w720/16x4@4:64+convae"), torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"at least 2 .* got 1"):
        propagation_frames(finola.load("waves/64x1@8:32"), torch.rand(1, 3, 32, 32), count=1)


def film(count: int = 5, size: tuple[int, int] = (30, 20)) -> list[Image.Image]:
    return [Image.new("RGB", size, (40 * number, 0, 200)) for number in range(count)]


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_an_animation_has_all_frames_and_the_given_duration(tmp_path, suffix):
    path = save_animation(film(), tmp_path / f"film{suffix}", seconds=1.0)
    with Image.open(path) as opened:
        durations = []
        for frame in ImageSequence.Iterator(opened):
            frame.load()
            durations.append(frame.info["duration"])
    assert len(durations) == 5 and durations[:4] == [200] * 4 and durations[4] > 1000
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_an_mp4_of_odd_sides_has_all_its_frames(tmp_path):
    import imageio_ffmpeg

    path = save_animation(film(size=(31, 21)), tmp_path / "film.mp4", seconds=1.0)
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert count == 5 + round(1.5 / 0.2) and seconds == pytest.approx(2.5, abs=0.3)
    assert [one.name for one in tmp_path.iterdir()] == ["film.mp4"]


def test_mp4_without_ffmpeg_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"finola\[video\]"):
        animation_path(tmp_path / "film.mp4")
    assert animation_path(tmp_path / "film.gif") == tmp_path / "film.gif"


def test_animations_that_cannot_be_written_raise(tmp_path):
    with pytest.raises(ValueError, match=r"one of \.gif, \.webp, \.mp4"):
        save_animation(film(), tmp_path / "film.avi")
    with pytest.raises(FileNotFoundError, match="no folder"):
        save_animation(film(), tmp_path / "none" / "film.gif")
    with pytest.raises(ValueError, match="got 0"):
        save_animation([], tmp_path / "film.gif")
    with pytest.raises(ValueError, match=r"seconds .* got 0"):
        save_animation(film(), tmp_path / "film.gif", seconds=0)


def test_a_wave_has_one_frame_per_column_of_its_quadrant():
    photo = torch.rand(1, 3, 32, 32)
    film = wave_frames(finola.load("waves/64x1@8:32+corner"), photo, 5)
    assert len(film) == len({frame.tobytes() for frame in film}) == 8
    with pytest.raises(ValueError, match="channel is 64"):
        wave_frames(finola.load("waves/64x1@8:32"), photo, 64)

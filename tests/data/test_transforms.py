"""Transforms: views are inside the photo, cover the specified ranges, and match reduced-size JPEG decoding."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from finola.data import CentreCrop, RandomCrop, RandomResizedCrop, Whole
from finola.data.sampler import generator
from finola.data.transforms import render_views
from finola.errors import InputError
from finola.image_io import open_photo, pixels, read_photo, save_photo, shown_size, to_rgb, to_uint8

CASES = np.random.default_rng(0).integers(1, 700, (40, 4)).tolist()


@pytest.mark.parametrize(("height", "width", "size", "seed"), [*CASES, (1, 1, 1, 0), (1, 700, 64, 0), (700, 1, 64, 0)])
def test_views_are_inside_the_photo(height: int, width: int, size: int, seed: int) -> None:
    for transform in (RandomResizedCrop(size), RandomCrop(size), CentreCrop(size), CentreCrop((size, 2 * size))):
        view = transform.view((height, width), generator(seed, 0, 0))
        left, top, right, bottom = view.box
        assert 0 <= left < right <= width + 1e-6 and 0 <= top < bottom <= height + 1e-6
        assert view.size == ((size, 2 * size) if transform.size != size else (size, size))


@pytest.mark.parametrize(("height", "width", "seed"), [(64 + h, 64 + w, seed) for h, w, seed, _ in CASES])
def test_random_crop_is_not_resized_and_centre_crop_preserves_the_aspect_ratio(
    height: int, width: int, seed: int
) -> None:
    left, top, right, bottom = RandomCrop(64).view((height, width), generator(seed, 0, 0)).box
    assert right - left == bottom - top == 64 and left % 1 == top % 1 == 0
    left, top, right, bottom = CentreCrop(96).view((height, width), generator(seed, 0, 0)).box
    assert right - left == pytest.approx(min(height, width)) and bottom - top == pytest.approx(min(height, width))
    assert left + right == pytest.approx(width, abs=1) and top + bottom == pytest.approx(height, abs=1)


def test_random_resized_crop_covers_its_ranges() -> None:
    crop = RandomResizedCrop(32, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    boxes = np.array([crop.view((1000, 1000), generator(0, 0, i)).box for i in range(500)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = width * height / 1e6, width / height
    assert area.min() > 0.19 and area.max() < 0.51 and np.ptp(area) > 0.25
    assert ratio.min() > 0.49 and ratio.max() < 2.02 and ratio.min() < 0.6 and ratio.max() > 1.7
    flips = [crop.view((100, 100), generator(0, 0, i)).flip for i in range(200)]
    assert 60 < sum(flips) < 140
    assert not any(RandomResizedCrop(32, flip=False).view((9, 9), generator(0, 0, i)).flip for i in range(20))


def test_crops_have_the_pixels_of_the_photo() -> None:
    photo = to_rgb(open_photo("skimage:chelsea"))
    whole = pixels(photo)
    assert torch.equal(render_views(photo, [Whole().view(shown_size(photo), generator(0, 0, 0))])[0], whole)
    view = RandomCrop(64, flip=True).view(shown_size(photo), generator(4, 0, 0))
    left, top, right, bottom = (int(side) for side in view.box)
    assert torch.equal(render_views(photo, [view._replace(flip=False)])[0], whole[:, top:bottom, left:right])
    assert torch.equal(render_views(photo, [view._replace(flip=True)])[0], whole[:, top:bottom, left:right].flip(-1))
    centre = render_views(photo, [CentreCrop(300).view(shown_size(photo), generator(0, 0, 0))])[0]
    assert torch.equal(centre, whole[:, :, 75:375])


@pytest.mark.parametrize(("orientation", "width", "height"), [(1, 1500, 1100), (3, 1504, 1104), (6, 1504, 1104)])
def test_jpeg_decoded_at_reduced_size_gives_the_same_view(orientation: int, width: int, height: int) -> None:
    photo = to_rgb(open_photo("skimage:astronaut"))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    photo.resize((width, height)).save(file, "JPEG", quality=92, exif=exif)
    size = shown_size(open_photo(file.getvalue()))
    for index in range(4):
        view = RandomResizedCrop(64, scale=(0.2, 1)).view(size, generator(0, 0, index))
        opened = open_photo(file.getvalue())
        small = render_views(opened, [view])
        assert opened.size[0] <= width / 2  # it was decoded at half size or less
        full = render_views(to_rgb(open_photo(file.getvalue())), [view])
        assert (small.float() - full.float()).square().mean().sqrt() < 6
    opened = open_photo(file.getvalue())
    exact = render_views(opened, [CentreCrop(64).view(size, generator(0, 0, 0))])
    assert opened.size == (width, height)
    assert torch.equal(exact, render_views(to_rgb(opened), [CentreCrop(64).view(size, generator(0, 0, 0))]))


def test_small_photos_are_enlarged() -> None:
    photo = Image.new("RGB", (10, 30), (200, 100, 50))
    for transform in (RandomCrop(64), CentreCrop(64), RandomResizedCrop(64), CentreCrop(64, crop_pct=0.8)):
        image = render_views(photo, [transform.view((30, 10), generator(0, 0, 0))])
        assert image.shape == (1, 3, 64, 64) and image.amax((0, 2, 3)).tolist() == [200, 100, 50]


def test_invalid_settings_raise() -> None:
    with pytest.raises(InputError, match=r"scale.*\(1.0, 0.5\)"):
        RandomResizedCrop(64, scale=(1.0, 0.5))
    for crop_pct in (0.0, 1.5):
        with pytest.raises(InputError, match=f"crop_pct is {crop_pct}"):
            CentreCrop(64, crop_pct)


def test_a_centre_crop_of_224_with_crop_pct_resizes_the_short_side_to_256() -> None:
    for height, width in ((256, 256), (512, 768), (500, 375)):
        left, top, right, bottom = CentreCrop(224, 0.875).view((height, width), generator(0, 0, 0)).box
        expected = 224 * min(height, width) / 256  # side of the crop in pixels of the photo
        assert right - left == pytest.approx(expected) and bottom - top == pytest.approx(expected)
        assert left + right == pytest.approx(width, abs=1) and top + bottom == pytest.approx(height, abs=1)


def test_saved_and_centre_cropped_photo_is_unchanged(tmp_path: object) -> None:
    image = to_uint8(read_photo("skimage:coffee"))[:, :256, :256]
    path = save_photo(image, f"{tmp_path}/a.png")
    opened = open_photo(path)
    assert torch.equal(render_views(opened, [CentreCrop(256).view(shown_size(opened), generator(0, 0, 0))])[0], image)

"""Smoke-test data: crops of the photos installed with scikit-image, for training without any other data."""

from typing import Any

from PIL import Image

from finola.data.sampler import generator
from finola.data.sources import Source
from finola.image_io import open_photo, to_rgb

PHOTOS = {
    "train": ("astronaut", "coffee", "hubble_deep_field", "motorcycle_left", "rocket"),
    "val": ("chelsea",),
}
COUNTS = {"train": 512, "val": 32}
SIDE = 256


class SmokeSource(Source):
    """Crops of 256×256 pixels at fixed pseudo-random positions; train and val use different photos."""

    decoded = True

    def __init__(self, split: str) -> None:
        self.where, self.classes = "smoke", {}
        parts = {"train": ("train",), "all": ("train", "val")}.get(split, ("val",))
        self._items = [(part, number) for part in parts for number in range(COUNTS[part])]
        self._photos: dict[str, Image.Image] = {}

    def __len__(self) -> int:
        return len(self._items)

    def name(self, index: int) -> str:
        part, number = self._items[index]
        return f"smoke/{part}/{number:03d}"

    def open(self, index: int) -> Image.Image:
        part, number = self._items[index]
        name = PHOTOS[part][number % len(PHOTOS[part])]
        if name not in self._photos:
            self._photos[name] = to_rgb(open_photo(f"skimage:{name}"), name)
        photo = self._photos[name]
        random = generator(0, 0, number)
        left, top = (int(random.integers(side - SIDE + 1)) for side in photo.size)
        return photo.crop((left, top, left + SIDE, top + SIDE))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_photos": {}}

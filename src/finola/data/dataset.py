"""Data set of images over any source of photos. A sample depends on (seed, epoch, index) only."""

from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from finola.data.sampler import generator
from finola.data.sources import Source
from finola.data.transforms import Transform, Whole, build_augment, render_views, seeded
from finola.errors import InputError
from finola.image_io import shown_size


class Item(NamedTuple):
    """Sample of one index, as returned by a worker."""

    images: Tensor  # uint8 (K, 3, H, W), K crops of one photo
    label: int
    photo: int  # index of the photo that was read
    replaced: bool  # whether it replaces an unreadable photo
    skipped: dict[int, str]  # unreadable photos that were skipped, with the reason


class PhotoDataset(Dataset[Any]):
    """Images of a source of photos. `sample(index, epoch)` depends on (seed, epoch, index) only.

    An unreadable photo is replaced by the next readable one and listed in `unreadable`. `crops_per_image` views of each
    photo are taken from one decoding and stacked; `augment` is applied to each of them (`build_augment`).

    A `DataLoader` takes it like a data set of torchvision: an item is (image in [0, 1], label), with the crops of epoch
    0. `make_loader` varies them with the epoch, and can resume.

    >>> from finola.data import open_data, RandomCrop
    >>> photos = open_data("smoke", transform=RandomCrop(64))
    >>> image, label = photos[0]
    >>> image.shape, image.dtype, label
    (torch.Size([3, 64, 64]), torch.float32, -1)
    >>> photos.sample(0, epoch=3)[0].dtype
    torch.uint8
    """

    def __init__(
        self,
        source: Source,
        transform: Transform | None = None,
        *,
        seed: int = 0,
        crops_per_image: int = 1,
        augment: str | None = None,
    ) -> None:
        if crops_per_image < 1:
            raise InputError(f"crops_per_image must be at least 1, not {crops_per_image}.")
        self.source, self.transform = source, transform or Whole()
        self.seed, self.crops_per_image = seed, crops_per_image
        self.augment = build_augment(augment) if augment else None
        self._unreadable: dict[int, str] = {}
        self._numbers = {label: number for number, label in enumerate(sorted(source.classes))}
        self._names = [source.classes[label] for label in self._numbers]

    def number_like(self, other: Self) -> None:
        """Use the class indices of another data set; classes that it does not have get −1 (unknown).

        Classes are matched by label and name, otherwise by name; if one of the two has no names, by label.
        """
        ours, theirs = self.source.classes, other.source.classes
        by_name = {name: number for number, name in enumerate(other.class_names)}
        nameless = any(all(name == str(label) for label, name in some.items()) for some in (ours, theirs))
        by_label = nameless and not by_name.keys() & set(ours.values())
        numbers = {
            label: other._numbers.get(label) if by_label or theirs.get(label) == name else by_name.get(name)
            for label, name in ours.items()
        }
        self._numbers = {label: number for label, number in numbers.items() if number is not None}
        self._names = other.class_names

    def __len__(self) -> int:
        return len(self.source)

    def sample(self, index: int, epoch: int = 0) -> tuple[Tensor, int]:
        """Image, uint8 (3, H, W), or (K, 3, H, W) with K > 1 crops per image, and its label (−1: unknown)."""
        item = self[epoch, index]
        return (item.images[0] if self.crops_per_image == 1 else item.images), item.label

    @overload
    def __getitem__(self, key: int) -> tuple[Tensor, int]: ...

    @overload
    def __getitem__(self, key: tuple[int, int]) -> Item: ...

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, int] | Item:
        """Image (3, H, W), or (K, 3, H, W), in [0, 1], and label; for (epoch, index) of `EpochSampler` an Item."""
        if not isinstance(key, tuple):
            images, label = self.sample(key)
            return images.float() / 255, label
        epoch, index = key
        if not 0 <= index < len(self):
            raise IndexError(f"Index {index} is out of range: {self.source.where} has {len(self)} photos.")
        random = generator(self.seed, epoch, index)
        skipped: dict[int, str] = {}
        for step in range(len(self)):
            number = (index + step) % len(self)
            if number not in self._unreadable:
                try:
                    return self.item(number, random, step > 0, skipped)
                except (ValueError, OSError) as error:
                    self._unreadable[number] = str(error)
                    random = generator(self.seed, epoch, index)
            skipped[number] = self._unreadable[number]
        raise InputError(f"None of the {len(self)} photos in {self.source.where} can be read: {skipped[index]}")

    def item(self, number: int, random: np.random.Generator, replaced: bool, skipped: dict[int, str]) -> Item:
        """Read photo `number`; raises ValueError or OSError if it is unreadable."""
        name = self.source.name(number)
        photo = self.source.open(number)
        size = shown_size(photo, name)
        views = [self.transform.view(size, random) for _ in range(self.crops_per_image)]
        images = self._augmented(render_views(photo, views, name), random)
        return Item(images, self._numbers.get(self.source.label(number), -1), number, replaced, skipped)

    def _augmented(self, images: Tensor, random: np.random.Generator) -> Tensor:
        if self.augment is None:
            return images
        with seeded(random):
            return torch.stack([self.augment(image) for image in images])

    def name(self, index: int) -> str:
        return self.source.name(index)

    def target(self, index: int) -> dict[str, Any]:
        """Boxes and masks of a photo, if the source has them (COCO)."""
        return self.source.target(index)

    @property
    def classes(self) -> dict[int, str]:
        """Class names by label. Labels are consecutive from 0, in the order of the source's labels."""
        return dict(enumerate(self.class_names))

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self._names)

    @property
    def class_names(self) -> list[str]:
        """Name of every label, from 0."""
        return self._names

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """(name, reason) of every unreadable photo found so far by this process or the workers of a loader."""
        return [(self.source.name(index), reason) for index, reason in sorted(self._unreadable.items())]

    def note_unreadable(self, skipped: dict[int, str]) -> None:
        """Record unreadable photos found by a worker; called by `Loader`."""
        self._unreadable.update(skipped)

    def report(self, limit: int = 10) -> str:
        """Number of unreadable photos found so far and up to `limit` reasons; empty if there are none."""
        reasons = [*self.source.problems, *(reason for _, reason in self.unreadable)]
        if not reasons:
            return ""
        count = f"{len(self._unreadable)} of {len(self)} photos in {self.source.where}"
        parts = [f"{count} could not be read and were replaced by the next readable one."] if self._unreadable else []
        parts += reasons[:limit]
        parts += [f"And {len(reasons) - limit} more."] if len(reasons) > limit else []
        return " ".join(parts)

"""One contract over every source: photo number `index` in epoch `epoch` is always the same image."""

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from finola.data.augmentation import build_augment, seeded
from finola.data.sampler import generator
from finola.data.sources import Source
from finola.data.transforms import Transform, Whole, draw
from finola.errors import InputError
from finola.image_io import shown_size


class Item(NamedTuple):
    """What a worker hands over for one index."""

    images: Tensor  # uint8 (K, 3, H, W), K crops of one photo
    label: int
    photo: int  # the index of the photo that was read
    replaced: bool  # whether it stands in for an unreadable one
    skipped: dict[int, str]  # unreadable photos passed over on the way, with the reason


class PhotoDataset(Dataset[Item]):
    """Photos of a source as images: `len`, and `sample(index, epoch)`, which depends on (seed, epoch, index) alone.

    A photo that cannot be read is replaced by the next that can, and listed in `unreadable`. `crops_per_image` views
    of each photo are taken from one decoding and stacked; `augment` changes each of them (`finola.data.augmentation`).

    >>> from finola.data import open_data, RandomCrop
    >>> image, label = open_data("smoke", transform=RandomCrop(64)).sample(0, epoch=3)
    >>> image.shape, image.dtype, label
    (torch.Size([3, 64, 64]), torch.uint8, -1)
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
            raise InputError(f"crops_per_image is 1 or more, not {crops_per_image}.")
        self.source, self.transform = source, transform or Whole()
        self.seed, self.crops_per_image = seed, crops_per_image
        self.augment = build_augment(augment) if augment else None
        self._unreadable: dict[int, str] = {}
        self._numbers = {label: number for number, label in enumerate(sorted(source.classes))}
        self._names = [source.classes[label] for label in self._numbers]

    def number_like(self, other: Self) -> None:
        """Give classes the numbers that they have in another data set; a class that it lacks is unknown, −1.

        Classes are the same by label and name; else by name; by label alone where one of the two has no names.
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
        """Image and label (−1 unknown): uint8 (3, H, W), or (K, 3, H, W) with K > 1 crops per image."""
        item = self[epoch, index]
        return (item.images[0] if self.crops_per_image == 1 else item.images), item.label

    def __getitem__(self, key: tuple[int, int]) -> Item:
        """The item of a pair (epoch, index) of `EpochSampler`: the epoch reaches workers inside the key."""
        epoch, index = key
        if not 0 <= index < len(self):
            raise IndexError(f"{self.source.where} has {len(self)} photos; there is no number {index}.")
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
        """Photo `number` as an item; ValueError or OSError where it cannot be one."""
        name = self.source.name(number)
        photo = self.source.open(number)
        size = shown_size(photo, name)
        views = [self.transform.view(size, random) for _ in range(self.crops_per_image)]
        images = self._augmented(draw(photo, views, name), random)
        return Item(images, self._numbers.get(self.source.label(number), -1), number, replaced, skipped)

    def _augmented(self, images: Tensor, random: np.random.Generator) -> Tensor:
        if self.augment is None:
            return images
        with seeded(random):
            return torch.stack([self.augment(image) for image in images])

    def name(self, index: int) -> str:
        return self.source.name(index)

    def target(self, index: int) -> dict[str, Any]:
        """Boxes and masks of a photo, where the source has them (COCO)."""
        return self.source.target(index)

    @property
    def classes(self) -> dict[int, str]:
        """Class names by label. Labels count from 0, in the order of the source's own, which may have gaps."""
        return dict(enumerate(self.class_names))

    @property
    def num_classes(self) -> int:
        """As many outputs as a classifier needs."""
        return len(self._names)

    @property
    def class_names(self) -> list[str]:
        """The name of every label from 0 on."""
        return self._names

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """(name, reason) of every photo met so far that cannot be read, by this process or a loader's workers."""
        return [(self.source.name(index), reason) for index, reason in sorted(self._unreadable.items())]

    def note_unreadable(self, skipped: dict[int, str]) -> None:
        """Take over what a worker found unreadable; `Loader` calls this."""
        self._unreadable.update(skipped)

    def report(self, limit: int = 10) -> str:
        """What could not be read so far: how many photos, then `limit` reasons; empty when all could be read."""
        reasons = [*self.source.problems, *(reason for _, reason in self.unreadable)]
        if not reasons:
            return ""
        skipped = (
            f"{len(self._unreadable)} of {len(self)} photos in {self.source.where} could not be read, and the next "
        )
        parts = [skipped + "readable one stood in for each."] if self._unreadable else []
        parts += reasons[:limit]
        parts += [f"And {len(reasons) - limit} more."] if len(reasons) > limit else []
        return " ".join(parts)

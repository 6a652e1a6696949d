"""The loop of all commands over photos: damaged ones are reported, the others are processed."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from finola.cli.inputs import Photo
from finola.cli.output import describe_error, is_bad_input, print_error, progress
from finola.jobs.pool import Pool

if TYPE_CHECKING:
    from torch import Tensor

    from finola.data import PhotoDataset


class Failure(NamedTuple):
    """Photo of a failed task, and the error message; unlike some exceptions, it can be pickled."""

    photo: str
    reason: str


class Loop:
    """Photos of a command, one after the other or in batches. `code` is the exit code: 2 if any of them failed."""

    def __init__(self, args: argparse.Namespace, what: str) -> None:
        self.verb, self.what, self.code = args.verb, what, 0
        self.unreadable: list[str] = []  # messages

    def each(self, work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int = 1) -> Iterator[Any]:
        """Yield `work(*task)` of every task in order, in this process or in several."""
        with Pool(min(workers, len(tasks)), say=partial(print_error, self.verb)) as pool:
            results = pool.run(partial(_attempt_task, work), tasks, lambda task: str(task[0].name))
            for result in progress(_in_order(results), len(tasks), self.what):
                if not self._failed(result):
                    yield result

    def batches(
        self,
        photos: Sequence[Photo],
        read: Callable[[Photo], Tensor],
        run: Callable[[Tensor], Sequence[Any]],
        batch: int,
    ) -> Iterator[tuple[Photo, Tensor, Any]]:
        """Yield every photo with its pixels (3, H, W) and its item of `run(images)`.

        `run` is called with successive images of equal size, at most `batch` of them.
        """
        import torch

        from finola.tiling import equal_sized

        def images() -> Iterator[tuple[Photo, Tensor]]:
            for photo, image in zip(photos, (_attempt(read, photo) for photo in photos), strict=True):
                if not self._failed(image):
                    yield photo, image

        for group in equal_sized(progress(images(), len(photos), self.what), batch):
            results = _attempt(run, torch.stack([image for _, image in group]), name=group[0][0].name)
            if isinstance(results, Failure) and len(group) > 1:  # find out which photos are at fault
                results = [_attempt(run, image[None], name=photo.name) for photo, image in group]
                results = [one if isinstance(one, Failure) else one[0] for one in results]
            for number, (photo, image) in enumerate(group):
                result = results if isinstance(results, Failure) else results[number]
                if not self._failed(result):
                    yield photo, image, result

    def _failed(self, result: Any) -> bool:
        if isinstance(result, Failure):
            self.code = report_failures(self.verb, [result.reason])
            self.unreadable.append(result.reason)
            return True
        return False


def report_failures(verb: str, messages: Iterable[str]) -> int:
    """Print a line for every photo that is left out, and return the exit code: 2 if there are any, otherwise 0."""
    code = 0
    for message in messages:
        print_error(verb, " ".join(message.split()))
        code = 2
    return code


def report_unreadable(verb: str, *data: PhotoDataset) -> int:
    """`report_failures` for the photos and files of data sets that could not be read so far."""
    reasons = ([*one.source.problems, *(reason for _, reason in one.unreadable)] for one in data)
    return report_failures(verb, itertools.chain.from_iterable(reasons))


def _attempt(work: Callable[..., Any], *task: Any, name: str = "") -> Any:
    """Call `work(*task)`, or return a `Failure` of the photo called `name`, by default the first item of the task."""
    name = name or (task[0].name if isinstance(task[0], Photo) else "")
    try:
        return work(*task)
    except Exception as error:  # any class, because libraries define their own; defects are re-raised
        if not is_bad_input(error):
            raise
        return Failure(name, describe_error(error, name))


def _attempt_task(work: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    return _attempt(work, *task)


def _in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Results in the order of their indices; those that are early wait."""
    early: dict[int, Any] = {}
    number = 0
    for index, result in results:
        early[index] = result
        while number in early:
            yield early.pop(number)
            number += 1

"""Recovery from lack of memory: batches are halved until they fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on the CPU or on a GPU.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory.")), is_out_of_memory(RuntimeError("shape mismatch"))
    (True, False)
    """
    known = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in known)
    )


class Halving:
    """Runs a function on batches of at most `size` items, and halves the size when memory runs out.

    >>> def total(numbers):
    ...     if len(numbers) > 2:
    ...         raise MemoryError
    ...     return [sum(numbers)]
    >>> halving = Halving(5)
    >>> halving.run(total, [1, 2, 3, 4, 5]), halving.size, len(halving.notes)
    ([3, 7, 5], 2, 1)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.notes: tuple[str, ...] = ()

    def run(self, function: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item]) -> list[Result]:
        """Concatenate the results of all batches of `items`."""
        results: list[Result] = []
        done = 0
        while done < len(items):
            batch = items[done : done + self.size]
            found = self._attempt(function, batch)
            if found is not None:
                results += found
                done += len(batch)
        return results

    def _attempt(
        self, function: Callable[[Sequence[Item]], Sequence[Result]], batch: Sequence[Item]
    ) -> Sequence[Result] | None:
        """Results of a batch; None, after halving the size, if memory ran out."""
        try:
            return function(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise MemoryError("Out of memory with a single photo: use a smaller model or another device.") from None
        # Outside of the handler, so that the exception no longer refers to the tensors of the failed attempt.
        before, self.size = min(self.size, len(batch)), max(1, len(batch) // 2)
        _release()
        self.notes = (f"Out of memory with batches of {before}; continuing with batches of {self.size}.",)
        return None


def _release() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()

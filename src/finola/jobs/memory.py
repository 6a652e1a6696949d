"""Recovery from lack of memory: batches are halved until they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, the one from which it was raised, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one from which it was raised, means that memory ran out, on the CPU or on a GPU.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory.")), is_out_of_memory(RuntimeError("shape mismatch"))
    (True, False)
    """
    known = ("out of memory", "can't allocate memory", "not enough memory")
    return any(
        isinstance(one, MemoryError) or (isinstance(one, RuntimeError) and any(text in str(one) for text in known))
        for one in causes(error)
    )


class Halving:
    """Runs a function on batches of at most `size` items, and halves the size when memory runs out.

    >>> def attempted(size):
    ...     if size > 2:
    ...         raise MemoryError
    ...     return size
    >>> halving = Halving(5)
    >>> halving.fit(attempted), halving.size, len(halving.notes)
    (2, 2, 1)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.notes: tuple[str, ...] = ()

    def fit(self, function: Callable[[int], Result]) -> Result:
        """Result of `function(size)` at the first size for which memory suffices."""
        while True:
            found = self.attempt(lambda batch: [function(len(batch))], range(self.size))
            if found is not None:
                return found[0]

    def attempt(
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
        self.halve(len(batch))
        return None

    def halve(self, tried: int) -> None:
        """Reduce the size to half of the number of items for which memory was insufficient."""
        self.size = max(1, tried // 2)
        _release()
        self.notes = (f"Out of memory with batches of {tried}; continuing with batches of {self.size}.",)


def _release() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()

"""Jobs over whole data sets: embeddings and compressed shards, by worker processes or on a Ray cluster.

Importing this package does not import torch, so that the workers of a command start first.
"""

from typing import TYPE_CHECKING

from finola.batch.commands import compress_dataset, embed
from finola.batch.run import Summary

if TYPE_CHECKING:
    from finola.batch.reading import Embedding, read_embeddings, reconstruct

__all__ = ["Embedding", "Summary", "compress_dataset", "embed", "read_embeddings", "reconstruct"]


def __getattr__(name: str) -> object:
    """Import what reads embeddings on first access."""
    if name not in __all__:
        raise AttributeError(f"Module finola.batch has no attribute {name!r}; public names: {', '.join(__all__)}.")
    from finola.batch import reading

    return getattr(reading, name)

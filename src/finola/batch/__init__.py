"""Batch jobs over whole data sets: embeddings and compressed shards, by worker processes or on a Ray cluster."""

from finola.batch.compression import compress_dataset
from finola.batch.embedding import embed
from finola.batch.reading import Embedding, read_embeddings, reconstruct
from finola.batch.runner import Summary

__all__ = ["Embedding", "Summary", "compress_dataset", "embed", "read_embeddings", "reconstruct"]

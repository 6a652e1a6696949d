"""Data sets of photos from folders, Parquet files, tar shards and COCO; samples depend on (seed, epoch, index) only."""

from finola.data.dataset import PhotoDataset
from finola.data.discovery import open_data
from finola.data.loader import Batch, Loader, make_loader
from finola.data.sampler import EpochSampler
from finola.data.transforms import CentreCrop, RandomCrop, RandomResizedCrop, Transform, Whole
from finola.jobs.pool import available_cores

__all__ = [
    "Batch",
    "CentreCrop",
    "EpochSampler",
    "Loader",
    "PhotoDataset",
    "RandomCrop",
    "RandomResizedCrop",
    "Transform",
    "Whole",
    "available_cores",
    "make_loader",
    "open_data",
]

"""Photos from folders, parquet, tar shards and COCO, in an order and cropped as (seed, epoch, index) alone decide."""

from finola.data.dataset import PhotoDataset
from finola.data.discovery import open_data
from finola.data.loader import Batch, Loader, available_cores, make_loader
from finola.data.sampler import EpochSampler
from finola.data.transforms import CentreCrop, RandomCrop, RandomResizedCrop, Transform, Whole

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
